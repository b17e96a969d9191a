"""A cache that is started with a fixed number of tokens (SGLang, TensorRT-LLM), and what the log must then say."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from kvgate.core.deployment import CachePart, Expected
from kvgate.core.engine import Request, Settings
from kvgate.core.source import Source
from kvgate.core.units import MIB_BYTES
from kvgate.engines._family_recipe import Stored
from kvgate.formats.spec import codec
from kvgate.plan.parallel import split
from kvgate.plan.price import price
from kvgate.plan.terms import Budget, EngineRule, Rank, Serving, Term


def pool_tokens(settings: Settings) -> int:
    """Tokens of every arm's cache: twice what all sequences need, in whole 256 (a page or block of any size in use)."""
    return -(-2 * max(2, settings.slots) * settings.context_tokens // 256) * 256


def expected_of(
    want: Request, stored: Stored, rule: EngineRule, release: str, option: str, *, sized: bool = True
) -> Expected:
    """Types, the bytes of a token, and the cache's tokens and MiB where they follow from what was asked for.

    Args:
        release: the engine's version. option: by which the tokens are asked for, as the rule calls it.
        sized: False where the person's own arguments change the cache's shape.
    """
    priced = price(want.model.geometry, stored.priced, engine=rule.name)
    pool = _pool(want, stored, rule, release, option) if sized else None
    return Expected(
        k_codec=stored.codec,
        v_codec=stored.codec,
        bytes_per_token=ceil(priced.bytes_per_token),
        parts_mib=() if pool is None else (pool,),
        lossless_against=(*codec(stored.codec).lossless_from, stored.codec),
    )


def part_of(expected: Expected, tokens: int | None, k: str | None, v: str | None, layers: int) -> tuple[CachePart, ...]:
    """The pool that a log tells only the tokens of; MiB of K and V are those tokens times the plan's bytes."""
    if tokens is None or k is None or v is None or not expected.parts_mib:
        return ()
    kind, planned, k_mib, v_mib = expected.parts_mib[0]
    share = tokens / planned if planned else 0.0
    k_mib, v_mib = round(k_mib * share, 2), round(v_mib * share, 2)
    return (CachePart(kind=kind, cells=tokens, layers=layers, k_codec=k, v_codec=v, k_mib=k_mib, v_mib=v_mib),)


def _pool(
    want: Request, stored: Stored, rule: EngineRule, release: str, option: str
) -> tuple[str, int, float, float] | None:
    """Kind, tokens, MiB of K and of V of the one pool; None for models with several pools, which are cut by memory."""
    geometry, settings, tokens = want.model.geometry, want.settings, pool_tokens(want.settings)
    ranks = tuple(
        Rank(share.name, price(share.geometry, stored.priced, engine=rule.name), None)
        for share in split(geometry, engine=rule.name)
    )
    layers = [p for rank in ranks for p in rank.price.layers]
    if any(p.layer.window_tokens is not None or p.state_bytes or p.layer.tokens_per_row > 1 for p in layers):
        return None
    serving = Serving(
        engine=rule.name,
        version=release,
        context_tokens=settings.context_tokens,
        slots=settings.slots,
        batched_tokens=settings.ubatch_tokens,
        options={option: str(tokens)},
    )
    # Memory enough for the tokens that are asked for: where a device has less, the log says fewer, and that is seen.
    enough = ceil(2 * tokens * sum((r.price.bytes_per_token for r in ranks), Fraction(0)))
    term = Term("pool", enough, "as much as was asked for", Source("spec", option, ""))
    planned = rule.reserve(
        geometry, stored.priced, ranks, serving, tuple(Budget(r.name, (term,)) for r in ranks)
    ).tokens
    if planned is None:
        return None
    k, v = (sum(getattr(p, side) for p in layers) for side in ("k_row_bytes", "v_row_bytes"))
    index = sum(p.index_row_bytes for p in layers)
    kinds = {p.layer.kind for p in layers}
    kind = kinds.pop() if len(kinds) == 1 else "all layers"
    return (kind, planned, round(planned * (k + index) / MIB_BYTES, 2), round(planned * v / MIB_BYTES, 2))
