"""What a check will take, said before it begins: tokens for each arm, and minutes at the speed that the base has now.

An estimate for the base's speed, not a promise: quantized caches are slower than f16 on llama.cpp's CPU path, reruns
that confirm a break come on top, and other programs may share the machine. The end says what it took.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kvgate.campaign.arms import PANEL, serving_order
from kvgate.campaign.context import RunContext
from kvgate.campaign.panel import outstanding as panel_outstanding
from kvgate.campaign.serving import ArmSession
from kvgate.core.engine import Speed
from kvgate.core.errors import EngineError
from kvgate.core.observation import Work
from kvgate.core.units import duration_text

#: Positions scored to see how long scoring takes; a vocabulary of 262,144 makes them 64 MiB.
_SCORED = 32


async def announce(run: RunContext, base: ArmSession, work: Mapping[str, Mapping[str, Sequence[Work]]]) -> None:
    """Print the estimate, if the driver can tell its speed; a driver that fails here says why and nothing is lost."""
    measure = getattr(run.driver, "speed", None)
    todo = sum(len(items) for per in work.values() for items in per.values())
    panel = {s.name: panel_outstanding(run, s) for s in run.suites_of(PANEL)}
    if measure is None or not (todo or any(panel.values())):
        return
    try:
        speed: Speed | None = await measure(await base.get())
    except EngineError as e:
        run.progress.note(f"cost: not estimated: {e}")
        return
    if speed is None:
        return
    total_s = _say_panel(run, speed, panel) + _say_serving(run, speed, work)
    run.estimated_s = total_s
    run.progress.note(
        f"cost: about {duration_text(total_s)} in all at the base's present speed; quantized caches can take several "
        "times as long on a CPU"
    )


def took(run: RunContext, leg_s: float) -> None:
    """Say what it took beside what was estimated."""
    if run.estimated_s:
        run.progress.note(f"cost: estimated {duration_text(run.estimated_s)}, took {duration_text(leg_s)}")


def _say_serving(run: RunContext, speed: Speed, work: Mapping[str, Mapping[str, Sequence[Work]]]) -> float:
    """One line for each suite: an arm of it, and how many arms; gives the seconds of all."""
    total_s = 0.0
    arms = [a.name for a in serving_order(run.arms)]
    for name in dict.fromkeys(suite for arm in arms for suite in work[arm]):
        each = [_seconds(run, speed, name, work[arm][name]) for arm in arms if work[arm].get(name)]
        if each:
            total_s += sum(each)
            run.progress.note(f"cost: {name}: about {duration_text(max(each))} for an arm, {len(each)} arms")
    return total_s


def _say_panel(run: RunContext, speed: Speed, panel: Mapping[str, Sequence[Work]]) -> float:
    """The same of the panel, whose arms are computed one after the other and scored against the base."""
    total_s, arms = 0.0, sum(PANEL in a.places for a in run.arms)
    for name, items in panel.items():
        if not items:
            continue
        tokens = sum(sum(_tokens(run, name, w)) for w in items)
        score_s = tokens * scoring_s(run.model.geometry.vocab_size)
        each_s = _seconds(run, speed, name, items) + score_s
        total_s += each_s * arms - score_s
        run.progress.note(f"cost: {name}: about {duration_text(each_s)} for an arm, {arms} arms side by side")
    return total_s


def _seconds(run: RunContext, speed: Speed, suite: str, items: Sequence[Work]) -> float:
    return sum(speed.seconds(*_tokens(run, suite, w)) for w in items)


def _tokens(run: RunContext, suite: str, work: Work) -> tuple[int, int]:
    cost = run.suites[suite].cost([run.cases[suite][work.case_id]], run.params[suite])
    return cost.prefill_tokens, cost.decode_tokens


def scoring_s(vocabulary: int) -> float:
    """Seconds that one position of one arm takes to score against the base, tried out on random rows."""
    import numpy as np

    from kvgate.stats.divergence import score_arms

    rows = np.random.default_rng(0).standard_normal((_SCORED, vocabulary), dtype=np.float32)
    begun = time.monotonic()
    score_arms(rows, {"arm": rows + 1}, np.zeros(_SCORED, dtype=np.int64))
    return (time.monotonic() - begun) / _SCORED
