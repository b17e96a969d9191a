"""Speed of the codecs: kvgate beside gguf-py, torch's casts, ggml's reference functions, optimum-quanto and HQQ.

    python benchmarks/codecs.py [--mib 64] [--threads 1 2] [--repeats 5] [--only q8_0 ...] [--json]

Data: normal float32 values in the shape of a cache, (1, 8 heads, tokens, 128), --mib of them. All contestants of a
format take turns in one process; each time is the best of the repeats. CPU time is the process's, over all threads:
on a machine that others use too it is the steadier one, so ratios and promises are in it, of contestants of the same
run. More than one thread: the heads are split among Python threads (torch: its own threads). gguf-py works on 16 rows
at a time, so it is timed both on rows of 128 and on rows of 4,096 elements, its better case. `share` is bytes read and
written over wall time, as a share of what numpy.copyto reaches on the same array with the same threads. A peer that is
not installed is named so. Exit status 1: a promise is missed (with one thread, not slower than gguf-py at its best for
ggml's formats; both ways together within twice torch's casts for FP8).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kvgate

GGML = {
    "q8_0": "q8_0",
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "iq4_nl": "iq4_nl",
    "ggml_mxfp4": "mxfp4",
    "ggml_nvfp4": "nvfp4",
}
CASTS = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "f16": "float16",
    "bf16": "bfloat16",
}
#: Codecs that quanto's and HQQ's 4-bit groups stand beside: an affine 4-bit code for each group.
LIKE_4_BIT = "q4_1"
HEADS, HEAD_DIM, LONG_ROW = 8, 128, 4096
PEERS = ("gguf", "torch", "xllamacpp", "optimum-quanto", "hqq", "numpy")


@dataclass(frozen=True)
class Contestant:
    """One implementation of one direction: `run(threads)` does the whole array once."""

    who: str
    direction: str
    run: Callable[[int], object]


@dataclass(frozen=True)
class Row:
    """One measured time."""

    codec: str
    who: str
    direction: str
    threads: int
    wall_s: float
    cpu_s: float
    wall_ns_per_element: float
    cpu_ns_per_element: float
    share_of_copy: float
    kvgate_speedup: float | None = None


def in_threads(work: Callable[[int], object], parts: int, threads: int) -> None:
    """`work(part)` for each part, on so many threads; numpy and cffi let go of the interpreter's lock."""
    if threads == 1:
        for part in range(parts):
            work(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(parts)))


def kvgate_numpy(name: str, x: np.ndarray) -> list[Contestant]:
    one = kvgate.codecs[name]
    packed = one.encode(x)

    def encode(threads: int) -> None:
        in_threads(lambda h: one.encode(x[:, h]), HEADS, threads) if threads > 1 else one.encode(x)

    def decode(threads: int) -> None:
        in_threads(lambda h: one.decode(packed[:, h]), HEADS, threads) if threads > 1 else one.decode(packed)

    return [Contestant("kvgate numpy", "encode", encode), Contestant("kvgate numpy", "decode", decode)]


def kvgate_torch(name: str, x: np.ndarray) -> list[Contestant]:
    one, tensor = kvgate.codecs[name], torch.from_numpy(x)
    packed = one.encode(tensor)
    return [
        Contestant("kvgate torch", "encode", with_torch_threads(lambda: one.encode(tensor))),
        Contestant("kvgate torch", "decode", with_torch_threads(lambda: one.decode(packed))),
    ]


def with_torch_threads(work: Callable[[], object]) -> Callable[[int], object]:
    def run(threads: int) -> object:
        torch.set_num_threads(threads)
        return work()

    return run


def torch_cast(name: str, x: np.ndarray) -> list[Contestant]:
    tensor, dtype = torch.from_numpy(x), getattr(torch, CASTS[name])
    cast = tensor.to(dtype)
    return [
        Contestant("torch cast", "encode", with_torch_threads(lambda: tensor.to(dtype))),
        Contestant("torch cast", "decode", with_torch_threads(lambda: cast.to(torch.float32))),
    ]


def gguf_py(name: str, x: np.ndarray) -> list[Contestant]:
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[GGML[name].upper()]
    found = []
    for who, rows in (("gguf-py", x), ("gguf-py, rows of 4096", x.reshape(1, HEADS, -1, LONG_ROW))):
        packed = kvgate.codecs[name].encode(rows)

        def encode(threads: int, rows: np.ndarray = rows) -> None:
            in_threads(lambda h: quants.quantize(rows[:, h], kind), HEADS, threads)

        def decode(threads: int, packed: np.ndarray = packed) -> None:
            in_threads(lambda h: quants.dequantize(packed[:, h], kind), HEADS, threads)

        try:
            quants.quantize(rows[:, :1, :1], kind)
            found.append(Contestant(who, "encode", encode))
        except NotImplementedError:
            pass  # gguf-py only reads this type
        found.append(Contestant(who, "decode", decode))
    return found


