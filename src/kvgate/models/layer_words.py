"""Per-layer words and numbers of a configuration (`layer_types`), held against the layers and the known words."""

from __future__ import annotations

from collections.abc import Collection

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.models.config_keys import ConfigKeys


def layer_words(keys: ConfigKeys, name: str, layer_count: int, known: Collection[str]) -> tuple[str, ...] | None:
    """One known word a layer; None where the key is absent.

    Raises:
        UserError: another number of entries than layers, or a word without a rule; names the layer.
    """
    words = keys.words(name)
    if words is None:
        return None
    check_length(keys, name, len(words), layer_count)
    for index, word in enumerate(words):
        if word not in known:
            raise unknown_word(keys, name, index, word, known)
    return words


def layer_numbers(keys: ConfigKeys, name: str, layer_count: int, known: Collection[int]) -> tuple[int, ...] | None:
    """One known number a layer (`attn_type_list`); None where the key is absent.

    Raises:
        UserError: another number of entries than layers, or a number without a rule; names the layer.
    """
    numbers = keys.ints(name)
    if numbers is None:
        return None
    check_length(keys, name, len(numbers), layer_count)
    for index, number in enumerate(numbers):
        if number not in known:
            raise unknown_word(keys, name, index, str(number), [str(k) for k in known])
    return numbers


def check_length(keys: ConfigKeys, name: str, entries: int, layer_count: int) -> None:
    """UserError unless there is one entry a layer."""
    if entries != layer_count:
        raise UserError(
            f"{keys.label(name)} has {entries} entries for {layer_count} layers",
            fix="give the config.json as the model's authors published it",
        )


def unknown_word(keys: ConfigKeys, name: str, index: int, word: str, known: Collection[str]) -> UserError:
    """The error for a layer whose kind has no rule."""
    return UserError(
        f"kvgate has no rule for the layer kind {one_line(word, 60)!r} ({keys.label(name)}, layer {index})",
        allowed=tuple(known),
        fix="take a version of kvgate that knows this architecture",
    )
