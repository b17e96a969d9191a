"""fidelity: how far the candidate's next-token distribution is from the base's, over the whole vocabulary.

Two lanes, because engines compute them with different kernels:

prefill   the document in blocks of 64 to 128 tokens, every position scored
decode    a prefix (not scored), then the following text one token at a time, every step scored

The text is forced: targets are the document's own next tokens, so all arms see the same context. Documents are
tokenised as the engine's tokenizer does it, with the BOS token if that adds one (position 0, never a target).

Scores happen while the rows are in memory; logits are not kept. Needs a panel: all arms of one model in lockstep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from kvgate.core.engine import ArmId, Lane, Panel, Pass, Session
from kvgate.core.errors import BadAnswer, LaneUnavailable, UserError
from kvgate.core.observation import (
    FULL_VOCABULARY,
    Case,
    PairedRecords,
    PairScore,
    PositionBlock,
    Raw,
    Records,
    Score,
    Work,
)
from kvgate.core.suite import Cost, Fault, SuiteContext, Summary
from kvgate.stats.divergence import score_arms
from kvgate.suites._fidelity_corpus import Corpus, Document, read_corpus
from kvgate.suites._fidelity_summary import never_differs, summarise

if TYPE_CHECKING:
    from kvgate.core.observation import Positions

__all__ = ["SUITE", "Fidelity", "FidelityParams", "never_differs"]

#: llama.cpp's CPU path takes another attention kernel for f16 under 64 rows; a block below it would measure the kernel.
MIN_BLOCK_TOKENS = 64
#: Largest step: 128 rows of a 262,144-token vocabulary are 128 MiB an arm.
MAX_BLOCK_TOKENS = 128
#: Positions of one stored row, by the schema of the store.
MAX_STORED_POSITIONS = 1024

#: Categories of the corpus that comes with kvgate.
SHIPPED_CATEGORIES = 6


class FidelityParams(BaseModel):
    """Sizes of the suite.

    Attributes:
        documents_per_category: the first so many usable documents of each category; None takes all.
        prefill_tokens: scored tokens of each document; None takes the whole document, up to the context.
        decode_documents: documents that also go through the decode lane, taken one per category in turn; None: all.
        decode_tokens: single steps after the prefix.
        decode_prefix_tokens: tokens before them; None goes on where the prefill lane ended, without a second prefill.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    documents_per_category: int | None = Field(default=None, ge=1)
    prefill_tokens: int | None = Field(default=None, ge=MIN_BLOCK_TOKENS)
    decode_documents: int | None = Field(default=None, ge=0)
    decode_tokens: int = Field(default=64, ge=0)
    decode_prefix_tokens: int | None = Field(default=None, ge=MIN_BLOCK_TOKENS)

    def need_tokens(self, decode: bool) -> int:
        """Tokens that a document must have: the scored ones, what stands before them, and the last target."""
        prefill = self.prefill_tokens or MIN_BLOCK_TOKENS
        if not decode or not self.decode_tokens:
            return prefill + 1
        return max(prefill, (self.decode_prefix_tokens or prefill) + self.decode_tokens) + 1


