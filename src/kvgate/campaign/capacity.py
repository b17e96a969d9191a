"""The plan of each recipe, from the codecs' sizes, and what the engine's own load log says to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvgate.campaign.arms import BASE, Arm, Role, of_role
from kvgate.core.deployment import CachePart
from kvgate.core.geometry import ModelGeometry
from kvgate.report.model import CapacityRow
from kvgate.store.rows import ArmRow

#: The log prints MiB with two decimals; anything closer than that is equal.
PRINTED_MIB = 0.005 + 1e-9


def capacity_rows(
    geometry: ModelGeometry, arms: Sequence[Arm], seen: Mapping[tuple[str, str], ArmRow]
) -> tuple[CapacityRow, ...]:
    """One row for the base and each candidate; `reported` is empty until the engine has been seen."""
    if not all(a.launch.expected.bytes_per_token for a in arms):
        return ()  # servers that somebody else runs: their model's layers are not known
    chosen = [*of_role(arms, Role.BASE), *of_role(arms, Role.CANDIDATE)]
    base_bytes = next(a for a in arms if a.name == BASE).launch.expected.bytes_per_token
    return tuple(_row(geometry, arm, base_bytes, seen) for arm in chosen)


def _row(geometry: ModelGeometry, arm: Arm, base_bytes: int, seen: Mapping[tuple[str, str], ArmRow]) -> CapacityRow:
    expected = arm.launch.expected
    row = next((r for (name, _), r in seen.items() if name == arm.name and r.deployment is not None), None)
    reported = row.deployment.consequence.parts if row is not None and row.deployment is not None else ()
    return CapacityRow(
        recipe=str(arm.recipe),
        effective=str(arm.launch.effective),
        bytes_per_token=expected.bytes_per_token,
        ratio=base_bytes / expected.bytes_per_token,
        predicted=expected.parts_mib,
        reported=reported,
        agrees=_agree(expected.parts_mib, reported) if reported else None,
        source=f"{geometry.source}; sizes from the codecs {expected.k_codec} and {expected.v_codec}",
    )


def _agree(predicted: Sequence[tuple[str, int, float, float]], reported: Sequence[CachePart]) -> bool:
    """Cells equal and MiB equal to the two decimals that the log prints, for every cache."""
    if len(predicted) != len(reported):
        return False
    return all(
        cells == part.cells and abs(k - part.k_mib) <= PRINTED_MIB and abs(v - part.v_mib) <= PRINTED_MIB
        for (_, cells, k, v), part in zip(sorted(predicted), sorted(reported, key=_order), strict=True)
    )


def _order(part: CachePart) -> tuple[str, int, float, float]:
    return (part.kind, part.cells, part.k_mib, part.v_mib)
