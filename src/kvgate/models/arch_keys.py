"""The metadata of one architecture, read with types and bounds: "attention.head_count" of "llama" and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.read_gguf import SkippedArray, Value

#: llama.cpp's own bound on layers.
MAX_LAYERS = 512
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ArchKeys:
    """Keys under "<architecture>." of a GGUF file.

    Attributes:
        architecture: `general.architecture`. values: all metadata of the file.
    """

    architecture: str
    values: Mapping[str, Value]

    def names(self) -> tuple[str, ...]:
        """Names of this architecture's keys, without the prefix."""
        prefix = f"{self.architecture}."
        return tuple(k.removeprefix(prefix) for k in self.values if k.startswith(prefix))

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.values

    def maybe_int(self, name: str) -> int | None:
        """A count, or None if the file does not say.

        Raises:
            UserError: not a whole number between 0 and 2**31 - 1.
        """
        value = self.values.get(f"{self.architecture}.{name}")
        return None if value is None else self._checked(name, value)

    def integer(self, name: str) -> int:
        """A count that the file must give.

        Raises:
            UserError: missing or not a count.
        """
        value = self.maybe_int(name)
        if value is None:
            raise UserError(f"the GGUF metadata lacks {self.architecture}.{name}", fix="convert the model again")
        return value

    def per_layer(self, name: str, layers: int) -> tuple[int, ...] | None:
        """One count a layer, from a number for all or an array with at least `layers` entries; None if absent.

        Raises:
            UserError: another type, or too few entries.
        """
        value = self.values.get(f"{self.architecture}.{name}")
        if value is None:
            return None
        if not isinstance(value, tuple):
            return (self._checked(name, value),) * layers
        if len(value) < layers:
            raise UserError(f"{self.architecture}.{name} has {len(value)} entries for {layers} layers")
        return tuple(self._checked(name, v) for v in value[:layers])

    def flag(self, name: str, default: bool) -> bool:
        """A boolean key, or `default`."""
        value = self.values.get(f"{self.architecture}.{name}", default)
        if not isinstance(value, bool):
            raise UserError(f"{self.architecture}.{name} is {value!r}, not true or false")
        return value

    def _checked(self, name: str, value: Value) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INT:
            shown = f"an array of {value.count}" if isinstance(value, SkippedArray) else repr(value)[:60]
            raise UserError(f"{self.architecture}.{name} is {shown}, not a count")
        return value
