"""Families whose layers differ only in what they can see: one rule says which layers have a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import (
    FULL,
    SLIDING,
    WINDOWS,
    attention_stack,
    every_nth_full,
    heads,
    layer_count,
    listed_kinds,
)

#: Which layers have a window, from the keys and the number of layers, where the file has no `layer_types`.
Rule = Callable[[ConfigKeys, int], tuple[str, ...]]

_PATTERN: Final = "sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class Windowed:
    """A family of plain attention with windows.

    Attributes:
        rule: the kinds of layers where the file does not list them. note: what a reader must know of that rule, where
            the file names a window.
        ignored: keys of this family that do not shape its cache.
        defaults: sizes that the family's code gives absent keys, for files that rely on them.
    """

    name: str
    model_types: tuple[str, ...]
    rule: Rule
    note: str = ""
    ignored: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        absent = tuple(f"no {name}: {value}, as in the family's code" for name, value in self._absent(keys).items())
        found = self._layers(keys.filled(self.defaults))
        return replace(found, notes=(*found.notes, *absent))

    def _absent(self, keys: ConfigKeys) -> dict[str, int]:
        return {name: value for name, value in self.defaults.items() if name not in keys.values}

    def _layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        keys.ignore(*self.ignored)
        listed = listed_kinds(keys, count)
        kinds = self.rule(keys, count) if listed is None else listed
        keys.ignore(_PATTERN, f"_{_PATTERN}", "use_sliding_window", "max_window_layers")
        if listed is not None and SLIDING in listed and not keys.flag("use_sliding_window", True):
            raise UserError(
                "layer_types names sliding layers, and use_sliding_window is false", fix="correct one of them"
            )
        same = heads(keys)
        shown = SLIDING in kinds or (self.rule is no_windows and window_size(keys) is not None)
        notes = (self.note,) if self.note and listed is None and shown else ()
        return attention_stack(keys, kinds, count, lambda kind: same, notes=notes)


def window_size(keys: ConfigKeys) -> int | None:
    """The file's window; None where it is absent, null or 0."""
    return keys.maybe_int(*WINDOWS) or None


def every_nth(default: int) -> Rule:
    """Every n-th layer sees all tokens; n is `sliding_window_pattern` or `default`; no window, no windowed layers."""

    def rule(keys: ConfigKeys, count: int) -> tuple[str, ...]:
        if window_size(keys) is None:
            return (FULL,) * count
        pattern = keys.raw(_PATTERN)
        if isinstance(pattern, str):
            return _lettered(keys, pattern, count)
        period = keys.maybe_int(_PATTERN, f"_{_PATTERN}", minimum=1, maximum=MAX_LAYERS)
        return every_nth_full(count, default if period is None else period)

    return rule


def all_windowed(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    """All layers have the window, if the file names one and does not switch it off."""
    on = keys.flag("use_sliding_window", True) and window_size(keys) is not None
    return (SLIDING if on else FULL,) * count


def even_windowed(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    """Layers 0, 2, 4, ... have the window."""
    if window_size(keys) is None:
        return (FULL,) * count
    return tuple(SLIDING if i % 2 == 0 else FULL for i in range(count))


def no_windows(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    """No layer has a window, whatever the file names."""
    return (FULL,) * count


def from_max_window_layers(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    """Layers from `max_window_layers` on have the window, and only with `use_sliding_window` (Qwen2, Qwen3)."""
    if not keys.flag("use_sliding_window") or window_size(keys) is None:
        return (FULL,) * count
    first = keys.integer("max_window_layers", minimum=0, maximum=MAX_LAYERS)
    return tuple(SLIDING if i >= first else FULL for i in range(count))


def _lettered(keys: ConfigKeys, pattern: str, count: int) -> tuple[str, ...]:
    """Kinds from a pattern of letters, repeated: L has a window, G sees all tokens ("LLLG")."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise keys.bad(_PATTERN, pattern, "a number, or letters L (window) and G (all tokens)")
    return tuple(SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(count))
