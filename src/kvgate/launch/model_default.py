"""What an engine does by itself for a kind of model on a device: rows `[[default]]` named "KEY of WHAT on WHERE".

WHAT is a model type with * and ?, a kind of layer, or a word of the key's own; WHERE is "9.0", "10.x", several with
commas, or a vendor. Without WHERE a row holds everywhere.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from kvgate.enginefacts.facts import DefaultRow, EngineFacts
from kvgate.launch.commands import Ask

_NAME = re.compile(r"(?P<key>\w+) of (?P<what>\S+)(?: on (?P<where>.+))?")


def own_kv_word(facts: EngineFacts, ask: Ask) -> str:
    """The word that `auto` becomes for this model, whatever its checkpoint says; "" where it becomes nothing else."""
    kinds = {y.kind for y in ask.geometry.layers}
    row = default_of(facts, "kv_dtype", ask, (ask.model_type, *sorted(kinds)))
    return row.value if row is not None else ""


def default_of(facts: EngineFacts, key: str, ask: Ask, words: tuple[str, ...]) -> DefaultRow | None:
    """The first row of a key that fits one of the words and the device."""
    for row in facts.default:
        match = _NAME.fullmatch(row.name)
        if match is None or match["key"] != key or not any(fnmatchcase(w, match["what"]) for w in words):
            continue
        if match["where"] is None or any(_on(ask, place.strip()) for place in match["where"].split(",")):
            return row
    return None


def _on(ask: Ask, place: str) -> bool:
    if place in ("nvidia", "amd", "cpu", "intel"):
        return ask.vendor == place
    if ask.vendor != "nvidia":
        return False
    return ask.capability == place or (place.endswith(".x") and ask.capability.split(".")[0] == place[:-2])
