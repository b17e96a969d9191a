"""needle: a code of seven digits hidden in plain sentences, asked for at several lengths and depths. No judge.

Every prompt has a haystack of its own: text, name, code, and a salt at its start, so that no prefix cache can serve it.
The haystack is the unit of inference, the length its bucket.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from string import ascii_lowercase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvgate.core.engine import ArmId, Generate, Lane, Panel, Session
from kvgate.core.errors import LaneUnavailable, UserError
from kvgate.core.observation import Case, PairedRecords, PairScore, PositionBlock, Raw, Records, Score, Work
from kvgate.core.suite import Cost, Fault, SuiteContext, Summary
from kvgate.suites._needle.fit import fit_units
from kvgate.suites._needle.haystack import make_needle, prompt, sentences
from kvgate.suites._needle.score import flags_of, value_of

#: What a chat template adds; with a system prompt of its own, up to 70 tokens were seen.
TEMPLATE_TOKENS = 96
MIN_LENGTH_TOKENS = 256
#: With no loss at all, 59 haystacks are the least whose 90 % interval stays above 95 % (0.05 ** (1/59) = 0.9505).
MIN_HAYSTACKS = 60
#: Tokens of one filler sentence, roughly; only where the search for the length begins.
_SENTENCE_TOKENS = 16.0


class NeedleParams(BaseModel):
    """Sizes of the suite.

    Attributes:
        lengths: tokens of prompt, template and answer together; None: powers of two from 512 up to the context.
        depths: where the needle stands, 0 (start) to 1 (end).
        salts: haystacks for each length and depth; None: MIN_HAYSTACKS or a few more in all, so shared out that each
            length costs about the same tokens, and at least one each.
        max_tokens: of the answer; models that think first need more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    salts: int | None = Field(default=None, ge=1, le=1000)
    max_tokens: int = Field(default=32, ge=8)

    @field_validator("depths")
    @classmethod
    def _inside(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 <= d <= 1 for d in value):
            raise ValueError("depths are numbers between 0 (start) and 1 (end)")
        return value

    @field_validator("lengths")
    @classmethod
    def _long_enough(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or min(value) < MIN_LENGTH_TOKENS):
            raise ValueError(f"lengths are {MIN_LENGTH_TOKENS} tokens or more")
        return value


