"""Which attention backend an engine can use, and would choose, for a layer: from the rows of its facts.

The first backend of the platform's order that fits is taken, layer by layer (vLLM 0.32.0 platforms/cuda.py). Only what
is known counts: an empty vendor or capability says nothing about hardware, a head size of 0 nothing about heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.enginefacts.facts import BackendRow, EngineFacts

#: Words of a 16-bit cache.
NATIVE_WORDS = ("auto", "bfloat16", "float16")
#: FlashAttention 4 reads wider heads, on these.
_WIDE_HEADS = ("9", "10")


@dataclass(frozen=True, slots=True)
class LayerNeed:
    """What one group of layers asks of a backend; "" and 0 are not known. attention: "full", "mla", "sparse_mla"."""

    attention: str = ""
    head_dim: int = 0
    window: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs and what all layers ask.

    Attributes:
        vendor, capability: of the device ("nvidia", "9.0"). sinks: the model has attention sinks.
        per_head_scales: the checkpoint has one scale a head. block_tokens: the page size asked for; 0 for none.
    """

    vendor: str = ""
    capability: str = ""
    sinks: bool = False
    per_head_scales: bool = False
    block_tokens: int = 0

    def on(self, wanted: Sequence[str]) -> bool:
        """Whether the device is known to be one of these: "9" is all of 9.x."""
        if not self.capability or self.vendor != "nvidia":
            return False
        return any(self.capability == w or self.capability.split(".")[0] == w for w in wanted)


def layer_needs(layers: tuple[LayerGeometry, ...]) -> tuple[LayerNeed, ...]:
    """Kinds of layers, each once, in a fixed order."""
    found = {
        LayerNeed(
            "sparse_mla" if y.kind == "sparse_mla" else "mla" if y.is_latent else "full",
            y.k_dim,
            bool(y.window_tokens) and not y.chunked,
        )
        for y in layers
    }
    return tuple(sorted(found, key=lambda n: (n.attention, n.head_dim, n.window)))


def why_not(row: BackendRow, at: Place, word: str, need: LayerNeed) -> list[tuple[str, str]]:
    """Reasons, each with its kind, why a backend cannot serve a layer with this KV word; empty if it can."""
    found: list[tuple[str, str]] = []
    if need.attention and row.attention != need.attention:
        found.append(("attention", f"it is for {_words(row.attention)}, and the model has {_words(need.attention)}"))
    quantized = word not in NATIVE_WORDS
    if word not in row.dtypes if quantized else not row.native:
        found.append(("dtype", f"it does not read {word}"))
    elif quantized and row.dtype_capabilities and at.capability and not at.on(row.dtype_capabilities):
        found.append(("device", f"it reads {word} only on compute capability {_any(row.dtype_capabilities)}"))
    found += _hardware(row, at)
    found += _heads(row, at, need.head_dim)
    if at.sinks and not row.sinks:
        found.append(("sinks", "it has no attention sinks"))
    elif at.sinks and row.sinks_capabilities and at.capability and not at.on(row.sinks_capabilities):
        found.append(("sinks", f"it has attention sinks only on {_any(row.sinks_capabilities)}"))
    if need.window and not row.windows:
        found.append(("windows", "it has no sliding windows"))
    if quantized and at.per_head_scales and not row.per_head_scales:
        found.append(("per_head", "it takes no scale for each head"))
    return found + _fp4(row, at, word, need)


def blocks_fit(row: BackendRow, block_tokens: int) -> bool:
    """Whether a block size is one that the kernel takes."""
    if row.blocks and block_tokens not in row.blocks:
        return False
    return not row.blocks_multiple_of or block_tokens % row.blocks_multiple_of == 0


def choose(facts: EngineFacts, at: Place, word: str, needs: Sequence[LayerNeed]) -> tuple[str, ...] | None:
    """Backends that the engine would take, one for each kind of layer; "" where none fits; None without an order."""
    if at.vendor != "nvidia" or not at.capability:
        return None
    rows = {b.name: b for b in facts.backend}
    found = []
    for need in needs:
        kind = need.attention or "full"
        order = next((o.order for o in facts.selection if o.attention == kind and at.on(o.capabilities)), ())
        if not order:
            return None
        fits = (name for name in order if not rows[name].opt_in and _serves(rows[name], at, word, need))
        found.append(next(fits, ""))
    return tuple(dict.fromkeys(found))


def _serves(row: BackendRow, at: Place, word: str, need: LayerNeed) -> bool:
    return not why_not(row, at, word, need) and (not at.block_tokens or blocks_fit(row, at.block_tokens))


def _hardware(row: BackendRow, at: Place) -> list[tuple[str, str]]:
    if at.vendor and row.vendor != "any" and row.vendor != at.vendor:
        return [("device", f"it is for {row.vendor}")]
    if at.vendor == "cpu" and row.vendor == "any":
        return [("device", "it does not run on a CPU")]
    if at.vendor == "nvidia" and at.capability and row.capabilities and not at.on(row.capabilities):
        return [("device", f"it needs compute capability {_any(row.capabilities)}, not {at.capability}")]
    return []


def _heads(row: BackendRow, at: Place, dim: int) -> list[tuple[str, str]]:
    if not dim:
        return []
    if row.heads and dim not in row.heads:
        return [("heads", f"it has no head size {dim}, only {', '.join(map(str, row.heads))}")]
    if row.heads_multiple_of and dim % row.heads_multiple_of:
        return [("heads", f"head size {dim} is no multiple of {row.heads_multiple_of}")]
    if (row.heads_from and dim < row.heads_from) or (row.heads_to and dim > row.heads_to):
        return [("heads", f"head size {dim} is outside {row.heads_from} to {row.heads_to or 'any'}")]
    if row.name == "FLASH_ATTN" and dim > 256 and at.capability and not at.on(_WIDE_HEADS):
        return [("heads", f"head size {dim} needs FlashAttention 4")]
    return []


def _fp4(row: BackendRow, at: Place, word: str, need: LayerNeed) -> list[tuple[str, str]]:
    """NVFP4 outside compute capability 10.x runs FlashInfer's FA2 path, which lacks more."""
    if row.name != "FLASHINFER" or not word.startswith("nvfp4") or not at.capability or at.on(("10",)):
        return []
    if word == "nvfp4_4over6":
        return [("device", "it reads nvfp4_4over6 only on compute capability 10.x")]
    if need.head_dim == 64:
        return [("heads", "its NVFP4 path here has no head size 64")]
    return [("sinks", "its NVFP4 path here has no attention sinks")] if at.sinks else []


def _words(attention: str) -> str:
    return {"full": "plain attention", "mla": "MLA", "sparse_mla": "sparse MLA"}[attention]


def _any(capabilities: Sequence[str]) -> str:
    return " or ".join(c if "." in c else f"{c}.x" for c in capabilities)