def ggml_reference(name: str, x: np.ndarray) -> list[Contestant]:
    """C, one block after another; `from_float` is what the engine's CPU code calls, SIMD where it has it."""
    import cffi

    package = find_spec("xllamacpp")
    if package is None or not package.submodule_search_locations:
        return []
    ffi = cffi.FFI()
    c_name = GGML[name]
    ffi.cdef(
        f"void quantize_row_{c_name}_ref(const float *, void *, int64_t);"
        f"void dequantize_row_{c_name}(const void *, float *, int64_t);"
        "void quantize_row_q8_0(const float *, void *, int64_t); void ggml_cpu_init(void);"
    )
    lib = ffi.dlopen(str(next(Path(package.submodule_search_locations[0]).glob("*.so"))))
    lib.ggml_cpu_init()
    spec = kvgate.codecs[name].spec
    packed, back = np.empty(x.size // spec.block * spec.block_bytes, np.uint8), np.empty(x.size, np.float32)
    count = x.size // HEADS

    def call(function: Any, source: np.ndarray, out: np.ndarray, threads: int) -> None:
        def part(h: int) -> None:
            a, b = source.reshape(HEADS, -1)[h], out.reshape(HEADS, -1)[h]
            function(ffi.cast("void *", a.ctypes.data), ffi.cast("void *", b.ctypes.data), count)

        in_threads(part, HEADS, threads)

    quantize, dequantize = getattr(lib, f"quantize_row_{c_name}_ref"), getattr(lib, f"dequantize_row_{c_name}")
    found = [
        Contestant("ggml reference", "encode", partial(call, quantize, x, packed)),
        Contestant("ggml reference", "decode", partial(call, dequantize, packed, back)),
    ]
    if name == "q8_0":
        found.append(Contestant("ggml engine (AVX2)", "encode", partial(call, lib.quantize_row_q8_0, x, packed)))
    return found


def quanto_4_bit(x: np.ndarray) -> list[Contestant]:
    """As transformers' QuantoQuantizedLayer: axis 0, groups of 64."""
    if find_spec("optimum") is None or find_spec("optimum.quanto") is None:
        return []
    from optimum.quanto import MaxOptimizer, qint4, quantize_weight

    tensor, optimizer = torch.from_numpy(x), MaxOptimizer()

    def encode() -> Any:
        scale, zero = optimizer(tensor, qint4, 0, 64)
        return quantize_weight(tensor, qint4, 0, scale, zero, 64)

    packed = encode()
    return [
        Contestant("optimum-quanto qint4", "encode", with_torch_threads(encode)),
        Contestant("optimum-quanto qint4", "decode", with_torch_threads(lambda: packed.dequantize())),
    ]


def hqq_4_bit(x: np.ndarray) -> list[Contestant]:
    """As transformers' HQQQuantizedLayer: 4 bits, groups of 64, axis 1."""
    if find_spec("hqq") is None:
        return []
    from hqq.core.quantize import Quantizer

    tensor = torch.from_numpy(x)

    def encode() -> Any:
        return Quantizer.quantize(
            tensor, nbits=4, group_size=64, axis=1, compute_dtype=torch.float32, device="cpu", optimize=False
        )

    packed, meta = encode()
    return [
        Contestant("HQQ 4 bit", "encode", with_torch_threads(encode)),
        Contestant("HQQ 4 bit", "decode", with_torch_threads(lambda: Quantizer.dequantize(packed, meta))),
    ]


def contestants(name: str, x: np.ndarray) -> list[Contestant]:
    """Everybody who can do this format, or for q4_1 something like it."""
    found = kvgate_numpy(name, x) + kvgate_torch(name, x)
    if name in GGML:
        found += gguf_py(name, x) + ggml_reference(name, x)
    if name in CASTS:
        found += torch_cast(name, x)
    if name == LIKE_4_BIT:
        found += quanto_4_bit(x) + hqq_4_bit(x)
    return found


class Times(NamedTuple):
    wall_s: float
    cpu_s: float


def best_times(runs: list[Callable[[], object]], repeats: int) -> list[Times]:
    """Best wall time and best CPU time of each, taking turns."""
    best = [Times(float("inf"), float("inf"))] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            took = Times(time.perf_counter() - wall, time.process_time() - cpu)
            best[i] = Times(min(best[i].wall_s, took.wall_s), min(best[i].cpu_s, took.cpu_s))
    return best


def copy_bytes_per_s(x: np.ndarray, threads: int, repeats: int) -> float:
    """Bytes read and written a second by numpy.copyto."""
    out = np.empty_like(x)
    copy = partial(in_threads, lambda h: np.copyto(out[:, h], x[:, h]), HEADS, threads)
    return 2 * x.nbytes / best_times([copy], max(repeats, 5))[0].wall_s


def measure(name: str, x: np.ndarray, threads: int, repeats: int, copy: float) -> list[Row]:
    entered = contestants(name, x)
    times = best_times([partial(c.run, threads) for c in entered], repeats)
    moved = x.nbytes + x.size // HEAD_DIM * kvgate.codecs[name].spec.row_bytes(HEAD_DIM)
    ours = {c.direction: t.cpu_s for c, t in zip(entered, times, strict=True) if c.who == "kvgate numpy"}
    return [
        Row(
            codec=name,
            who=c.who,
            direction=c.direction,
            threads=threads,
            wall_s=t.wall_s,
            cpu_s=t.cpu_s,
            wall_ns_per_element=t.wall_s / x.size * 1e9,
            cpu_ns_per_element=t.cpu_s / x.size * 1e9,
            share_of_copy=moved / t.wall_s / copy,
            kvgate_speedup=None if c.who.startswith("kvgate") else t.cpu_s / ours[c.direction],
        )
        for c, t in zip(entered, times, strict=True)
    ]


def floors(rows: list[Row]) -> list[dict[str, Any]]:
    """The promises, in CPU time with one thread."""
    found: list[dict[str, Any]] = []

    def add(codec: str, what: str, ratio: float, limit: float) -> None:
        found.append({"codec": codec, "what": what, "ratio": ratio, "limit": limit})

    for name in sorted({r.codec for r in rows}):
        mine = {(r.who, r.direction): r.cpu_s for r in rows if (r.codec, r.threads) == (name, 1)}
        for direction in ("encode", "decode"):
            peers = [t for (who, d), t in mine.items() if who.startswith("gguf-py") and d == direction]
            if peers:
                add(name, f"{direction}: numpy over gguf-py", mine["kvgate numpy", direction] / min(peers), 1.0)
        if name.startswith("fp8") and mine:
            cast = mine["torch cast", "encode"] + mine["torch cast", "decode"]
            for who in ("kvgate numpy", "kvgate torch"):
                add(
                    name,
                    f"both ways: {who} over torch's casts",
                    (mine[who, "encode"] + mine[who, "decode"]) / cast,
                    2.0,
                )
    return found


def versions() -> dict[str, str]:
    found = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def show(report: dict[str, Any]) -> None:
    print(f"{report['mib']} MiB, {report['machine']}; versions: {report['versions']}")
    for threads, copy in report["copy_gb_per_s"].items():
        print(f"copy, {threads} thread(s): {copy:.1f} GB/s read and written")
    print(
        "\nns an element (CPU, wall); share of the copy's bandwidth; how many times kvgate's CPU time on numpy arrays"
    )
    print(f"{'codec':12} {'threads':7} {'direction':9} {'who':24} {'CPU':>7} {'wall':>7} {'share':>6} {'kvgate':>8}")
    for r in report["rows"]:
        faster = "" if r["kvgate_speedup"] is None else f"{r['kvgate_speedup']:.2f} x"
        print(
            f"{r['codec']:12} {r['threads']:7} {r['direction']:9} {r['who']:24} {r['cpu_ns_per_element']:7.2f} "
            f"{r['wall_ns_per_element']:7.2f} {r['share_of_copy']:6.1%} {faster:>8}"
        )
    missed = [f for f in report["floors"] if f["ratio"] > f["limit"]]
    print(f"\nfloors: {len(report['floors']) - len(missed)} held, {len(missed)} missed")
    for f in missed:
        print(f"  missed: {f['codec']} {f['what']}: {f['ratio']:.2f}, limit {f['limit']}")


def main() -> None:
    """Measure and print; exit 1 if a floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[*GGML, *CASTS])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tokens = args.mib * 2**20 // 4 // (HEADS * HEAD_DIM)
    x = np.random.default_rng(1).standard_normal((1, HEADS, tokens, HEAD_DIM), dtype=np.float32)
    rows: list[Row] = []
    copies: dict[str, float] = {}
    for threads in args.threads:
        copy = copy_bytes_per_s(x, threads, args.repeats)
        copies[str(threads)] = copy / 1e9
        for name in args.only:
            print(f"{name}, {threads} thread(s)", file=sys.stderr)
            rows += measure(name, x, threads, args.repeats, copy)
    report = {
        "schema": "kvgate.benchmark.codecs/1",
        "mib": args.mib,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": versions(),
        "copy_gb_per_s": copies,
        "rows": [asdict(r) for r in rows],
        "floors": floors(rows),
    }
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)
    sys.exit(any(f["ratio"] > f["limit"] for f in report["floors"]))


if __name__ == "__main__":
    main()
