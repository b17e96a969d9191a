"""Configurations that a person has abridged: per-layer lists given in words, as in tables of model sizes.

Understood: `<key>_summary` with counts ("36 mamba, 4 attention"; for `block_configs` "49 with
attention.n_heads_in_group=8, 31 with attention.no_op=true"), and a rule in the place of a list of numbers ("1 when
(layer+1)%8==0 else 0"). A count does not say which layers are which: sums are exact, pipeline stages are not, and a
note says so. Anything else in words is left as it is, for the family to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvgate.models.config_keys import MAX_LAYERS, TEXT_PARTS

_SUMMARY: Final = "_summary"
_MAX_CHARS: Final = 1000
_COUNT: Final = re.compile(r"(\d{1,5}) ([A-Za-z_]{2,40})")
_BLOCKS: Final = re.compile(r"(\d{1,5}) with attention\.(n_heads_in_group|no_op|replace_with_linear)=(\d{1,5}|true)")
_RULE: Final = re.compile(r"(\d{1,5}) (?:when|if) \((?:layer|i)\s?\+\s?1\)\s?%\s?(\d{1,4})\s?==\s?0 else (\d{1,5})")


def written_out(config: Mapping[str, object]) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """The configuration with its abridged lists written out, and a note for each."""
    made, notes = dict(config), list[str]()
    for part in TEXT_PARTS:
        inner = made.get(part)
        if isinstance(inner, Mapping):
            made[part], found = written_out(inner)
            notes += found
    for name, value in config.items():
        if not isinstance(value, str) or len(value) > _MAX_CHARS:
            continue
        key = name.removesuffix(_SUMMARY)
        if key != name and config.get(key) is None:
            listed = _blocks(value) if key == "block_configs" else _counted(value)
            if listed is not None:
                made[key] = listed
                made.pop(name)
                notes.append(f"{name} counts layers and does not say which they are: pipeline stages are not exact")
        elif key == name:
            numbers = _ruled(value, config.get("num_hidden_layers"))
            if numbers is not None:
                made[name] = numbers
                notes.append(f"{name} is written out from the rule {value!r}")
    return made, tuple(notes)


def _counted(text: str) -> list[object] | None:
    """["mamba", "mamba", ..., "attention"] for "36 mamba, 4 attention"; None for other words."""
    listed: list[object] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece.strip())
        if match is None or len(listed) + int(match[1]) > MAX_LAYERS:
            return None
        listed += [match[2]] * int(match[1])
    return listed


def _blocks(text: str) -> list[object] | None:
    """Blocks of an architecture search from counts of their attentions."""
    listed: list[object] = []
    for number, key, value in _BLOCKS.findall(text):
        if len(listed) + int(number) > MAX_LAYERS:
            return None
        listed += [{"attention": {key: True if value == "true" else int(value)}}] * int(number)
    return listed or None


def _ruled(text: str, layers: object) -> list[object] | None:
    """One number a layer from "1 when (layer+1)%8==0 else 0"."""
    match = _RULE.fullmatch(text.strip())
    if match is None or not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS or int(match[2]) < 1:
        return None
    hit, period, other = int(match[1]), int(match[2]), int(match[3])
    return [hit if (i + 1) % period == 0 else other for i in range(layers)]