class Fidelity:
    """The suite object; holds nothing."""

    name = "fidelity"
    version = 1
    scorer_version = 1
    needs = frozenset({Lane.PANEL})
    #: Prefix of its metrics -> the lane without which they are not there.
    shows = MappingProxyType({how.value: Lane.PANEL for how in Pass})
    Params = FidelityParams

    def presets(self) -> Mapping[str, BaseModel]:
        """smoke: 12 documents x 192 tokens, 8 of them x 24 decode steps. default: everything there is.

        Of a model with a sliding window that smoke's texts do not leave, one document is taken whole.
        Our own 48 documents are about 50,500 prefill tokens and 3,072 decode steps an arm (SmolLM2's tokenizer).
        """
        return {
            "smoke": FidelityParams(documents_per_category=2, prefill_tokens=192, decode_documents=8, decode_tokens=24),
            "default": FidelityParams(decode_tokens=64),
        }

    def check_files(self, files: Mapping[str, Path]) -> None:
        """Read the person's corpus before anything starts; lengths need the tokenizer and come later.

        Raises:
            UserError: no folder, no texts, or a file that is not UTF-8.
        """
        if "corpus" in files:
            read_corpus(files["corpus"])

    def cases(self, ctx: SuiteContext) -> Iterator[Case]:
        """One case a document. What was left out is listed in the first case's body under "skipped".

        Raises:
            UserError: a bad corpus, a context too short for the sizes asked for, or no usable document.
            LaneUnavailable: the engine gave no exact token ids.
        """
        params: FidelityParams = ctx.params
        least = params.need_tokens(decode=bool(params.decode_tokens) and params.decode_documents != 0)
        if least > ctx.context_tokens:
            raise UserError(
                f"a context of {ctx.context_tokens} tokens is too short for fidelity, which needs {least}",
                fix=f"use --context {-(-least // 256) * 256} or more",
            )
        corpus = read_corpus(ctx.files.get("corpus"))
        chosen, skipped = _choose(corpus, ctx, params)
        decode = _decode_set(chosen, params)
        skipped += _missing_decode(chosen, decode, params)
        first: dict[str, Any] = {"skipped": list(skipped)} if skipped else {}
        whole = _past_window(chosen, params, ctx)
        for at, (document, ids) in enumerate(chosen):
            sizes = params.model_copy(update={"prefill_tokens": None}) if at == whole else params
            body = _body(document, ids, sizes, ctx.context_tokens, decode=at in decode) | (first if at == 0 else {})
            yield Case.make(self.name, cluster=document.name, category=document.category, body=body)

    def cost(self, cases: Sequence[Case], params: Any) -> Cost:
        """Tokens that one arm computes."""
        prefill = sum(c.body["prefill"] + (c.body["prefix"] if _begins_again(c.body) else 0) for c in cases)
        return Cost(len(cases), prefill, sum(c.body["decode"] for c in cases))

    async def run(self, session: Session, case: Case, repeat: int, seed: int) -> Raw:
        """Not a serving suite.

        Raises:
            LaneUnavailable: always; use `run_panel`.
        """
        raise LaneUnavailable("fidelity compares whole distributions; it runs on a panel, not on a server")

    def run_panel(self, panel: Panel, case: Case, base: ArmId, arms: Sequence[ArmId]) -> Sequence[PositionBlock]:
        """Both lanes of one document, every arm but the base.

        An arm with degenerate logits (NaN, infinity) has no block; the campaign says what that means for it.

        Raises:
            BadAnswer: degenerate logits of the base, an arm or a row missing.
            EngineError: as the panel raises it.
        """
        body = case.body
        ids: list[int] = list(body["ids"])
        others = [a for a in arms if a != base]
        blocks: list[PositionBlock] = []
        panel.begin(ids)
        scored = _Lane(panel, ids, base, others)
        for n in block_sizes(body["prefill"]):
            scored.step(n, Pass.PREFILL)
        blocks += scored.blocks(case.id, Pass.PREFILL, start=1)
        if body["decode"]:
            if _begins_again(body):
                panel.begin(ids)
                for n in block_sizes(body["prefix"]):
                    panel.step(n, Pass.PREFILL)
            scored = _Lane(panel, ids, base, others, at=body["prefix"])
            for _ in range(body["decode"]):
                scored.step(1, Pass.DECODE)
            blocks += scored.blocks(case.id, Pass.DECODE, start=body["prefix"] + 1)
        return blocks

    def score(self, case: Case, raw: Raw) -> Score:
        """Positions are scored as they come; there is no answer to score."""
        return Score(None, error=raw.error)

    def compare(self, case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
        """Nothing breaks here: a distance is no break."""
        return PairScore("")

    def next_work(self, records: Records) -> Sequence[Work]:
        """One pass is all: the panel is deterministic, and its floor arms say how far that is true."""
        return ()

    def summarise(self, paired: PairedRecords) -> Summary:
        """See `_fidelity_summary`."""
        return summarise(paired)

    def planted_defect(self) -> Fault:
        """The candidate's logits carry six times the floor's noise, which is clustered, heavy-tailed and drifting."""
        noise = {"logit_clustered": 0.3, "logit_heavy": 0.02, "logit_drift": 0.02}
        return Fault(script={"logit_sd": 0.3, **noise}, metric="prefill.kl_mean", clean={"logit_sd": 0.05, **noise})


SUITE = Fidelity()


def block_sizes(tokens: int) -> list[int]:
    """Cut `tokens` into steps of 64 to 128, whole multiples of 64 but for the last.

    Raises:
        ValueError: fewer than 64.
    """
    if tokens < MIN_BLOCK_TOKENS:
        raise ValueError(f"{tokens} tokens cannot be cut into blocks of at least {MIN_BLOCK_TOKENS}")
    sizes = []
    while tokens > MAX_BLOCK_TOKENS:
        n = MAX_BLOCK_TOKENS if tokens - MAX_BLOCK_TOKENS >= MIN_BLOCK_TOKENS else MIN_BLOCK_TOKENS
        sizes.append(n)
        tokens -= n
    return [*sizes, tokens]


class _Lane:
    """Scores the steps of one lane as they come; keeps columns only."""

    def __init__(self, panel: Panel, ids: Sequence[int], base: ArmId, arms: Sequence[ArmId], at: int = 0) -> None:
        self.panel, self.base, self.at = panel, base, at
        self.ids = np.asarray(ids, dtype=np.int64)
        self.parts: dict[ArmId, list[Positions]] = {arm: [] for arm in arms}

    def step(self, n: int, how: Pass) -> None:
        rows = self.panel.step(n, how)
        missing = [a for a in (self.base, *self.parts) if a not in rows]
        if missing or any(len(rows[a]) != n for a in (self.base, *self.parts)):
            raise BadAnswer(f"the panel gave no {n} rows for {', '.join(missing) or 'an arm'}")
        targets = self.ids[self.at + 1 : self.at + 1 + n]
        # Before the next step: the rows are views of shared memory.
        for arm, positions in self._score(rows, targets).items():
            self.parts[arm].append(positions)
        self.at += n

    def _score(self, rows: Mapping[ArmId, NDArray[np.float32]], targets: NDArray[np.int64]) -> dict[ArmId, Positions]:
        """Positions of every arm that has them; an arm with degenerate logits leaves the lane, the others go on.

        Raises:
            BadAnswer: the base's own logits are degenerate, or no arm is left.
        """
        base = rows[self.base]
        try:
            return score_arms(base, {a: rows[a] for a in self.parts}, targets)
        except BadAnswer:
            if not np.isfinite(base).all():
                raise
        for arm in [a for a in self.parts if not np.isfinite(rows[a]).all()]:
            del self.parts[arm]
        return score_arms(base, {a: rows[a] for a in self.parts}, targets)

    def blocks(self, case_id: str, how: Pass, start: int) -> list[PositionBlock]:
        out = []
        for arm, parts in self.parts.items():
            data = np.concatenate(parts)
            for at in range(0, len(data), MAX_STORED_POSITIONS):
                rows = data[at : at + MAX_STORED_POSITIONS]
                out.append(PositionBlock(case_id, 0, how.value, arm, start + at, FULL_VOCABULARY, rows))
        return out


def _begins_again(body: Mapping[str, Any]) -> bool:
    """Whether the decode lane needs a prefill of its own: not where it goes on after the prefill lane."""
    return bool(body["decode"]) and body["prefix"] != body["prefill"]


def _choose(
    corpus: Corpus, ctx: SuiteContext, params: FidelityParams
) -> tuple[list[tuple[Document, tuple[int, ...]]], list[str]]:
    """Usable documents with their tokens, in order, and the reasons for the others."""
    need = params.need_tokens(decode=False)
    chosen: list[tuple[Document, tuple[int, ...]]] = []
    skipped, taken, longest, left = list(corpus.skipped), defaultdict[str, int](int), 0, 0
    most = corpus.at_most(params.documents_per_category, SHIPPED_CATEGORIES)
    for document in corpus.documents:
        if taken[document.category] == most:
            left += 1
            continue
        tokens = ctx.document(document.text)
        if not tokens.exact:
            raise LaneUnavailable("the engine has no tokenizer that gives exact token ids")
        longest = max(longest, len(tokens.ids))
        if len(tokens.ids) < need:
            skipped.append(f"{document.name}: {len(tokens.ids)} tokens, {need} needed")
            continue
        taken[document.category] += 1
        chosen.append((document, tokens.ids))
    if left and "corpus" in ctx.files:
        skipped.append(f"{left} more documents are not used by this preset, which takes {most} of each category")
    if not chosen:
        raise UserError(
            f"no usable document in {corpus.where}: the longest has {longest} tokens, {need} are needed",
            fix="give longer texts, or fewer tokens per document",
        )
    return chosen, skipped


def _past_window(
    chosen: Sequence[tuple[Document, tuple[int, ...]]], params: FidelityParams, ctx: SuiteContext
) -> int | None:
    """Index of one document that is taken whole, since the sizes asked for stay inside the model's window."""
    if not ctx.window_tokens or params.prefill_tokens is None or params.prefill_tokens > ctx.window_tokens:
        return None
    need = ctx.window_tokens + MIN_BLOCK_TOKENS + params.decode_tokens + 1
    if need > ctx.context_tokens:
        return None
    return next((at for at, (_, ids) in enumerate(chosen) if len(ids) >= need), None)


def _decode_set(chosen: Sequence[tuple[Document, tuple[int, ...]]], params: FidelityParams) -> set[int]:
    """Indices of the documents for the decode lane: the first of every category, then the second, and so on."""
    if not params.decode_tokens:
        return set()
    need = params.need_tokens(decode=True)
    seen = defaultdict[str, int](int)
    turns = []
    for at, (document, ids) in enumerate(chosen):
        if len(ids) >= need:
            turns.append((seen[document.category], at))
            seen[document.category] += 1
    return {at for _, at in sorted(turns)[: params.decode_documents]}


def _missing_decode(
    chosen: Sequence[tuple[Document, tuple[int, ...]]], decode: set[int], params: FidelityParams
) -> list[str]:
    """A line if texts are too short for as many decode documents as asked for."""
    wanted = len(chosen) if params.decode_documents is None else params.decode_documents
    if not params.decode_tokens or len(decode) >= min(wanted, len(chosen)):
        return []
    need = params.need_tokens(decode=True)
    return [f"decode lane: {len(decode)} of {wanted} documents have the {need} tokens it needs"]


def _body(
    document: Document, ids: Sequence[int], params: FidelityParams, context_tokens: int, *, decode: bool
) -> dict[str, Any]:
    """What one case holds: token ids up to the last target, and where the lanes begin and end."""
    limit = min(len(ids), context_tokens)
    steps = params.decode_tokens if decode else 0
    goes_on = steps if params.decode_prefix_tokens is None else 0
    prefill = params.prefill_tokens or limit - 1 - goes_on
    prefix = (params.decode_prefix_tokens or prefill) if steps else 0
    end = max(prefill, prefix + steps)
    return {"name": document.name, "ids": list(ids[: end + 1]), "prefill": prefill, "prefix": prefix, "decode": steps}
