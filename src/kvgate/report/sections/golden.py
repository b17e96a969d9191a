"""Golden prompts: what broke, and the two texts beside each other with the first difference marked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgate.core.observation import Case, PairScore, Raw, Records
from kvgate.report.model import RunView
from kvgate.report.visible import excerpt, first_difference, one_line

#: Characters of one text that are shown around its first difference; drift without a break gets less.
_BREAK_CHARS, _DRIFT_CHARS, _PROMPT_CHARS = 2400, 500, 600
#: All texts of one report together. 250 prompts on two candidates must stay a page that opens on a phone.
_BUDGET_CHARS = 900_000
_DRIFTS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One text: cut before, equal part, differing part, cut after. All parts are visible text."""

    title: str
    cut_before: int
    same: str
    differs: str
    cut_after: int
    finish: str


@dataclass(frozen=True, slots=True)
class Diff:
    """One case of one candidate."""

    title: str
    category: str
    critical: bool
    prompt: str
    break_class: str
    confirmed: str
    detail: str
    floors: str
    at: int
    base: Side
    arm: Side


@dataclass(frozen=True, slots=True)
class GoldenView:
    """One candidate's golden run.

    Attributes:
        identical, drifted, broken, repaired, failed: prompts; they add up to `prompts` except that repaired ones are
            also counted as drifted. Failed are those without an answer on one side.
        classes: (class, confirmed, not confirmed, undecided).
        breaks, drifts: what is shown; `hidden` counts the differing cases that are not.
    """

    candidate: str
    prompts: int
    identical: int
    drifted: int
    broken: int
    repaired: int
    failed: int
    classes: tuple[tuple[str, int, int, int], ...]
    breaks: tuple[Diff, ...]
    drifts: tuple[Diff, ...]
    hidden: int


def golden_views(view: RunView, *, outputs: bool) -> list[GoldenView]:
    """Every candidate of every suite that compared texts; without `outputs` the texts, prompts and details stay out."""
    budget = [_BUDGET_CHARS]
    return [
        _candidate(records, c, outputs, budget)
        for records in view.records.values()
        if _has_texts(records)
        for c in view.candidates
        if c in records.candidates
    ]


def _has_texts(records: Records) -> bool:
    """Texts that were compared. Needles have a map of their own, and their prompts are haystacks."""
    needles = any("depth" in c.body for c in records.cases.values())
    texts = any("text" in (raw.body or {}) for raws in records.raws.values() for raw in raws)
    return bool(records.pairs) and texts and not needles


def _candidate(records: Records, candidate: str, outputs: bool, budget: list[int]) -> GoldenView:
    counts: Counter[str] = Counter()
    classes: dict[str, Counter[bool | None]] = {}
    broken: list[tuple[Case, PairScore]] = []
    drifted: list[tuple[Case, PairScore]] = []
    for case_id, case in records.cases.items():
        pair = records.pairs.get((candidate, case_id))
        if pair is None:
            continue
        counts["prompts"] += 1
        counts["repaired"] += pair.repaired
        base, arm = _answers(records, candidate, case_id)
        if pair.break_class:
            counts["broken"] += 1
            classes.setdefault(pair.break_class, Counter())[_counts(records, case_id, pair)] += 1
            broken.append((case, pair))
        elif base is None or arm is None:
            counts["failed"] += 1
        elif base == arm:
            counts["identical"] += 1
        else:
            counts["drifted"] += 1
            drifted.append((case, pair))
    broken.sort(key=lambda cp: (not _critical(cp[0]), cp[1].confirmed is not True, cp[1].break_class))
    shown = [_diff(records, candidate, c, p, _BREAK_CHARS, budget) for c, p in broken] if outputs else []
    drifts = (
        [_diff(records, candidate, c, p, _DRIFT_CHARS, budget) for c, p in drifted[:_DRIFTS_SHOWN]] if outputs else []
    )
    breaks, drift = [d for d in shown if d], [d for d in drifts if d]
    return GoldenView(
        candidate,
        counts["prompts"],
        counts["identical"],
        counts["drifted"],
        counts["broken"],
        counts["repaired"],
        counts["failed"],
        tuple((name, n[True], n[False], n[None]) for name, n in sorted(classes.items())),
        tuple(breaks),
        tuple(drift),
        counts["broken"] + counts["drifted"] - len(breaks) - len(drift) if outputs else 0,
    )


