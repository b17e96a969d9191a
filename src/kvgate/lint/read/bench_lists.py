"""llama-bench takes lists (`-ctk f16,q8_0`) and runs every combination: each is a command of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

from kvgate.lint.command import Command, Setting

_PROGRAM = "llama-bench"
_KEYS = ("k_dtype", "v_dtype", "flash_attention")
#: Combinations that are looked at.
_MAX = 64


def one_by_one(command: Command) -> tuple[Command, ...]:
    """The commands that a benchmark of lists runs; any other command is itself."""
    if not command.program.startswith(_PROGRAM):
        return (command,)
    lists = [_values(setting) for setting in command.settings]
    if all(len(values) == 1 for values in lists):
        return (command,)
    return tuple(replace(command, settings=settings) for settings in islice(product(*lists), _MAX))


def _values(setting: Setting) -> tuple[Setting, ...]:
    if setting.key not in _KEYS or setting.opaque or "," not in setting.value:
        return (setting,)
    return tuple(replace(setting, value=word) for word in dict.fromkeys(setting.value.split(",")))
