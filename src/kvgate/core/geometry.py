"""What a model caches per token and layer, and the files it came from. Pure values; reading is in `models/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvgate.core.source import Source


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer that holds a KV cache.

    Attributes:
        index: layer number in the model.
        kind: "full_attention", "sliding_window", ... (the field's words; `keep=` in a recipe selects by it).
        kv_heads: KV heads of this layer.
        k_dim, v_dim: elements per head of K and of V.
        window_tokens: tokens this layer can see; None is all of them.
    """

    index: int
    kind: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """All KV layers of a model.

    Attributes:
        name: the model's own name.
        architecture: family word of the file ("llama", "gemma3").
        layers: layers with a cache, in order.
        context_tokens: what the model was trained for.
        vocab_size: entries of the output distribution.
    """

    name: str
    architecture: str
    layers: tuple[LayerGeometry, ...]
    context_tokens: int
    vocab_size: int
    source: Source


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk, ready for an engine.

    Attributes:
        name: what reports call it.
        path: the GGUF file (or, later, the folder).
        digest: sha256 of the weights file.
        tokenizer_digest, template_digest: sha256 of the tokenizer's and chat template's metadata; None if absent.
        weights_dtype: as the file says ("Q4_1").
        modified_ns: the file's time of change when it was read; None if nobody looked.
    """

    name: str
    path: Path
    geometry: ModelGeometry
    digest: str
    tokenizer_digest: str | None
    template_digest: str | None
    weights_dtype: str
    size_bytes: int
    modified_ns: int | None = None
