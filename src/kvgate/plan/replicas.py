"""What a rollback costs: replicas that carry the same sequences in another recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rollback:
    """Going back from a recipe to the native one, at the load that the recipe carries when it is full.

    Attributes:
        replicas: how many run now. ratio: sequences of the recipe over native sequences; None if native holds none.
        needed: replicas after the rollback; None where native does not hold one sequence.
    """

    replicas: int
    ratio: float | None
    needed: int | None


def rollback(sequences: int, native_sequences: int, replicas: int = 1) -> Rollback:
    """Replicas in the native recipe that carry `replicas` full replicas of another one."""
    if native_sequences <= 0:
        return Rollback(replicas, None, None)
    return Rollback(replicas, sequences / native_sequences, -(-replicas * sequences // native_sequences))
