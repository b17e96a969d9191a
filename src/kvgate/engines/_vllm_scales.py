"""KV scales of a checkpoint as vLLM would load them: read before the start, since vLLM takes nearly anything.

A compressed-tensors checkpoint starts with 1.0 for a scale that is absent, and with NaN, 0 or a negative number as it
stands; a tensor under another name is dropped with a warning at most. Names are those of vLLM 0.32.0
model_executor/model_loader/weight_utils.py maybe_remap_kv_scale_name and layers/quantization/base_config.py.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.text import one_line
from kvgate.formats.scales import LayerScale, check_scales
from kvgate.formats.spec import KVSide
from kvgate.models.read_config import CONFIG_NAME, QUANT_NAME
from kvgate.models.read_json import read_json_object
from kvgate.models.read_safetensors import SafetensorsHeader, read_safetensors
from kvgate.models.read_tensor import open_tensor
from kvgate.models.weights import weights_files

_MAX_CONFIG_BYTES: Final = 16 << 20
#: Heads of one layer; a tensor with more is no scale.
_MAX_VALUES: Final = 4096
_LOADED: Final = re.compile(
    r"\.(?:layers|h|blocks)\.(?P<layer>\d{1,6})\.(?:\w+\.)*?(?:self_attn|mixer|attn|attention)\."
    r"(?:(?:attn\.)?(?P<own>[kv])_scale|(?P<both>kv)_scale|(?:[kv]_proj|qkv_proj|qkqkv_proj)\.(?P<proj>[kv])_scale"
    r"|(?P<out>[kv])_proj\.output_scale|(?P<cache>[kv])_cache\.scale)$"
)
#: Parts of a checkpoint that are not the text model's own layers, though they count layers too.
_OTHER: Final = re.compile(r"\.(?:mtp\w*|draft\w*|visual|vision\w*|audio\w*|encoder)\.")
#: What somebody may have meant as such a scale.
_LIKE: Final = re.compile(
    r"\.(?:layers|h|blocks)\.\d{1,6}\..*(?:attn|attention|mixer).*"
    r"(?:(?:k|v|kv|key|value)_?(?:cache_?)?scales?|bmm_quantizer\.\w+)$"
)
#: Type of a single number -> how it is unpacked, and its bytes; a bfloat16 is the upper half of a float32.
_KINDS: Final = {"F32": ("<f", 4), "F16": ("<e", 2), "BF16": ("<f", 2)}
_FIX: Final = "calibrate the checkpoint again, or check native only"


@dataclass(frozen=True, slots=True)
class CheckpointScales:
    """Scales of each layer that takes one, as vLLM's kernels get them: of one a head the largest.

    Attributes:
        k, v: scale by layer; empty where only rows shared by all heads (MLA) are cached, whose names are not read.
        per_head: the checkpoint has one a head.
    """

    k: Mapping[int, float]
    v: Mapping[int, float]
    per_head: bool = False

    @property
    def is_unit(self) -> bool:
        """Whether all are 1.0: ModelOpt's fp8_cast writes that without having seen any data."""
        return bool(self.k) and all(x == 1.0 for x in (*self.k.values(), *self.v.values()))


def read_scales(folder: Path, geometry: ModelGeometry, kept: Iterable[int] = ()) -> CheckpointScales:
    """The KV scales in the safetensors files of a folder, all fit to be used.

    Args:
        kept: layers that stay native, whose scales are never used.

    Raises:
        UserError: a scale is absent, zero, negative, NaN or infinite, of another shape than the scheme says, or under
            a name that vLLM does not load; one line that names the first.
    """
    found: list[LayerScale] = []
    strange: list[str] = []
    for name in weights_files(folder):
        header = read_safetensors(folder / name)
        found += _of_file(header, geometry)
        strange += [
            t.name for t in header.tensors if _LIKE.search(dotted := f".{t.name}") and not _LOADED.search(dotted)
        ]
    heads = _heads(geometry, set(kept))
    per_head = strategy_of(folder) == "attn_head"
    try:
        checked = check_scales([x for x in found if x.layer in heads], heads)
    except UserError as e:
        if strange:
            raise UserError(
                f"{folder.name} has KV scales that vLLM does not load, such as {one_line(strange[0], 100)}: it would "
                f"start with 1.0 ({e.thing})",
                fix="name them ...self_attn.k_scale and v_scale",
            ) from None
        raise UserError(f"{folder.name}, as vLLM would load it: {e.thing}", fix=e.fix or _FIX) from None
    _check_shapes(folder, checked.values(), per_head=per_head)
    k, v = ({n: max(x.values) for (n, s), x in checked.items() if s == side} for side in ("k", "v"))
    return CheckpointScales(k, v, per_head)


