"""A clock that jumps: set back by an hour or forward by a day, in the middle of a run or between its legs."""

from __future__ import annotations

import datetime as real
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from fake_runs import spec_of

from kvgate.campaign import context as context_module
from kvgate.campaign import panel as panel_module
from kvgate.campaign import serving as serving_module
from kvgate.campaign.check import check
from kvgate.campaign.measured import keep_facts, measured_of, stored_facts
from kvgate.campaign.progress import Silent
from kvgate.store import keys as keys_module
from kvgate.store import store as store_module
from kvgate.store.open import open_store

HOUR_BACK, DAY_ON = real.timedelta(hours=-1), real.timedelta(days=1)


def set_clock(patch: pytest.MonkeyPatch, offsets: Iterator[real.timedelta]) -> None:
    """Every wall clock that a run reads: each look takes the next offset."""

    class Clock(real.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.datetime.now(tz) + next(offsets)

    for module in (context_module, panel_module, serving_module, keys_module, store_module):
        patch.setattr(module, "datetime", Clock)


class Remaining(Silent):
    """Progress that keeps the remaining times it is told."""

    def __init__(self) -> None:
        self.left_s: list[float] = []

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        if remaining_s is not None:
            self.left_s.append(remaining_s)


def test_a_run_does_not_notice_a_clock_that_jumps(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back an hour, then on a day: the same verdict and records, no negative time, no absurd estimate."""
    quiet = check(spec_of(smollm2, tmp_path / "quiet", suites=("golden", "needle")), Silent())
    jumps = chain(repeat(real.timedelta(), 12), repeat(HOUR_BACK, 12), repeat(DAY_ON))
    set_clock(monkeypatch, jumps)
    told = Remaining()
    jumpy = check(spec_of(smollm2, tmp_path / "jumpy", suites=("golden", "needle")), told)

    assert jumpy.view.duration_s < 600
    assert all(0 <= s < 600 for s in told.left_s) and told.left_s
    assert [v.records_digest for v in jumpy.view.verdicts] == [v.records_digest for v in quiet.view.verdicts]
    with open_store(str(tmp_path / "jumpy" / "kvgate.db")) as store:
        answers = [a.raw for suite in ("golden", "needle") for a in store.answered(jumpy.view.run_id, suite)]
    assert all(0 <= raw.ms < 600_000 for raw in answers)
    assert len({raw.started[:10] for raw in answers}) == 2


def test_the_facts_of_the_last_leg_count_though_its_clock_is_behind(
    fake_check: Callable[..., Any], tmp_path: Path
) -> None:
    """A leg after which the run had taken longer is a later one, whatever the clock says."""
    run_id = fake_check(suites=("needle",)).view.run_id
    with open_store(str(tmp_path / "kvgate.db")) as store:
        measured = measured_of(store, run_id)
        facts = measured.facts
        later = facts.model_copy(
            update={"duration_s": facts.duration_s + 5, "written": "2001-01-01T00:00:00.000000+00:00", "seed": 99}
        )
        keep_facts(replace(measured, facts=later))
        found = stored_facts(store, run_id)
    assert found is not None and found.seed == 99


def test_the_last_verdict_is_the_newest_though_the_clock_was_set_back(
    fake_check: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged again an hour earlier: the second judgement is what the store gives."""
    outcome = fake_check(suites=("needle",))
    first = outcome.view.verdicts[0]
    set_clock(monkeypatch, repeat(HOUR_BACK))
    with open_store(str(tmp_path / "kvgate.db")) as store:
        store.save_verdict(outcome.view.run_id, replace(first, records_digest="f" * 64, caveats=("judged again",)))
        (body,) = store.verdicts(outcome.view.run_id)
    assert body["caveats"] == ["judged again"]


def test_a_leg_that_was_killed_counts_what_its_answers_took(
    fake_check: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a killed leg only its answers are known; the duration of the resumed run is not less than they took."""
    outcome = fake_check(suites=("needle",))
    with open_store(str(tmp_path / "kvgate.db")) as store:
        took_s = sum(a.raw.ms for a in store.answered(outcome.view.run_id, "needle")) / 1e3
    assert outcome.view.duration_s >= took_s > 0
