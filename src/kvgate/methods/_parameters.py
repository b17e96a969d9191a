"""Parameters of a method in a recipe (`kivi:bits=2:group=32`): integers with a default and stated values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One `key=value`.

    Attributes:
        allowed: all values, where they are few; empty where `low` and `high` say it.
    """

    name: str
    default: int
    allowed: tuple[int, ...] = ()
    low: int = 1
    high: int = 1

    def values(self) -> str:
        return "|".join(map(str, self.allowed)) if self.allowed else f"{self.low}..{self.high}"

    def read(self, method: str, text: str) -> int:
        """The value.

        Raises:
            UserError: not a whole number, or not allowed.
        """
        value = int(text) if re.fullmatch(r"\d{1,9}", text) else None
        ok = value is not None and (value in self.allowed if self.allowed else self.low <= value <= self.high)
        if value is None or not ok:
            raise UserError(f"{method}: {self.name}={text} is not possible", allowed=(f"{self.name}={self.values()}",))
        return value


def read_parameters(method: str, known: tuple[Parameter, ...], given: Mapping[str, str]) -> dict[str, int]:
    """All parameters of a method, defaults filled in.

    Raises:
        UserError: an unknown parameter, or a value outside its range.
    """
    names = {p.name for p in known}
    allowed = tuple(f"{p.name}={p.values()}" for p in known) or ("no parameters",)
    for key in given:
        if key not in names:
            word = given[key] if key == "scale" else f"{key}={given[key]}"
            raise UserError(f"{method} takes no {word!r}", allowed=allowed)
    return {p.name: p.read(method, given[p.name]) if p.name in given else p.default for p in known}
