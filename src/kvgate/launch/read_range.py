"""Notes on versions: what was read, and what was not, so that nobody takes an unread release for a known one."""

from __future__ import annotations

from kvgate.enginefacts.facts import EngineFacts
from kvgate.enginefacts.versions import Holds, holds, range_words, version_of


def version_notes(version: str, facts: EngineFacts) -> tuple[str, ...]:
    """What a person must know of the version that they named, or did not name.

    Raises:
        UserError: it is no version of this engine.
    """
    engine = facts.engine
    if not version:
        return (f"no --engine-version: written for {facts.newest}",)
    key = version_of(version, engine)
    if holds(key, facts.known_since, facts.known_until, engine) is not Holds.YES:
        return (f"{engine} {version} has not been read ({range_words(facts.known_since, facts.known_until)} has)",)
    if holds(key, facts.newest, "", engine) is not Holds.YES:
        return (
            f"options and kernels are those of {engine} {facts.newest}, the release that was read in full; "
            f"{version} may spell them otherwise or lack them",
        )
    return ()
