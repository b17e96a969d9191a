"""ggml's own functions, out of the shared object of the xllamacpp wheel: the byte oracle of the block formats."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

#: Our id -> the name in C. NVFP4 and MXFP4 are other layouts elsewhere.
NAMES = {
    "q8_0": "q8_0",
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "iq4_nl": "iq4_nl",
    "ggml_mxfp4": "mxfp4",
    "ggml_nvfp4": "nvfp4",
}
#: ggml_type numbers, for the engine's own CPU path.
TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q8_1": 9, "iq4_nl": 20, "mxfp4": 39, "nvfp4": 40}

DECLARATIONS = """
typedef void (*from_float_t)(const float *, void *, int64_t);
struct traits { from_float_t from_float; };
const struct traits *ggml_get_type_traits_cpu(int type);
void ggml_cpu_init(void);
void quantize_row_q8_1_ref(const float *, void *, int64_t);
"""
EACH = """
void quantize_row_{0}_ref(const float *, void *, int64_t);
void dequantize_row_{0}(const void *, float *, int64_t);
"""


class Ggml:
    """Quantize and dequantize whole arrays, [n, block] float32 and [n, block_bytes] uint8."""

    def __init__(self) -> None:
        import cffi

        found = find_spec("xllamacpp")
        path = next(Path(found.submodule_search_locations[0]).glob("*.so"))
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS + "".join(EACH.format(n) for n in NAMES.values()))
        self.c = self.ffi.dlopen(str(path))
        self.c.ggml_cpu_init()

    def quantize(self, name: str, x: np.ndarray, block_bytes: int) -> np.ndarray:
        """The reference function, which quantizes a KV cache of every type but q8_0."""
        return self._quantize(getattr(self.c, f"quantize_row_{NAMES.get(name, name)}_ref"), x, block_bytes)

    def quantize_engine(self, name: str, x: np.ndarray, block_bytes: int) -> np.ndarray:
        """What the engine's CPU backend calls for this type (`from_float`): SIMD code for q8_0 and q8_1."""
        traits = self.c.ggml_get_type_traits_cpu(TYPES[NAMES.get(name, name)])
        return self._quantize(traits.from_float, x, block_bytes)

    def _quantize(self, call, x: np.ndarray, block_bytes: int) -> np.ndarray:
        x = np.ascontiguousarray(x, dtype=np.float32)
        out = np.zeros((x.shape[0], block_bytes), np.uint8)
        call(self.ffi.cast("float *", x.ctypes.data), self.ffi.cast("void *", out.ctypes.data), x.size)
        return out

    def dequantize(self, name: str, packed: np.ndarray, block: int) -> np.ndarray:
        packed = np.ascontiguousarray(packed)
        out = np.empty((packed.shape[0], block), np.float32)
        call = getattr(self.c, f"dequantize_row_{NAMES[name]}")
        call(self.ffi.cast("void *", packed.ctypes.data), self.ffi.cast("float *", out.ctypes.data), out.size)
        return out


@cache
def ggml() -> Ggml:
    return Ggml()


def golden() -> dict[str, np.ndarray]:
    """Blocks of every kind and what the library makes of them, small enough to keep."""
    from ggml_blocks import blocks

    from kvgate.formats.spec import codec

    made: dict[str, np.ndarray] = {}
    for block in (32, 64):
        made[f"x{block}"] = np.concatenate([x[:6] for _, x in blocks(block, np.random.default_rng(20260401), n=60)])
    for name in NAMES:
        spec = codec(name)
        x = made[f"x{spec.block}"]
        made[name] = ggml().quantize(name, x, spec.block_bytes)
        made[f"{name} values"] = ggml().dequantize(name, made[name], spec.block)
    made["q8_0 engine"] = ggml().quantize_engine("q8_0", made["x32"], 34)
    return made


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **golden())