def strategy_of(folder: Path) -> str:
    """The KV scheme's own word for how far one scale reaches ("tensor", "attn_head"); "" where it does not say."""
    for name in (CONFIG_NAME, QUANT_NAME):
        if not (folder / name).is_file():
            continue
        config = read_json_object(folder / name, max_bytes=_MAX_CONFIG_BYTES)
        for part in (config, config.get("text_config")):
            own = part.get("quantization_config") if isinstance(part, Mapping) else None
            scheme = own.get("kv_cache_scheme") if isinstance(own, Mapping) else None
            if isinstance(scheme, Mapping) and isinstance(scheme.get("strategy"), str):
                return str(scheme["strategy"])
    return ""


def _heads(geometry: ModelGeometry, kept: set[int]) -> dict[int, int]:
    """KV heads of the layers that take scales. A row shared by all heads (MLA) has names of its own: not looked at."""
    return {x.index: x.kv_heads for x in geometry.layers if _takes(x) and x.index not in kept}


def _takes(layer: LayerGeometry) -> bool:
    return layer.kv_heads > 0 and not layer.is_latent


def _of_file(header: SafetensorsHeader, geometry: ModelGeometry) -> list[LayerScale]:
    known = {x.index for x in geometry.layers if _takes(x)}
    found = []
    for tensor in header.tensors:
        match = _LOADED.search(f".{tensor.name}")
        if match is None or _OTHER.search(f".{tensor.name}") or int(match["layer"]) not in known:
            continue
        if not 0 < prod(tensor.shape) <= _MAX_VALUES:
            raise UserError(f"{one_line(tensor.name, 100)} has shape {list(tensor.shape)}: no KV scale", fix=_FIX)
        values = _values(header.path, tensor.name, tensor.shape)
        side = match["own"] or match["proj"] or match["out"] or match["cache"]
        sides: tuple[KVSide, ...] = ("k", "v") if side is None else ("k",) if side == "k" else ("v",)
        found += [LayerScale(int(match["layer"]), s, values) for s in sides]
    return found


def _values(path: Path, name: str, shape: tuple[int, ...]) -> tuple[float, ...]:
    if shape:
        return tuple(float(x) for x in open_tensor(path, name).rows(0, prod(shape[:-1])).reshape(-1))
    # A single number has no last axis to read rows along.
    header = read_safetensors(path)
    tensor = next(t for t in header.tensors if t.name == name)
    return (_single(path, header.size_bytes - header.tensor_bytes + tensor.start, tensor.dtype),)


def _single(path: Path, at: int, dtype: str) -> float:
    if dtype not in _KINDS:
        raise UserError(f"{path} holds a KV scale as {dtype}", allowed=_KINDS, fix=_FIX)
    code, size = _KINDS[dtype]
    with path.open("rb") as file:
        file.seek(at)
        raw = file.read(size)
    return float(struct.unpack(code, b"\0\0" + raw if dtype == "BF16" else raw)[0])


def _check_shapes(folder: Path, scales: Iterable[LayerScale], *, per_head: bool) -> None:
    for one in scales:
        if len(one.values) > 1 and not per_head:
            raise UserError(
                f"{folder.name}: the scale of {one} has {len(one.values)} values, and its KV scheme says one a layer: "
                "vLLM would not start",
                fix=_FIX,
            )
