"""Concurrency against context: the same question at several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.plan.answer import answer
from kvgate.plan.question import Question


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Whole sequences at one context, per recipe in the order asked: ideal, and as the engine reserves."""

    context_tokens: int
    ideal: tuple[int | None, ...]
    reserved: tuple[int | None, ...]


def curve(question: Question, contexts: Sequence[int]) -> tuple[CurvePoint, ...]:
    """Concurrency against context, all sequences of full length and without a shared prefix."""
    points = []
    for context in contexts:
        serving = replace(question.serving, context_tokens=context)
        found = answer(replace(question, serving=serving, lengths=None, prefix_tokens=0))
        points.append(
            CurvePoint(
                context,
                tuple(None if r.ideal is None else r.ideal.sequences for r in found.recipes),
                tuple(None if r.reserved is None else r.reserved.sequences for r in found.recipes),
            )
        )
    return tuple(points)


def curve_contexts(question: Question) -> tuple[int, ...]:
    """Powers of two from 1,024 to the larger of the model's context and the one asked for, that one included."""
    asked = question.serving.context_tokens
    top = max(asked, min(question.geometry.context_tokens, 1 << 20), 4096)
    return tuple(sorted({asked, *(1 << n for n in range(10, top.bit_length()) if 1 << n <= top)}))
