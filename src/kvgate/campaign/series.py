"""Several models, one check after the other. A model whose check breaks off does not stop the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.prepare import prepare
from kvgate.campaign.progress import Progress
from kvgate.campaign.spec import CheckSpec
from kvgate.core.errors import KvgateError
from kvgate.core.verdict import SEVERITY, Decision


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: its outcome, or why there is none (which counts as INVALID)."""

    model: str
    outcome: Outcome | None
    error: str = ""

    @property
    def decision(self) -> Decision:
        """The worst of its candidates."""
        if self.outcome is None:
            return Decision.INVALID
        found = [v.decision for v in self.outcome.view.verdicts]
        return max(found, key=SEVERITY.index, default=Decision.INVALID)

    @property
    def exit_code(self) -> int:
        return self.decision.exit_code


@dataclass(frozen=True, slots=True)
class Series:
    """All models in the order they were given."""

    entries: tuple[Entry, ...]

    @property
    def exit_code(self) -> int:
        return max((e.decision for e in self.entries), key=SEVERITY.index).exit_code


def check_series(specs: Sequence[CheckSpec], progress: Progress) -> Series:
    """Check every model.

    Raises:
        UserError: any of them cannot be checked as asked; nothing has been started then.
    """
    for spec in specs:
        prepare(spec)
    entries = []
    for number, spec in enumerate(specs, start=1):
        progress.note(f"model {number} of {len(specs)}: {spec.model}")
        try:
            entries.append(Entry(spec.model, check(spec, progress)))
        except KvgateError as e:
            progress.note(f"{spec.model}: {e}")
            entries.append(Entry(spec.model, None, str(e)))
    return Series(tuple(entries))
