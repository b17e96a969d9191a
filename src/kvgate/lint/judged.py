"""Verdicts of a store, as the linter needs them; the command line reads them, since lint itself opens no store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict: on which model and engine (empty is not recorded), which recipe, and what was decided."""

    model: str
    engine: str
    candidate: str
    decision: str
    run: str = ""

    def is_about(self, model: str, engine: str, k: str, v: str) -> bool:
        """Whether it judged these codecs on this model and engine. Options of the recipe (keep=) do not count."""
        if _plain(self.model) != _plain(model) or (self.engine and self.engine != engine):
            return False
        try:
            recipe = parse(self.candidate)
        except UserError:
            return False
        return recipe.k is not None and recipe.v is not None and (recipe.k.codec, recipe.v.codec) == (k, v)


def _plain(name: str) -> str:
    """Models by the last part of their name, without a GGUF file's ending; case does not count."""
    return PurePath(name.strip().lower()).name.removesuffix(".gguf")
