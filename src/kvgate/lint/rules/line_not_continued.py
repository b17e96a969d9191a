"""A backslash with blanks behind it: the shell ends the command there, and what follows is no option of it."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.read.argv import BLANK
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject


def _blank(s: Subject) -> Iterator[Hit]:
    last = s.command.settings[-1] if s.command.settings else None
    if last is not None and last.key == BLANK:
        yield Hit("the line ends in a backslash and a blank, so the command ends here", last.place)


RULE = Rule(
    "line-not-continued",
    frozenset(),
    "error",
    "a backslash with a blank behind it does not continue the line",
    "the options below it are not given to the engine: it starts without them",
    "take the blank away",
    Source("spec", "POSIX shell, 2.2.1: only a newline right behind the backslash continues the line"),
    _blank,
    timeless=True,
)
