"""What a rule is: an id, a severity, what it says, where it holds, and a check of one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvgate.core.source import Source
from kvgate.enginefacts.versions import range_words
from kvgate.lint.command import Place

if TYPE_CHECKING:
    from kvgate.lint.subject import Subject

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule holds. Empty fields are the rule's own."""

    message: str
    where: Place | None = None
    severity: Severity | None = None
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: id of its findings. engines: where it applies; empty is every one.
        title: what it says, for the table of rules. why, fix: one sentence each.
        check: gives the places where it holds; only what is known counts, so an unknown model or device gives none.
        since, until: versions for which it is known to hold, the last one outside. Without a version it is applied as
            for the newest that was read.
        newest_only: its table was read in the newest version alone, so that another version makes an error a warning.
        timeless: it says something about a file, so a version that nobody has read changes nothing.
    """

    name: str
    engines: frozenset[str]
    severity: Severity
    title: str
    why: str
    fix: str
    source: Source
    check: Callable[[Subject], Iterable[Hit]]
    since: str = ""
    until: str = ""
    timeless: bool = False
    newest_only: bool = False

    @property
    def versions(self) -> str:
        """The range in words."""
        if self.newest_only and not self.since and not self.until:
            return f"as read in {self.source.version or 'the newest version'}"
        return range_words(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a person reads."""

    id: str
    severity: Severity
    message: str
    why: str
    fix: str
    where: Place
    versions: str
    source: str
    engine: str = ""
