"""An answer as the JSON document `kvgate.plan/1`: integers in bytes, unknown is null with its "why"."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvgate.plan.answer import Answer, RecipeAnswer
from kvgate.plan.concurrency import Ideal
from kvgate.plan.question import Draft
from kvgate.plan.terms import Budget, LayerPrice, Reserved

SCHEMA = "kvgate.plan/1"


def document(answer: Answer) -> dict[str, Any]:
    """The whole answer. Compressed rows may give a part of a byte per token; every other size is an integer."""
    q = answer.question
    return {
        "schema": SCHEMA,
        "model": q.name or q.geometry.name,
        "source": str(q.geometry.source),
        "origin": q.origin or None,
        "family": q.geometry.family,
        "device": None
        if q.device is None
        else {
            "name": q.device.name,
            "memory_bytes": q.device.bytes,
            "memory_source": str(q.device.source),
            "other_sizes": list(q.device.other),
            "bandwidth_bytes_per_s": q.device.bytes_per_s,
            "bandwidth_source": q.device.bandwidth_source or None,
        },
        **({} if q.device else {"device_why": "none was given"}),
        "engine": q.serving.engine or None,
        "engine_version": q.serving.version or None,
        "engine_named": q.engine_named,
        "context_tokens": q.serving.context_tokens,
        "parallel": {n: getattr(q.serving, n) for n in ("tp", "pp", "dp", "dcp")},
        "weights_bytes": q.weights_bytes,
        "weights_how": q.weights_how,
        "native": answer.native,
        "prefix_tokens": q.prefix_tokens,
        "lengths": None
        if q.lengths is None
        else {
            "n": q.lengths.total,
            "mean": q.lengths.mean,
            "longest": q.lengths.longest,
            "source": str(q.lengths.source),
        },
        "draft": _draft(q.draft),
        "layers": [_layer(p) for p in answer.base.price.layers],
        "ranks": [{"name": r.name, "layers": [r.first_layer, r.last_layer - 1], "gpus": r.ranks} for r in answer.ranks],
        "recipes": [_recipe(r) for r in answer.recipes],
        "conditions": [
            {"id": c.id, "title": c.title, "holds": c.holds, "text": c.text, "source": str(c.source)}
            for c in answer.conditions
        ],
        "first": {"recipe": answer.first.recipe, "why": answer.first.why, "source": str(answer.first.source)},
        "notes": list(answer.notes),
    }


def number(value: Fraction) -> int | float:
    """Whole bytes as an integer; a part of a byte (compressed rows) as the nearest float."""
    return value.numerator if value.denominator == 1 else float(value)


def _draft(draft: Draft | None) -> dict[str, Any] | None:
    return None if draft is None else {"name": draft.name, "weights_bytes": draft.weights_bytes}


def _layer(p: LayerPrice) -> dict[str, Any]:
    layer = p.layer
    return {
        "index": layer.index,
        "kind": layer.kind,
        "kv_heads": layer.kv_heads,
        "k_dim": layer.k_dim,
        "v_dim": layer.v_dim,
        "window_tokens": layer.window_tokens,
        "tokens_per_row": layer.tokens_per_row,
        "fixed_tokens": layer.fixed_tokens,
        "index_bytes_per_token": layer.index_bytes_per_token,
        "state_bytes": p.state_bytes,
    }


def _recipe(r: RecipeAnswer) -> dict[str, Any]:
    return {
        "recipe": str(r.recipe),
        "bytes_per_token": number(r.price.bytes_per_token),
        "growth_bytes_per_token": number(r.price.growth_bytes_per_token),
        "fixed_bytes_per_sequence": r.price.fixed_bytes_per_sequence,
        "sequence_bytes": r.sequence_bytes,
        "rank_bytes_per_token": [number(p.bytes_per_token) for p in r.rank_prices],
        "budget_bytes": None if r.budgets is None else min((b.bytes for b in r.budgets), default=0),
        **({"budget_why": r.budget_why} if r.budget_why else {}),
        "budgets": [_budget(b) for b in r.budgets or ()],
        "ideal": _ideal(r.ideal, r.budget_why),
        "engine": _reserved(r.reserved, r.reserved_why),
        "storage_ratio": {
            "value": r.ratio,
            "inside_windows": r.token_ratio,
            "what": "bytes of a native sequence over this one's, arithmetic",
        },
        "speed_ratio": {
            "lo": r.speed.lo,
            "hi": r.speed.hi,
            "what": r.speed.what,
            "measured": list(r.speed.rows),
            "source": str(r.speed.source),
            **({} if r.speed.lo is not None else {"why": r.speed.what}),
        },
        "itl_slope_ms_per_token": None
        if r.prior is None
        else {
            "least": r.prior.least_ms,
            "lo": r.prior.lo_ms,
            "hi": r.prior.hi_ms,
            "why": r.prior.why,
            "source": str(r.prior.source),
        },
        **({} if r.prior else {"itl_slope_why": "the device's bandwidth is not known"}),
        "rollback_to_native": None
        if r.rollback is None
        else {
            "replicas": r.rollback.replicas,
            "needed": r.rollback.needed,
            "ratio": r.rollback.ratio,
            **({} if r.rollback.needed else {"why": "the native cache does not hold one sequence"}),
        },
        **({} if r.rollback else {"rollback_why": r.budget_why}),
        "layers": [
            {
                "index": p.layer.index,
                "k": p.k or None,
                "v": p.v or None,
                "k_row_bytes": p.k_row_bytes,
                "v_row_bytes": p.v_row_bytes,
                "index_row_bytes": p.index_row_bytes,
                "state_bytes": p.state_bytes,
                "fixed_bytes": p.fixed_bytes,
            }
            for p in r.price.layers
        ],
    }


def _budget(b: Budget) -> dict[str, Any]:
    return {
        "rank": b.rank,
        "bytes": b.bytes,
        "terms": [
            {"name": t.name, "bytes": t.bytes, "how": t.how, "source": str(t.source), "assumed": t.assumed}
            for t in b.terms
        ],
    }


def _ideal(found: Ideal | None, why: str) -> dict[str, Any]:
    if found is None:
        return {"tokens": None, "sequences": None, "why": why}
    mixed = found.mixed
    return {
        "tokens": found.tokens,
        "sequences": found.sequences,
        "sequence_bytes_on_rank": found.sequence_bytes,
        "shared_bytes": found.shared_bytes,
        "limiting_rank": found.limiting_rank,
        **({"why": why} if why else {}),
        **(
            {}
            if mixed is None
            else {"by_lengths": {"sequences": mixed.sequences, "likely": mixed.likely, "mean_bytes": mixed.mean_bytes}}
        ),
    }


def _reserved(found: Reserved | None, why: str) -> dict[str, Any]:
    if found is None:
        return {"rule": None, "tokens": None, "sequences": None, "limiting_rank": None, "why": why}
    reason = "; ".join(found.notes) or "this engine prints none"
    return {
        "rule": found.rule,
        "source": str(found.source),
        "tokens": found.tokens,
        "sequences": found.sequences,
        "limiting_rank": found.limiting_rank,
        "reserved_bytes": found.reserved_bytes,
        "prints": found.prints,
        "steps": list(found.steps),
        "notes": list(found.notes),
        **({} if found.tokens is not None and found.sequences is not None else {"why": reason}),
    }
