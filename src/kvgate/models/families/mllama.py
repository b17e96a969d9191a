"""mllama: some layers attend to an image instead of the text; their K and V are as many as the image has tokens.

`cross_attention_layers` lists them (absent: 3, 8, 13, ... 38); they keep no self-attention. Tokens of one image: tiles
x ((image_size / patch_size)^2 + 1), from `vision_config`; the published models have 4 x 1,601.
Source: transformers 5.19 configuration_mllama.py, modeling_mllama.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, attention_stack, heads, layer_count

CROSS = "cross_attention"
_EVERY, _FIRST = 5, 3
_PUBLISHED_TOKENS = 4 * 1601


@dataclass(frozen=True, slots=True)
class Mllama:
    name: str = "mllama"
    model_types: tuple[str, ...] = ("mllama", "mllama_text_model")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        listed = keys.ints("cross_attention_layers", maximum=MAX_LAYERS)
        cross = frozenset(range(_FIRST, count, _EVERY) if listed is None else listed)
        if cross and max(cross) >= count:
            raise UserError(f"cross_attention_layers names layer {max(cross)} of {count}")
        tokens, note = _image_tokens(keys)
        same = heads(keys)
        stack = attention_stack(keys, (FULL,) * count, count, lambda kind: same)
        made = tuple(
            replace(layer, kind=CROSS, fixed_tokens=tokens) if layer.index in cross else layer for layer in stack.layers
        )
        return replace(stack, layers=made, notes=(*stack.notes, note))


def _image_tokens(keys: ConfigKeys) -> tuple[int, str]:
    vision = keys.outer.get("vision_config")
    if not isinstance(vision, Mapping) or vision.get("image_size") is None:
        note = f"no vision_config: {_PUBLISHED_TOKENS:,} tokens an image, as in the published models"
        return _PUBLISHED_TOKENS, note
    sizes = ConfigKeys(vision, where="vision_config")
    side = sizes.integer("image_size", maximum=65_536) // sizes.integer("patch_size", maximum=4096)
    tiles = sizes.maybe_int("max_num_tiles", minimum=1, maximum=1024) or 4
    if side < 1:
        raise UserError("vision_config.image_size is smaller than patch_size")
    tokens = tiles * (side * side + 1)
    return tokens, f"cross attention holds one image of {tiles} tiles: {tokens:,} tokens"


CONFIG_FAMILY = Mllama()
