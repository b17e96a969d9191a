"""An engine's own further settings: the words of `Serving.options`, read with their types."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kvgate.core.errors import UserError
from kvgate.core.units import GIB_BYTES

_YES, _NO = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|kb|mb|gb|tb|kib|mib|gib|tib|k|m|g|t)?", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS |= {"tib": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

#: What the planner itself tells every rule.
EVERYWHERE = ("device", "device-memory")


class Options:
    """Settings by the engine's own flag names; "--no-async-scheduling", "no_async_scheduling" are one name."""

    def __init__(self, engine: str, given: Mapping[str, str]) -> None:
        self.engine = engine
        self._given = {_name(k): v.strip() for k, v in given.items()}

    def unknown(self, known: Collection[str]) -> tuple[str, ...]:
        """A note for each setting that no rule of this engine reads."""
        read = {_name(k) for k in (*known, *EVERYWHERE)} | {_name(f"no-{k}") for k in known}
        return tuple(
            f"option {k} changes nothing that kvgate knows of {self.engine}" for k in self._given if k not in read
        )

    def text(self, name: str) -> str | None:
        return self._given.get(_name(name))

    def flag(self, name: str, default: bool) -> bool:
        """A switch; `no-NAME` is its opposite.

        Raises:
            UserError: the value is neither yes nor no.
        """
        for key, sense in ((_name(name), True), (_name(f"no-{name}"), False)):
            if key in self._given:
                word = self._given[key].lower()
                if word not in _YES + _NO:
                    raise self._error(key, "true or false")
                return (word in _YES) == sense
        return default

    def integer(self, name: str) -> int | None:
        """A count.

        Raises:
            UserError: not a whole number that is zero or more.
        """
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise self._error(name, "a whole number")
        return int(text)

    def number(self, name: str) -> float | None:
        """A number that is zero or more."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e18:
            raise self._error(name, "a number")
        return value

    def size_bytes(self, name: str) -> int | None:
        """A size: plain bytes, or with a unit ("2GiB", "500 MB")."""
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text)
        if found is None or len(text) > 40:
            raise self._error(name, "a size such as 4GiB")
        return int(float(found[1]) * _UNITS[(found[2] or "b").lower()])

    def gib(self, name: str) -> int | None:
        """A size in whole GiB, as an environment variable gives it."""
        count = self.integer(name)
        return None if count is None else count * GIB_BYTES

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Whole numbers between commas."""
        text = self.text(name)
        if text is None:
            return None
        parts = [p.strip() for p in text.split(",")]
        if not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
            raise self._error(name, "whole numbers between commas")
        return tuple(int(p) for p in parts)

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """Numbers between commas or slashes, as `--tensor-split` takes them."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return tuple(float(p) for p in re.split(r"[,/]", text))
        except ValueError:
            raise self._error(name, "numbers between commas") from None

    def _error(self, name: str, what: str) -> UserError:
        return UserError(f"{self.engine} option {name}={self._given[_name(name)]!r} is not {what}", fix=f"give {what}")


def _name(text: str) -> str:
    return text.strip().lstrip("-").replace("_", "-").lower()
