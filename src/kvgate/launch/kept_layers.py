"""keep= of a recipe as layer numbers and kinds, held against the model."""

from __future__ import annotations

import re

from kvgate.core.errors import UserError
from kvgate.launch.commands import Ask

_LAYERS = re.compile(r"L(\d+)(?:-(\d+))?")
_MAX_LAYER = 10_000


def kept(ask: Ask) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers and kinds of the layers that stay native, as written.

    Raises:
        UserError: a layer that the model does not have, or layers kept out of a recipe that changes nothing.
    """
    if ask.recipe.keep and ask.recipe.is_native:
        raise UserError(f"KV recipe {str(ask.recipe)!r} keeps layers native in a native cache", fix="leave keep= out")
    numbers: list[int] = []
    kinds: list[str] = []
    for selected in ask.recipe.keep:
        match = _LAYERS.fullmatch(selected)
        if match is None:
            kinds.append(selected)
            continue
        first, last = int(match[1][:9]), int((match[2] or match[1])[:9])
        count = ask.geometry.layer_count or len(ask.geometry.layers) or _MAX_LAYER
        if last >= count:
            raise UserError(f"keep={selected}: the model has layers 0 to {count - 1}", fix="count from 0")
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers)), tuple(dict.fromkeys(kinds))


def refuse_kept(ask: Ask, engine: str) -> None:
    """For engines with one type for all layers.

    Raises:
        UserError: the recipe keeps layers.
    """
    if ask.recipe.keep:
        raise UserError(f"{engine} has one KV type for all layers", fix="leave keep= out")
