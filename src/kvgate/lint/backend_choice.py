"""Which attention backend vLLM can use, and would choose, for a layer: from the table of its facts.

The first backend of the platform's order that fits is taken, layer by layer (vLLM 0.32.0 platforms/cuda.py). Only what
is known counts: without a device nothing is said about hardware, without a model nothing about heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.enginefacts.facts import BackendRow
from kvgate.lint.subject import Subject

#: Words that every backend reads.
NATIVE = ("auto", "bfloat16", "float16")
#: FlashAttention 4 reads wider heads, on these.
_WIDE_HEADS = ("9", "10")


@dataclass(frozen=True, slots=True)
class LayerNeed:
    """What one group of layers asks of a backend; `head_dim` 0 is not known."""

    attention: str = "full"
    head_dim: int = 0
    window: bool = False


def needs(s: Subject) -> tuple[LayerNeed, ...]:
    """Each kind of layer of the model once; one need without details where the model is not known."""
    if s.model is None or not s.model.layers:
        return (LayerNeed(),)
    found = {
        LayerNeed(
            "sparse_mla" if y.kind == "sparse_mla" else "mla" if y.is_latent else "full",
            y.k_dim,
            bool(y.window_tokens) and not y.chunked,
        )
        for y in s.model.layers
    }
    return tuple(sorted(found, key=lambda n: (n.attention, n.head_dim, n.window)))


def why_not(row: BackendRow, s: Subject, word: str, need: LayerNeed) -> list[tuple[str, str]]:
    """Reasons, each with its kind, why a backend cannot serve a layer with this KV word; empty if it can."""
    found: list[tuple[str, str]] = []
    if s.model is not None and s.model.layers and row.attention != need.attention:
        found.append(("attention", f"it is for {_words(row.attention)}, and the model has {_words(need.attention)}"))
    if word not in NATIVE and word not in row.dtypes:
        found.append(("dtype", f"it does not read {word}"))
    elif word not in NATIVE and row.dtype_capabilities and s.capability and not s.on_capability(row.dtype_capabilities):
        found.append(("device", f"it reads {word} only on compute capability {_x(row.dtype_capabilities)}"))
    found += _hardware(row, s)
    found += _heads(row, s, need.head_dim)
    sinks = s.model is not None and s.model.has_sinks
    if sinks and not row.sinks:
        found.append(("sinks", "it has no attention sinks"))
    elif sinks and row.sinks_capabilities and s.capability and not s.on_capability(row.sinks_capabilities):
        found.append(("sinks", f"it has attention sinks only on {_x(row.sinks_capabilities)}"))
    if need.window and not row.windows:
        found.append(("windows", "it has no sliding windows"))
    if word not in NATIVE and per_head_scales(s) and not row.per_head_scales:
        found.append(("per_head", "it takes no scale for each head"))
    found += _fp4(row, s, word, need)
    return found


def blocks_fit(row: BackendRow, block_tokens: int) -> bool:
    """Whether a block size is one that the kernel takes."""
    if row.blocks and block_tokens not in row.blocks:
        return False
    return not row.blocks_multiple_of or block_tokens % row.blocks_multiple_of == 0


def chosen(s: Subject, word: str) -> tuple[str, ...] | None:
    """Backends that vLLM would take, one for each kind of layer; None without an NVIDIA device; "" where none fits."""
    if s.facts is None or s.vendor != "nvidia" or not s.capability:
        return None
    rows = {b.name: b for b in s.facts.backend}
    block = s.number("block_tokens")
    found = []
    for need in needs(s):
        order = next(
            (o.order for o in s.facts.selection if o.attention == need.attention and s.on_capability(o.capabilities)),
            (),
        )
        if not order:
            return None
        fits = (
            name
            for name in order
            if not rows[name].opt_in
            and not why_not(rows[name], s, word, need)
            and (block is None or blocks_fit(rows[name], int(block)))
        )
        found.append(next(fits, ""))
    return tuple(dict.fromkeys(found))


def per_head_scales(s: Subject) -> bool:
    """Whether the checkpoint asks for one scale a head (compressed-tensors strategy attn_head)."""
    scheme = s.model.kv_scheme if s.model is not None else None
    return scheme is not None and scheme.get("strategy") == "attn_head" and s.is_fp8


def _hardware(row: BackendRow, s: Subject) -> list[tuple[str, str]]:
    vendor = s.vendor
    if vendor and row.vendor != "any" and row.vendor != vendor:
        return [("device", f"it is for {row.vendor}")]
    if vendor == "cpu" and row.vendor == "any":
        return [("device", "it does not run on a CPU")]
    if vendor == "nvidia" and s.capability and row.capabilities and not s.on_capability(row.capabilities):
        return [("device", f"it needs compute capability {_x(row.capabilities)}, not {s.capability}")]
    return []


def _heads(row: BackendRow, s: Subject, dim: int) -> list[tuple[str, str]]:
    if not dim:
        return []
    if row.heads and dim not in row.heads:
        return [("heads", f"it has no head size {dim}, only {', '.join(map(str, row.heads))}")]
    if row.heads_multiple_of and dim % row.heads_multiple_of:
        return [("heads", f"head size {dim} is no multiple of {row.heads_multiple_of}")]
    if (row.heads_from and dim < row.heads_from) or (row.heads_to and dim > row.heads_to):
        return [("heads", f"head size {dim} is outside {row.heads_from} to {row.heads_to or 'any'}")]
    if row.name == "FLASH_ATTN" and dim > 256 and s.capability and not s.on_capability(_WIDE_HEADS):
        return [("heads", f"head size {dim} needs FlashAttention 4")]
    return []


def _fp4(row: BackendRow, s: Subject, word: str, need: LayerNeed) -> list[tuple[str, str]]:
    """NVFP4 outside compute capability 10.x runs FlashInfer's FA2 path, which lacks more."""
    if row.name != "FLASHINFER" or not word.startswith("nvfp4") or not s.capability or s.on_capability(("10",)):
        return []
    if word == "nvfp4_4over6":
        return [("device", "it reads nvfp4_4over6 only on compute capability 10.x")]
    if need.head_dim == 64:
        return [("heads", "its NVFP4 path here has no head size 64")]
    if s.model is not None and s.model.has_sinks:
        return [("sinks", "its NVFP4 path here has no attention sinks")]
    return []


def _words(attention: str) -> str:
    return {"full": "plain attention", "mla": "MLA", "sparse_mla": "sparse MLA"}[attention]


def _x(capabilities: tuple[str, ...]) -> str:
    return " or ".join(c if "." in c else f"{c}.x" for c in capabilities)
