"""KV scales of a checkpoint, read from its safetensors files: names, shapes, values; a few bytes a tensor.

Names by engine: vLLM 0.32.0 model_executor/model_loader/weight_utils.py maybe_remap_kv_scale_name, SGLang 0.5.23
layers/quantization/kv_cache.py; what compressed-tensors writes (k_scale beside the attention) and ModelOpt
(k_proj.k_scale) are both taken by both.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.models.read_safetensors import SafeTensor, SafetensorsHeader, read_safetensors

MAX_FILES: Final = 1024
#: Heads of one layer; a scale tensor with more is none of ours.
MAX_VALUES: Final = 4096
Side = Literal["k", "v", "q", "kv", "p"]

_SCALE = re.compile(
    r"(?:^|\.)(?:layers|h|blocks)\.(?P<layer>\d+)\..*?"
    r"(?:(?P<side>[kvq])_(?P<what>scale|zero_point|bias)|(?P<kv>kv)_scale|(?P<out>[kvq])_proj\.output_scale"
    r"|(?P<cache>[kv])_cache\.scale|(?P<bmm>[kvq])_bmm_quantizer\.\w+|(?P<prob>prob)_(?:output_)?scale)$"
)
_ATTENTION = re.compile(r"attn|attention|mixer")
_VLLM = re.compile(
    r"\.(self_attn|mixer|attn|attention|mla_attn|mla_attn\.mla_attn)\."
    r"((attn\.)?[kvq]_(scale|zero_point)|kv_scale|[kv]_proj\.[kv]_scale|qkv_proj\.[kv]_scale|qkqkv_proj\.[kv]_scale"
    r"|[kvq]_proj\.output_scale|[kv]_cache\.scale|prob_output_scale|(attn\.)?prob_scale)$"
)
_SGLANG = re.compile(
    r"\.(self_attn|mixer|attn|attention)\.((attn\.)?[kv]_scale|kv_scale|[kv]_proj\.[kv]_scale|[kvq]_proj\.output_scale)$"
)
#: engine -> the names that it loads.
NAMES: Final[Mapping[str, re.Pattern[str]]] = {"vllm": _VLLM, "sglang": _SGLANG}


@dataclass(frozen=True, slots=True)
class Scale:
    """One scale tensor; `values` in order, float; NaN and infinity as they stand."""

    name: str
    layer: int
    side: Side
    what: str
    shape: tuple[int, ...]
    values: tuple[float, ...]
    dtype: str
    file: Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the safetensors files of a folder say of KV scales. `unread`: files or tensors that could not be read."""

    folder: Path
    scales: tuple[Scale, ...]
    tensors: int
    unread: tuple[str, ...] = ()


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Scales in the safetensors files of a folder; None where there are no such files.

    Nothing raises: a file that cannot be read is named in `unread`.
    """
    try:
        files = sorted(p for p in folder.glob("*.safetensors") if p.is_file())[:MAX_FILES]
    except OSError:
        return None
    scales: list[Scale] = []
    unread: list[str] = []
    count = 0
    for path in files:
        try:
            header = read_safetensors(path)
            count += len(header.tensors)
            scales += _scales(header, unread)
        except UserError as e:
            unread.append(str(e))
    return Checkpoint(folder, tuple(scales), count, tuple(unread)) if files else None


def _scales(header: SafetensorsHeader, unread: list[str]) -> list[Scale]:
    found = []
    data_start = header.size_bytes - header.tensor_bytes
    try:
        with header.path.open("rb") as file:
            for tensor in header.tensors:
                match = _SCALE.search(tensor.name)
                if match is None or not _ATTENTION.search(tensor.name):
                    continue
                read = _READERS.get(tensor.dtype)
                if read is None or tensor.n_bytes > MAX_VALUES * 8:
                    unread.append(f"{one_line(tensor.name, 100)} is {tensor.dtype} {list(tensor.shape)}: no scale")
                    continue
                file.seek(data_start + tensor.start)
                found.append(_scale(match, tensor, read(file.read(tensor.n_bytes)), header.path))
    except OSError as e:
        raise UserError(f"cannot read {header.path}: {e.strerror or e}") from None
    return found


def _scale(match: re.Match[str], tensor: SafeTensor, values: tuple[float, ...], path: Path) -> Scale:
    groups = match.groupdict()
    side = next(groups[g] for g in ("side", "kv", "out", "cache", "bmm", "prob") if groups[g])
    what = groups["what"] or "scale"
    sides: dict[str, Side] = {"k": "k", "v": "v", "q": "q", "kv": "kv", "prob": "p"}
    layer = int(groups["layer"][:9])
    return Scale(tensor.name, layer, sides[side], what, tensor.shape, values, tensor.dtype, path)


def _unpacker(code: str, size: int) -> Callable[[bytes], tuple[float, ...]]:
    return lambda data: tuple(float(v) for v in struct.unpack(f"<{len(data) // size}{code}", data))


def _bf16(data: bytes) -> tuple[float, ...]:
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return tuple(struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words)


_READERS: Final[Mapping[str, Callable[[bytes], tuple[float, ...]]]] = {
    "F32": _unpacker("f", 4),
    "F64": _unpacker("d", 8),
    "F16": _unpacker("e", 2),
    "BF16": _bf16,
    "I32": _unpacker("i", 4),
    "I64": _unpacker("q", 8),
    "I8": _unpacker("b", 1),
    "U8": _unpacker("B", 1),
}
