"""Ideal bytes of a recipe on a model: per token, growing, fixed, and of one sequence of a given length.

"Ideal" counts what the codec stores and nothing else: no padding, no paging. What an engine reserves is in
`plan/engine_rules/`. All sizes come from the codecs.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """Sizes of one recipe on one model.

    Attributes:
        recipe: the recipe as reports write it.
        bytes_per_token: all layers, for a token that lies inside all windows.
        growth_bytes_per_token: layers without a window only; what each token past the windows costs.
        fixed_bytes_per_sequence: bytes that do not depend on the length.
        source: where the layer table came from.
    """

    recipe: str
    bytes_per_token: int
    growth_bytes_per_token: int
    fixed_bytes_per_sequence: int
    source: Source

    def ratio(self, base: RecipePlan) -> float:
        """How many times more tokens fit than with `base`: 2.0 is twice as many. Inside all windows."""
        return base.bytes_per_token / self.bytes_per_token


def plan_recipe(geometry: ModelGeometry, k_codec: CodecSpec, v_codec: CodecSpec, *, recipe: str = "") -> RecipePlan:
    """Sizes of K in one codec and V in another.

    Args:
        recipe: what to call it; by default the codecs' names in recipe grammar.

    Raises:
        UserError: the model has no KV layers, or a head is not a multiple of a codec's block.
    """
    if not geometry.layers:
        raise UserError(f"{geometry.name} has no layers with a KV cache", fix="choose a model with attention layers")
    name = recipe or (k_codec.name if k_codec == v_codec else f"k={k_codec.name},v={v_codec.name}")
    per_layer = [(layer, _slot_bytes(layer, k_codec, v_codec)) for layer in geometry.layers]
    return RecipePlan(
        recipe=name,
        bytes_per_token=sum(size for _, size in per_layer),
        growth_bytes_per_token=sum(size for layer, size in per_layer if layer.window_tokens is None),
        fixed_bytes_per_sequence=_fixed_bytes(geometry, k_codec, v_codec),
        source=geometry.source,
    )


def sequence_bytes(geometry: ModelGeometry, k_codec: CodecSpec, v_codec: CodecSpec, *, context_tokens: int) -> int:
    """Bytes of one sequence of `context_tokens` tokens; a layer with a window keeps at most the window.

    Raises:
        UserError: a negative length, or a head is not a multiple of a codec's block.
    """
    if context_tokens < 0:
        raise UserError(f"a sequence of {context_tokens} tokens does not exist")
    total = _fixed_bytes(geometry, k_codec, v_codec)
    for layer in geometry.layers:
        held = context_tokens if layer.window_tokens is None else min(context_tokens, layer.window_tokens)
        total += held * _slot_bytes(layer, k_codec, v_codec)
    return total


def _slot_bytes(layer: LayerGeometry, k: CodecSpec, v: CodecSpec) -> int:
    return k.slot_bytes(layer, "k") + v.slot_bytes(layer, "v")


def _fixed_bytes(geometry: ModelGeometry, k: CodecSpec, v: CodecSpec) -> int:
    return sum(codec.fixed_bytes(layer) for layer in geometry.layers for codec in (k, v))
