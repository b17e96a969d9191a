"""Sliding windows: how many cases went past them, for the report."""

from __future__ import annotations

from kvgate.campaign.measured import Measured
from kvgate.core.geometry import ModelGeometry
from kvgate.core.observation import Case


def largest_window(geometry: ModelGeometry) -> int:
    """Tokens of the model's largest window; 0 where every layer that has a cache sees all."""
    return max((layer.window_tokens or 0 for layer in geometry.layers), default=0)


def past_window(run: Measured) -> tuple[str, ...]:
    """One line on a model with windows: the cases that are longer than its largest window; none for other models."""
    geometry = run.facts.model.geometry
    window = largest_window(geometry)
    if not window:
        return ()
    windowed = len({layer.index for layer in geometry.layers if layer.window_tokens})
    total = len({layer.index for layer in geometry.layers})
    counted = []
    for name in run.suites:
        cases = run.store.cases(run.run_id, name).values()
        if cases:
            past = sum(_tokens(case) > window for case in cases)
            counted.append(f"{past} of {len(cases)} {name} cases")
    went = ", ".join(counted) or "no case"
    return (f"{windowed} of {total} layers keep a window of at most {window} tokens; {went} went past it",)


def _tokens(case: Case) -> int:
    """Tokens of the prompt or text, as far as the case says it."""
    return max(int(case.body.get("tokens", 0)), len(case.body.get("ids", ())))
