"""Which caches a recipe's `keep=` leaves native: layer kinds by name, layer numbers by range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry

_RANGE = re.compile(r"L(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Kept:
    """Kinds and layer numbers that stay native. A layer with two caches is kept by number as a whole."""

    kinds: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()

    def covers(self, layer: LayerGeometry) -> bool:
        return layer.kind in self.kinds or layer.index in self.numbers


def kept(selectors: Iterable[str], geometry: ModelGeometry, layers: Sequence[LayerGeometry]) -> Kept:
    """Read `keep=` selectors against one model.

    Args:
        layers: the layers that are priced (the model's own, and those of multi-token prediction if they are on).

    Raises:
        UserError: a kind that this model does not have, or a layer number past its last layer.
    """
    kinds, numbers = set[str](), set[int]()
    known = tuple(sorted({layer.kind for layer in layers}))
    count = layer_count(geometry, layers)
    for selector in selectors:
        found = _RANGE.fullmatch(selector)
        if found is None:
            if selector not in known:
                raise UserError(f"keep={selector}: {geometry.name} has no layers of that kind", allowed=known)
            kinds.add(selector)
            continue
        first, last = int(found[1]), int(found[2] or found[1])
        if last >= count or last < first:
            raise UserError(f"keep={selector}: {geometry.name} has the layers L0 to L{count - 1}", fix="name those")
        numbers.update(range(first, last + 1))
    return Kept(frozenset(kinds), frozenset(numbers))


def layer_count(geometry: ModelGeometry, layers: Sequence[LayerGeometry]) -> int:
    """Layers in all, those without a cache too; at least what the table itself numbers."""
    return max(geometry.layer_count, 1 + max((layer.index for layer in layers), default=-1))
