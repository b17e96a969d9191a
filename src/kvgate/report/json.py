"""The `kvgate.check/1` document: what other tools read. Holds no prompt and no model text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvgate.core.estimate import Measure
from kvgate.report.model import ArmView, CapacityRow, RunView
from kvgate.report.sections.verdicts import overall

SCHEMA = "kvgate.check/1"

Measures = Mapping[str, Measure]


def check_json(view: RunView, report_path: str | None) -> dict[str, Any]:
    """The run as one JSON value: unbounded and unknown are null, sizes are integers in bytes.

    Args:
        report_path: where the HTML report lies; None if none was written.
    """
    evidence = {c: view.evidence[c] for c in view.candidates if c in view.evidence}
    floors: dict[str, dict[str, Any]] = {}
    for e in evidence.values():
        for suite, summary in e.summaries.items():
            for arm, measures in summary.floor.items():
                floors.setdefault(arm, {}).setdefault(suite, _measures(measures))
    document = {
        "schema": SCHEMA,
        "run": view.run_id,
        "key": view.key,
        "created": view.created,
        "duration_s": view.duration_s,
        "model": _model(view),
        "engine": view.engine,
        "policy": view.policy,
        "preset": view.preset,
        "seed": view.seed,
        "context_tokens": view.context_tokens,
        "arms": [_arm(a) for a in view.arms],
        "floor": floors,
        "exit_code": overall(view).exit_code,
        "report": report_path,
        "verdicts": [v.to_json() for v in view.verdicts],
        "results": {c: {s: _measures(x.metrics) for s, x in e.summaries.items()} for c, e in evidence.items()},
        "excess": {c: {s: _measures(x.excess) for s, x in e.summaries.items()} for c, e in evidence.items()},
        "capacity": [_capacity(r) for r in view.capacity],
        "caveats": list(view.caveats),
        "published": {c: [asdict(q) for q in quotes] for c, quotes in view.published.items()},
    }
    clean: dict[str, Any] = strict(document)
    return clean


def _measures(measures: Measures) -> dict[str, Any]:
    return {metric: m.to_json() for metric, m in measures.items()}


def _model(view: RunView) -> dict[str, Any]:
    m = view.model
    return {
        "name": m.name,
        "sha256": m.digest,
        "architecture": m.geometry.architecture,
        "weights_dtype": m.weights_dtype,
        "size_bytes": m.size_bytes,
    }


def _arm(a: ArmView) -> dict[str, Any]:
    return {
        "name": a.name,
        "role": a.role,
        "recipe": a.recipe,
        "effective": a.effective,
        "perturb": list(a.perturb),
        "deployments": {place: d.digest() for place, d in a.deployments.items()},
        "engaged": {place: {"level": e.level.value, "reason": e.reason} for place, e in a.engaged.items()},
    }


def _capacity(r: CapacityRow) -> dict[str, Any]:
    return {
        "recipe": r.recipe,
        "effective": r.effective,
        "bytes_per_token": r.bytes_per_token,
        "ratio": r.ratio,
        "predicted": [{"kind": k, "cells": n, "k_mib": a, "v_mib": b} for k, n, a, b in r.predicted],
        "reported": [p.model_dump(mode="json") for p in r.reported],
        "agrees": r.agrees,
        "source": r.source,
    }


def strict(value: Any) -> Any:
    """A value that any JSON parser takes: no NaN or infinity, no half surrogate pair, string keys."""
    if isinstance(value, Mapping):
        return {strict(str(k)): strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
