"""What a model caches per token and layer, and the files it came from. Pure values; reading is in `models/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvgate.core.source import Source


@dataclass(frozen=True, slots=True)
class StatePart:
    """A state of fixed size that one sequence keeps in one layer: a convolution's last inputs, a recurrent matrix.

    Attributes:
        name: "conv", "ssm", ...
        elements: of one sequence on one rank that holds the whole layer (TP 1).
        dtype: "native" (the model's compute dtype) or a codec id ("f32"), as the model's configuration or engine says.
        tp_units: what tensor parallelism divides (heads, groups); 0 is kept whole by every rank.
        dtype_source: where `dtype` is known from; empty where it is an assumption, which reports say.
    """

    name: str
    elements: int
    dtype: str = "native"
    tp_units: int = 0
    dtype_source: str = ""


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One cache of one layer. A layer with two caches (a window and compressed rows) appears twice, same index.

    Attributes:
        index: layer number in the model.
        kind: "full_attention", "sliding_window", ... (the field's words; `keep=` in a recipe selects by it). "mla" and
            "sparse_mla" keep one latent vector and no V (v_dim 0), whole on every rank.
        kv_heads: KV heads of this layer; 0 where only a state is kept.
        k_dim, v_dim: elements per head of K and of V.
        window_tokens: tokens this layer can see; None is all of them.
        rope_dim: the last elements of an MLA row, which packed formats keep in 16 bits; 0 elsewhere.
        index_bytes_per_token: a sparse indexer's own row beside K and V, in a format that the recipe does not set.
        tokens_per_row: tokens that share one stored row (compressed attention); 1 everywhere else.
        fixed_tokens: rows of a cache that does not grow (cross attention: the source's tokens); else None.
        state: states of fixed size beside, or instead of, K and V.
        chunked: the window is a chunk that starts anew (Llama 4), not a sliding one.
    """

    index: int
    kind: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int | None = None
    rope_dim: int = 0
    index_bytes_per_token: int = 0
    tokens_per_row: int = 1
    fixed_tokens: int | None = None
    state: tuple[StatePart, ...] = ()
    chunked: bool = False

    @property
    def grows(self) -> bool:
        """Whether a longer sequence takes more room here, past every window."""
        return self.window_tokens is None and self.fixed_tokens is None and self.has_rows

    @property
    def has_rows(self) -> bool:
        """Whether rows per token are kept at all (a recurrent layer has only states)."""
        return self.kv_heads > 0 or self.index_bytes_per_token > 0

    @property
    def is_latent(self) -> bool:
        """One vector for all heads (MLA): tensor parallelism does not divide it."""
        return self.kind in ("mla", "sparse_mla")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """All KV layers of a model.

    Attributes:
        name: the model's own name.
        architecture: family word of the file ("llama", "gemma3").
        layers: layers with a cache or a state, in order.
        context_tokens: what the model was trained for.
        vocab_size: entries of the output distribution; 0 where the file does not say.
        layer_count: transformer layers in all, those without a cache too (pipeline stages are cut by it); 0 is unknown.
        mtp_layers: layers of multi-token prediction; cached only while speculation is on.
        native_dtype: codec id of the compute dtype ("bf16"); empty where the file does not say.
        kv_scheme: what the checkpoint itself asks of the KV cache ("fp8_e4m3"), so that an engine's `auto` follows it;
            empty for none.
        family: name of the rule that made this table.
        notes: what the reader must know of this table (an assumption, an absent key's default).
    """

    name: str
    architecture: str
    layers: tuple[LayerGeometry, ...]
    context_tokens: int
    vocab_size: int
    source: Source
    layer_count: int = 0
    mtp_layers: tuple[LayerGeometry, ...] = ()
    native_dtype: str = ""
    kv_scheme: str = ""
    family: str = ""
    notes: tuple[str, ...] = ()


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
