"""Ideal tokens and sequences in a budget: bytes over bytes, the rank with the least room decides.

"Ideal" rounds down to whole sequences and to nothing else. Tokens are those of sequences at the context: for a model
without windows and states that is budget over bytes per token. A shared prefix is stored once, and each sequence keeps
what lies past it, its own windows and its own states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.plan.lengths import Lengths, likely_count
from kvgate.plan.parallel import sharded_tokens
from kvgate.plan.price import layer_sequence_bytes
from kvgate.plan.terms import Budget, LayerPrice, Price

MAX_CONTEXT = 1 << 40


@dataclass(frozen=True, slots=True)
class Mixed:
    """Sequences of a length distribution.

    Attributes:
        sequences: as many as fit at their mean bytes. likely: as many as fit in 19 of 20 draws.
        mean_bytes: of one sequence on the limiting rank.
    """

    sequences: int
    likely: int
    mean_bytes: float


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a budget holds at one context.

    Attributes:
        tokens, sequences: over all data-parallel replicas. sequence_bytes: of one, on the limiting rank.
        shared_bytes: stored once for the shared prefix. limiting_rank: whose budget is spent first.
        mixed: by length distribution, where one was given.
    """

    tokens: int
    sequences: int
    sequence_bytes: int
    shared_bytes: int
    limiting_rank: str
    mixed: Mixed | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What sequences take on one rank: `shared` once, `own(tokens)` each."""

    rank: str
    own: Callable[[int], int]
    shared_bytes: int = 0


def cost(rank: str, prices: Sequence[Price], prefix_tokens: int = 0, *, dcp: int = 1) -> Cost:
    """Cost of sequences on one rank, all caches together (a model and its draft).

    Args:
        prefix_tokens: tokens that all sequences begin with, stored once.
        dcp: ranks that share the positions of a sequence.
    """
    layers = [layer for price in prices for layer in price.layers]

    def own(tokens: int) -> int:
        return sum(
            layer_sequence_bytes(p, sharded_tokens(p.layer, tokens, dcp))
            - _shared_of(p, sharded_tokens(p.layer, tokens, dcp), sharded_tokens(p.layer, prefix_tokens, dcp))
            for p in layers
        )

    shared = sum(
        _shared_of(p, prefix, prefix) for p in layers if (prefix := sharded_tokens(p.layer, prefix_tokens, dcp))
    )
    return Cost(rank, own, shared)


def ideal(
    costs: Sequence[Cost],
    budgets: Sequence[Budget],
    *,
    context_tokens: int,
    replicas: int = 1,
    lengths: Lengths | None = None,
) -> Ideal:
    """Tokens and sequences that fit.

    Args:
        costs, budgets: one each a rank, same order.
        replicas: data-parallel groups, each with its own budget of this size.
        lengths: real lengths instead of all at the context.

    Raises:
        UserError: a context that cannot be.
    """
    check_context(context_tokens)
    counted = []
    for price, budget in zip(costs, budgets, strict=True):
        free = max(0, budget.bytes - price.shared_bytes)
        each = price.own(context_tokens)
        tokens = free * context_tokens // each if each else 0
        counted.append((free // each if each else 0, tokens, each, free, price))
    sequences, tokens, each, free, tight = min(counted, key=lambda c: (c[0], c[1]))
    mixed = None
    if lengths is not None:
        mean, deviation = lengths.mean_and_deviation(tight.own)
        mixed = Mixed(int(free // mean) * replicas, likely_count(free, mean, deviation) * replicas, mean)
    return Ideal(tokens * replicas, sequences * replicas, each, tight.shared_bytes, tight.rank, mixed)


def check_context(tokens: int) -> int:
    """`tokens` if a sequence can have them.

    Raises:
        UserError: zero, negative or absurd.
    """
    if not 1 <= tokens <= MAX_CONTEXT:
        raise UserError(f"a context of {tokens} tokens cannot be planned", fix="give a positive number, e.g. 32768")
    return tokens


def _shared_of(p: LayerPrice, tokens: int, prefix_tokens: int) -> int:
    """Bytes of a sequence's rows that belong to the prefix: those of its tokens that lie in both prefix and window."""
    if not prefix_tokens or p.layer.fixed_tokens is not None or not p.row_bytes:
        return 0
    window = p.layer.window_tokens
    first = 0 if window is None else max(0, tokens - window)
    inside = max(0, min(prefix_tokens, tokens) - first)
    return inside // p.layer.tokens_per_row * p.row_bytes


def per_layer_bytes(price: Price, tokens: int) -> tuple[int, ...]:
    """Bytes of one sequence in each cache, in model order."""
    return tuple(layer_sequence_bytes(p, tokens) for p in price.layers)
