"""The table of methods: what each costs by its own sizes. Command line, docs and `--json` show the same rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from inspect import cleandoc

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import KVSide
from kvgate.methods.spec import Method, methods

#: Sizes are those of a layer with so many KV heads of so many elements, without windows and sinks.
KV_HEADS, HEAD_DIMS = 8, (64, 128)
SIDES: tuple[KVSide, ...] = ("k", "v")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method in the table.

    Attributes:
        bits: (side, head_dim) -> bits per element of a long sequence, scales included; None where such heads do not
            fit, empty for a transform.
        parameters: name -> (values in words, default).
    """

    method: Method
    bits: dict[tuple[KVSide, int], float | None]
    parameters: dict[str, tuple[str, int]]

    @property
    def calibrated(self) -> bool:
        """Whether it needs tables from a calibration."""
        return bool(getattr(self.method, "calibrated", False))

    @property
    def words(self) -> str:
        """The docstring of its file."""
        return cleandoc(getattr(sys.modules.get(type(self.method).__module__), "__doc__", None) or "")

    def document(self) -> dict[str, object]:
        """The row for `--json`."""
        return {
            "name": self.method.name,
            "role": self.method.role,
            "description": self.method.description,
            "bits_per_element": {
                side: {str(dim): self.bits[side, dim] for dim in HEAD_DIMS} for side in SIDES if self.bits
            },
            "parameters": {name: {"values": v, "default": d} for name, (v, d) in self.parameters.items()},
            "calibrated": self.calibrated,
            "source": str(self.method.source),
        }


def method_row(method: Method) -> MethodRow:
    """One row, computed from the method's sizes."""
    bits = {(side, dim): _bits(method, side, dim) for side in SIDES for dim in HEAD_DIMS}
    parameters = {p.name: (p.values(), p.default) for p in getattr(method, "parameters", ())}
    return MethodRow(method, bits if method.role == "storage" else {}, parameters)


def method_rows() -> tuple[MethodRow, ...]:
    """All registered methods, in name order."""
    return tuple(method_row(m) for m in methods())


def _bits(method: Method, side: KVSide, dim: int) -> float | None:
    if method.role != "storage":
        return None
    layer = LayerGeometry(0, "full_attention", KV_HEADS, dim, dim)
    try:
        return 8 * method.storage(side, {}).slot_bytes(layer, side) / (KV_HEADS * dim)
    except UserError:
        return None
