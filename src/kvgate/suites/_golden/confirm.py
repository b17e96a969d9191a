"""Which breaks count: reproduced on the arm, and absent between the base and itself.

A candidate's break is reproduced when it breaks in 3 of 5 runs, or in two runs where the rerun is bit-equal to the
first. It is confirmed when, besides, every floor arm (the base again) is clean on the same prompt.

A repair (base broken, candidate not) is counted against breaks when at least one floor arm is broken like the base.
Repairs are not rerun: with unconfirmed repairs on the other side, the McNemar test errs towards too few FAILs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvgate.core.observation import Case, PairScore, Raw, Records, Work
from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.relative import Difference, answer_key, difference
from kvgate.suites._breaks.taxonomy import Flag, public_class

MAX_RUNS = 5
NEEDED = 3


def reproduced(broken: Sequence[bool], rerun_equal: bool, runs_left: int) -> bool | None:
    """Whether a break holds: True, False, or None while reruns are missing.

    Args:
        broken: of each run that gave an answer. rerun_equal: the first two are bit-equal.
        runs_left: runs that may still come.
    """
    if not any(broken):
        return False
    if (rerun_equal and broken[0]) or sum(broken) >= NEEDED:
        return True
    return False if sum(broken) + runs_left < NEEDED else None


def answers(raws: Sequence[Raw]) -> list[Answer]:
    """The answers among raws; engine failures are none."""
    return [Answer.from_body(r.body) for r in raws if not r.error and r.body is not None]


def compare_runs(case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
    """One arm's runs of a prompt against the base's. Knows nothing of floor arms.

    A class that one of the base's own reruns shows against its first run is not held against the arm.
    """
    base, runs = answers(ref), answers(arm)
    if not base or not runs:
        return PairScore("", detail="no answer to compare")
    expect = Expect.from_body(case.body)
    noise = {f.cls for again in base[1:] for f in difference(base[0], again, expect).breaks}
    seen = [difference(base[0], run, expect) for run in runs]
    broken = [[f for f in d.breaks if f.cls not in noise] for d in seen]
    first = next((flags for flags in broken if flags), None)
    if first is None:
        repaired = bool(seen[0].repairs)
        return PairScore("", detail=_detail(seen[0], seen[0].repairs if repaired else ()), repaired=repaired)
    equal = len(runs) > 1 and answer_key(runs[0]) == answer_key(runs[1])
    holds = reproduced([bool(b) for b in broken], equal, MAX_RUNS - len(arm))
    return PairScore(public_class(first[0].cls), holds, "; ".join(str(f) for f in first))


def _detail(seen: Difference, repairs: Sequence[Flag]) -> str:
    said = [f"repaired {f}" for f in repairs]
    if seen.changed:
        where = "" if seen.first_word is None else f" from word {seen.first_word + 1} on"
        said.append(f"text differs{where}, similarity {seen.similarity:.2f}")
    return "; ".join([*said, *(str(f) for f in seen.drift)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt of one candidate after everything.

    Attributes:
        confirmed: a break that counts: reproduced, and the floor arms that answered are clean.
        undecided: reruns, or the answer of every floor arm, are missing. noisy: floor arms that break here too.
        repair: a repair that counts. base_cut: the base's first answer ran into the token limit.
    """

    case: Case
    pair: PairScore
    confirmed: bool
    undecided: bool
    noisy: tuple[str, ...]
    repair: bool
    base_cut: bool


def outcomes(records: Records, candidate: str) -> list[Outcome]:
    """Every prompt with an answer on both sides, in the order of the cases."""
    found = []
    for case_id, case in records.cases.items():
        pair = pair_of(records, candidate, case_id)
        if pair is None:
            continue
        floors = {f: p for f in records.floors if f != candidate and (p := pair_of(records, f, case_id)) is not None}
        noisy = tuple(f for f, p in floors.items() if p.break_class)
        broken = bool(pair.break_class)
        # Floor arms that were to run and gave no answer leave it open; a policy without any has nothing to ask.
        asked = bool(floors) or not records.floors
        # "Broken like the base": the floor arm did not repair what the base has broken.
        stuck = [f for f, p in floors.items() if not p.repaired]
        found.append(
            Outcome(
                case,
                pair,
                confirmed=broken and pair.confirmed is True and asked and not noisy,
                undecided=broken and not noisy and (pair.confirmed is None or (pair.confirmed and not asked)),
                noisy=noisy if broken else (),
                repair=pair.repaired and (bool(stuck) or not floors),
                base_cut=answers(records.raws[records.base, case_id])[0].cut,
            )
        )
    return found


def pair_of(records: Records, arm: str, case_id: str) -> PairScore | None:
    """The comparison of an arm with the base, made from the answers; None without an answer on both sides."""
    ref, own = records.raws.get((records.base, case_id), ()), records.raws.get((arm, case_id), ())
    if not answers(ref) or not answers(own):
        return None
    known: Mapping[tuple[str, str], PairScore] = records.pairs
    return known.get((arm, case_id)) or compare_runs(records.cases[case_id], ref, own)


def reruns(records: Records) -> list[Work]:
    """The next run of every break that is not decided, and of every arm that is short of the planned repeats."""
    work = []
    for arm in (records.base, *records.floors, *records.candidates):
        for case_id, case in records.cases.items():
            n = len(records.raws.get((arm, case_id), ()))
            if 0 < n < int(case.body.get("repeats", 1)):
                work.append(Work(arm, case_id, n))
    if work:
        return work
    for candidate in records.candidates:
        for outcome in outcomes(records, candidate):
            n = len(records.raws[candidate, outcome.case.id])
            if outcome.undecided and outcome.pair.confirmed is None and n < MAX_RUNS:
                work.append(Work(candidate, outcome.case.id, n))
    return work
