"""Per-layer recipes: `keep=`, layers that a method leaves native by itself, and tables of recipes by layer.

`keep=` names layers that stay native: a kind (`sliding_window`, `full_attention`, any kind of the model) or a range
(`L0`, `L4-9`, both ends in). A method's own native layers (TurboQuant's first and last two) are added. What is left is
one recipe a layer, which is data: a `Mixed` table says "these layers this recipe, those another", for asymmetric and
sensitivity-driven mixes that no single recipe can spell.

    Mixed.parse({"*": "k=q8_0,v=q4_0", "L0-1,L28-29": "native", "sliding_window": "q8_0"})

Later entries win over earlier ones; "*" is every layer. Bytes per token are those of each layer's recipe.
Source: vLLM 0.32.0, --kv-cache-dtype-skip-layers (indices and "sliding_window"), turboquant/config.py; KVTuner, arXiv
2502.04420 (per-layer mixes found by sensitivity).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import Recipe, parse
from kvgate.formats.spec import KVSide
from kvgate.methods import spec
from kvgate.methods._storage import TokenStorage

_RANGE = re.compile(r"L(\d+)(?:-(\d+))?")


def layer_recipes(recipe: Recipe, geometry: ModelGeometry) -> tuple[Recipe, ...]:
    """What each layer of the model stores, in the order of `geometry.layers`: the recipe without `keep=`, or native.

    Raises:
        UserError: a selector that names no layer of this model, or an unknown method.
    """
    kept = selected(recipe.keep, geometry) | set(native_layers(recipe, geometry))
    plain = replace(recipe, keep=())
    return tuple(Recipe() if layer.index in kept else plain for layer in geometry.layers)


def native_layers(recipe: Recipe, geometry: ModelGeometry) -> tuple[int, ...]:
    """Layer numbers that the recipe's methods leave native by themselves."""
    stored = {m.name: m for m in spec.methods() if m.role == "storage"}
    count, hybrid = layers_in_all(geometry), is_hybrid(geometry)
    found: set[int] = set()
    for _, side in recipe.sides():
        if side.codec in stored:
            found |= set(stored[side.codec].native_layers(count, hybrid=hybrid))
    return tuple(sorted(found))


def layers_in_all(geometry: ModelGeometry) -> int:
    """Transformer layers of the model, also those without a cache."""
    return geometry.layer_count or 1 + max((layer.index for layer in geometry.layers), default=-1)


def is_hybrid(geometry: ModelGeometry) -> bool:
    """Whether some layers keep a recurrent state, instead of K and V or beside them."""
    return any(layer.state for layer in geometry.layers)


def selected(selectors: tuple[str, ...], geometry: ModelGeometry) -> set[int]:
    """Layer numbers that selectors of `keep=` name.

    Raises:
        UserError: a kind or a number that this model does not have; the message lists what it has.
    """
    kinds = {layer.kind for layer in geometry.layers}
    last = layers_in_all(geometry) - 1
    found: set[int] = set()
    for selector in selectors:
        numbers = _RANGE.fullmatch(selector)
        if numbers:
            first, end = int(numbers[1]), int(numbers[2] or numbers[1])
            if end > last:
                raise UserError(
                    f"keep={selector}: {geometry.name} has layers L0 to L{last}", fix=f"write up to L{last}"
                )
            found |= {layer.index for layer in geometry.layers if first <= layer.index <= end}
        elif selector in kinds:
            found |= {layer.index for layer in geometry.layers if layer.kind == selector}
        else:
            raise UserError(
                f"keep={selector}: {geometry.name} has no such layers", allowed=(*sorted(kinds), f"L0-{last}")
            )
    return found


@dataclass(frozen=True, slots=True)
class Mixed:
    """Recipes by layer.

    Attributes:
        entries: (selectors, recipe), first to last; the last entry that names a layer decides.
    """

    entries: tuple[tuple[tuple[str, ...], Recipe], ...]

    @classmethod
    def parse(cls, table: Mapping[str, str]) -> Mixed:
        """From {"*": recipe, "L0-1,sliding_window": recipe}.

        Raises:
            UserError: a recipe that does not parse, or one with its own `keep=`.
        """
        entries = []
        for selectors, text in table.items():
            recipe = parse(text)
            if recipe.keep:
                raise UserError(
                    f"mixed recipe {text!r} has its own keep=", fix="give those layers an entry of their own"
                )
            entries.append((tuple(s.strip() for s in selectors.split(",")), recipe))
        return cls(tuple(entries))

    def layers(self, geometry: ModelGeometry) -> tuple[Recipe, ...]:
        """One recipe per entry of `geometry.layers`.

        A method's own native layers are not added: a table says what each layer holds.

        Raises:
            UserError: a selector without layers, or a layer that no entry names.
        """
        found: dict[int, Recipe] = {}
        everything = {layer.index for layer in geometry.layers}
        for selectors, recipe in self.entries:
            named = everything if selectors == ("*",) else selected(selectors, geometry)
            found |= dict.fromkeys(named, recipe)
        missing = sorted(everything - set(found))
        if missing:
            names = ", ".join(f"L{i}" for i in missing[:8])
            raise UserError(f"mixed recipe says nothing about {names}", fix='add an entry "*"')
        return tuple(found[layer.index] for layer in geometry.layers)

    def as_table(self) -> dict[str, str]:
        """The reverse of `parse`."""
        return {",".join(selectors): str(recipe) for selectors, recipe in self.entries}


def sequence_bytes(
    recipes: tuple[Recipe, ...], layers: tuple[LayerGeometry, ...], tokens: int, *, native_bytes: int = 2
) -> int:
    """Bytes that a sequence of `tokens` tokens holds under one recipe a layer, states left out.

    Native layers and plain codecs are priced by the row, methods to the byte, windows of sliding layers included.
    """
    total = 0
    for recipe, layer in zip(recipes, layers, strict=True):
        held = tokens if layer.window_tokens is None else min(tokens, layer.window_tokens)
        total += _side_bytes(recipe, layer, "k", held, native_bytes) + _side_bytes(
            recipe, layer, "v", held, native_bytes
        )
    return total


def _side_bytes(recipe: Recipe, layer: LayerGeometry, kv: KVSide, tokens: int, native_bytes: int) -> int:
    dim = layer.k_dim if kv == "k" else layer.v_dim
    side = dict(recipe.sides()).get(kv)
    if not dim or not layer.kv_heads:
        return 0
    if side is None:
        return tokens * layer.kv_heads * dim * native_bytes
    storage = spec.storage_of(side, kv, spec.window_of(recipe, native_bytes=native_bytes))
    if isinstance(storage, TokenStorage):
        return storage.sequence_bytes(layer, tokens)
    return tokens * storage.slot_bytes(layer, kv) + storage.fixed_bytes(layer)