class NeedleSuite:
    """The suite object; holds nothing."""

    name = "needle"
    version = 1
    scorer_version = 1
    needs = frozenset({Lane.CHAT, Lane.TOKENIZE})
    Params = NeedleParams

    def presets(self) -> Mapping[str, BaseModel]:
        """smoke: 4 needles at 512 tokens. default: lengths up to the context x 5 depths, in all 60 to 80 needles.

        Of the longest length that is 5. All of them lost show: 5 of 70 are more than the one in twenty that default
        allows. Twenty-five of each length, as in the first version, took most of the hours of a check.
        Of a model with a sliding window that these lengths do not leave, as many more at twice the window.
        """
        return {
            "smoke": NeedleParams(lengths=(512,), depths=(0.1, 0.4, 0.6, 0.9), salts=1),
            "default": NeedleParams(),
        }

    def cases(self, ctx: SuiteContext) -> Iterator[Case]:
        """One case per length, depth and salt.

        Raises:
            UserError: a length beyond the context, or a context too short for any.
        """
        params: NeedleParams = ctx.params
        lengths = _lengths(params, ctx.context_tokens, ctx.window_tokens)
        salts = _salts(lengths, params)
        sentence_tokens = _SENTENCE_TOKENS
        for length in lengths:
            for depth in params.depths:
                for salt in range(salts[length]):
                    body, sentence_tokens = _body(length, depth, salt, sentence_tokens, ctx)
                    yield Case.make(self.name, cluster=body["name"], bucket=str(length), body=body)

    def cost(self, cases: Sequence[Case], params: Any) -> Cost:
        """Tokens that one arm computes; an answer is at most its limit."""
        prefill = sum(c.body["tokens"] + TEMPLATE_TOKENS for c in cases)
        return Cost(len(cases), prefill, sum(c.body["max_tokens"] for c in cases))

    async def run(self, session: Session, case: Case, repeat: int, seed: int) -> Raw:
        """One question at temperature 0.

        Raises:
            EngineError: the engine failed; that is no answer.
        """
        answer = await session.generate(
            Generate(messages=case.body["messages"], max_tokens=case.body["max_tokens"], temperature=0.0, seed=seed)
        )
        body = {"text": answer.text, "finish_reason": answer.finish_reason, "usage": dict(answer.usage)}
        return Raw(body, seed=seed)

    def run_panel(self, panel: Panel, case: Case, base: ArmId, arms: Sequence[ArmId]) -> Sequence[PositionBlock]:
        """Not a panel suite.

        Raises:
            LaneUnavailable: always; use `run`.
        """
        raise LaneUnavailable("needle asks questions of a server; it does not run on a panel")

    def score(self, case: Case, raw: Raw) -> Score:
        """1 for the right code and no other."""
        if raw.error or raw.body is None:
            return Score(None, error=raw.error or "no answer")
        return Score(value_of(case, raw), flags_of(case, raw))

    def compare(self, case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
        """`lost_needle` where the base has the code and the arm has not. Not rerun: many needles decide, not one."""
        base = [v for r in ref if (v := value_of(case, r)) is not None]
        own = [(v, r) for r in arm if (v := value_of(case, r)) is not None]
        if not base or not own:
            return PairScore("", detail="no answer to compare")
        if base[0] and not own[0][0]:
            return PairScore("lost_needle", detail=", ".join(flags_of(case, own[0][1])))
        return PairScore("", repaired=bool(own[0][0] and not base[0]))

    def next_work(self, records: Records) -> Sequence[Work]:
        """None: every needle is asked once."""
        return ()

    def futile(self, cases: Mapping[str, Case], base: Mapping[str, Raw]) -> str | None:
        """Why other arms need not be asked: a base that finds no needle at all has none to lose."""
        found = [value_of(case, base[case_id]) for case_id, case in cases.items()]
        if None in found or any(found):
            return None
        return f"the base finds 0 of {len(cases)} needles: nothing to lose"

    def summarise(self, paired: PairedRecords) -> Summary:
        """See `_needle/summary.py`."""
        from kvgate.suites._needle.summary import summarise

        return summarise(paired)

    def planted_defect(self) -> Fault:
        """Retrieval that fails on every prompt of over 600 tokens."""
        return Fault(script={"needle_decay_tokens": 600}, metric="needle.net_losses")


SUITE = NeedleSuite()


def _lengths(params: NeedleParams, context_tokens: int, window_tokens: int = 0) -> tuple[int, ...]:
    lengths = params.lengths
    if lengths is None:
        lengths = tuple(2**k for k in range(9, 31) if 2**k <= context_tokens)
    if not lengths:
        raise UserError(
            f"a context of {context_tokens} tokens is too short for needles", fix="use --context 512 or more"
        )
    if max(lengths) > context_tokens:
        raise UserError(
            f"a needle length of {max(lengths)} tokens is beyond the context of {context_tokens}",
            fix=f"use --context {max(lengths)} or more",
        )
    if window_tokens and max(lengths) <= window_tokens:
        lengths += next(((n,) for n in (2 * window_tokens, window_tokens + 256) if n <= context_tokens), ())
    return tuple(sorted(set(lengths)))


def _salts(lengths: Sequence[int], params: NeedleParams) -> dict[int, int]:
    """Haystacks of each length at one depth."""
    if params.salts is not None:
        return dict.fromkeys(lengths, params.salts)
    wanted = -(-MIN_HAYSTACKS // len(params.depths))
    share = wanted / sum(1 / n for n in lengths)
    return {n: math.ceil(share / n) for n in lengths}


def _body(
    length: int, depth: float, salt: int, sentence_tokens: float, ctx: SuiteContext
) -> tuple[dict[str, Any], float]:
    """The case's body, and the mean tokens of one of its filler sentences (where the next search begins)."""
    params: NeedleParams = ctx.params
    name = f"{length} tokens, depth {depth:g}, salt {salt}"
    rng = random.Random(f"{ctx.seed} needle {name}")  # noqa: S311 - text, not a secret
    needle, mark = make_needle(rng), "".join(rng.choices(ascii_lowercase, k=10))  # digits would look like a code
    filler: list[str] = []
    source = sentences(rng)

    def text(n: int) -> str:
        filler.extend(islice(source, max(0, n - len(filler))))
        return prompt(filler[:n], needle, depth, mark)

    target = length - params.max_tokens - TEMPLATE_TOKENS
    fit = fit_units(lambda n: len(ctx.tokenize(text(n)).ids), target, int(target / sentence_tokens))
    if fit is None:
        raise UserError(
            f"{length} tokens are too short for a needle: question, template and answer leave {target}",
            fix="use longer lengths, or fewer max_tokens",
        )
    body = {
        "name": name,
        "messages": [{"role": "user", "content": text(fit.units)}],
        "code": needle.code,
        "length": length,
        "depth": depth,
        "tokens": fit.tokens,
        "exact": ctx.tokenize(needle.sentence).exact,
        "max_tokens": params.max_tokens,
    }
    return body, fit.tokens / max(1, fit.units)