def answer_text(raw: Raw) -> str | None:
    """The text of an answer with its tool calls; None if there was no answer."""
    if raw.body is None or raw.error:
        return None
    text = str(raw.body.get("text") or "")
    calls = raw.body.get("tool_calls")
    if calls:
        text += ("\n" if text else "") + "[tool calls] " + json.dumps(calls, ensure_ascii=False, indent=1)
    return text


def _answers(records: Records, candidate: str, case_id: str) -> tuple[str | None, str | None]:
    """The base's first answer, and the candidate's first that differs from it (its first, if none does)."""
    base = _texts(records.raws.get((records.base, case_id), ()))
    arm = _texts(records.raws.get((candidate, case_id), ()))
    first = base[0] if base else None
    return first, next((t for t in arm if t != first), arm[0] if arm else None)


def _texts(raws: Sequence[Raw]) -> list[str]:
    return [t for raw in raws if (t := answer_text(raw)) is not None]


def _diff(records: Records, candidate: str, case: Case, pair: PairScore, limit: int, budget: list[int]) -> Diff | None:
    base, arm = _answers(records, candidate, case.id)
    if budget[0] <= 0:
        return None
    at = first_difference(base or "", arm or "")
    sides = (
        _side("base", base, at, limit, records.raws.get((records.base, case.id), ())),
        _side(candidate, arm, at, limit, records.raws.get((candidate, case.id), ())),
    )
    prompt = excerpt(_prompt(case.body), 0, _PROMPT_CHARS)
    budget[0] -= len(prompt.text) + sum(len(s.same) + len(s.differs) for s in sides)
    return Diff(
        _title(case),
        case.category,
        _critical(case),
        prompt.text + (f" … {prompt.after:,} more characters" if prompt.after else ""),
        pair.break_class,
        _confirmed(records, case.id, pair),
        one_line(pair.detail),
        _floors(records, case.id),
        at,
        *sides,
    )


def _side(title: str, text: str | None, at: int, limit: int, raws: Sequence[Raw]) -> Side:
    if text is None:
        error = next((raw.error for raw in raws if raw.error), "no answer recorded")
        return Side(title, 0, "", f"[no answer: {one_line(error)}]", 0, "")
    cut = excerpt(text, at, limit)
    split = max(0, at - cut.before)
    shown = text[cut.before : len(text) - cut.after]
    same, differs = excerpt(shown[:split], 0, limit).text, excerpt(shown[split:], 0, limit).text
    finish = next((str(r.body.get("finish_reason") or "") for r in raws if r.body is not None), "")
    return Side(title, cut.before, same, differs, cut.after, one_line(finish, 40))


def _dirty_floors(records: Records, case_id: str) -> list[str]:
    pairs = [(arm, records.pairs.get((arm, case_id))) for arm in records.floors]
    return [f"{arm}: {pair.break_class}" for arm, pair in pairs if pair is not None and pair.break_class]


def _counts(records: Records, case_id: str, pair: PairScore) -> bool | None:
    """Whether a break counts: reproduced, and every floor arm clean. None while reruns do not decide."""
    return False if _dirty_floors(records, case_id) else pair.confirmed


def _confirmed(records: Records, case_id: str, pair: PairScore) -> str:
    if not pair.break_class:
        return "repaired" if pair.repaired else "text differs, nothing broke"
    if _dirty_floors(records, case_id):
        return "not counted: the base breaks against itself here"
    return {True: "confirmed by reruns", False: "not confirmed by reruns", None: "reruns do not decide yet"}[
        pair.confirmed
    ]


def _floors(records: Records, case_id: str) -> str:
    dirty = _dirty_floors(records, case_id)
    ran = sum((arm, case_id) in records.pairs for arm in records.floors)
    if dirty:
        return "broken on floor arms (" + ", ".join(dirty) + ")"
    return f"clean on {ran} floor arm{'s' if ran != 1 else ''}" if ran else "no floor arm ran this"


def _critical(case: Case) -> bool:
    tags = case.body.get("tags", ())
    return bool(case.body.get("critical")) or (isinstance(tags, list | tuple) and "critical" in tags)


def _title(case: Case) -> str:
    name = case.body.get("name") or case.body.get("id") or case.cluster or case.id
    return one_line(str(name), 80)


def _prompt(body: Mapping[str, Any]) -> str:
    """The last user message, or the prompt."""
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        users = [m for m in messages if isinstance(m, Mapping) and m.get("role") == "user"]
        content = users[-1].get("content") if users else ""
        if isinstance(content, list | tuple):
            return "\n".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in content)
        return str(content or "")
    return str(body.get("prompt") or "")
