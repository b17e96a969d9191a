"""topk: distributions over HTTP, where a panel cannot be had: an attached server, another wheel, vLLM, SGLang.

The same documents as fidelity, fewer positions. Each arm's server is asked for the top of its distribution at every
position of a text: of a whole prompt (prefill), and step by step (decode). Tops of two arms are compared in buckets
(`stats/topk.py`): a lower bound of the divergence over the whole vocabulary, never mixed with it: these metrics are
named topk_prefill.* and topk_decode.*. Tops are stored, so they can be compared again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from kvgate.core.engine import ArmId, Available, Lane, Missing, Panel, Pass, Session, TopKRow
from kvgate.core.errors import BadAnswer, LaneUnavailable
from kvgate.core.observation import (
    TOPK_BUCKET,
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
from kvgate.stats.topk import compare_rows
from kvgate.suites._fidelity_summary import STATISTICS, Statistic, summarise
from kvgate.suites.fidelity import SUITE as FIDELITY
from kvgate.suites.fidelity import FidelityParams

LANES = {Pass.PREFILL: Lane.PREFILL_TOPK, Pass.DECODE: Lane.FORCED_DECODE}
#: Perplexity needs the text's own token in every top; a rank beyond the top is not known.
_NAMES = ("kl_mean", "kl_median", "kl_p90", "kl_p95", "kl_p99", "top1_flip_rate", "top1_flip_rate_confident")
#: So many positions of a text never have one distribution to the last digit; a server that says so looks at no text.
SAME_ROWS = 8
_COVERED = Statistic("covered", "1", lambda rows: np.asarray(rows["covered"], dtype=np.float64))


class TopKParams(FidelityParams):
    """Sizes of fidelity, and entries asked for a position (a server may grant fewer)."""

    k: int = Field(default=256, ge=1)


class TopK:
    """The suite object; holds nothing."""

    name = "topk"
    version = 1
    scorer_version = 1
    needs = frozenset({Lane.TOKENIZE})
    #: One of these must be there.
    needs_any = frozenset(LANES.values())
    #: Where this lane is served on every arm, its numbers are better, and this suite is left out.
    instead_of = Lane.PANEL
    #: Prefix of its metrics -> the lane without which they are not there.
    shows = MappingProxyType({f"topk_{how.value}": lane for how, lane in LANES.items()})
    Params = TopKParams

    def presets(self) -> Mapping[str, BaseModel]:
        """smoke: 12 documents x 128 tokens, 8 of them x 24 steps. default: 12 x 512, all of them x 64 steps."""
        return {
            "smoke": TopKParams(documents_per_category=2, prefill_tokens=128, decode_documents=8, decode_tokens=24),
            "default": TopKParams(documents_per_category=2, prefill_tokens=512, decode_tokens=64),
        }

    def check_files(self, files: Mapping[str, Path]) -> None:
        """As fidelity: the person's corpus is read before anything starts."""
        FIDELITY.check_files(files)

    def cases(self, ctx: SuiteContext) -> Iterator[Case]:
        """One case a document; a document too short for the sizes asked for is cut to what there is."""
        for case in FIDELITY.cases(ctx):
            body = {**case.body, "k": ctx.params.k}
            yield Case.make(self.name, cluster=case.cluster, category=case.category, body=body)

    def cost(self, cases: Sequence[Case], params: Any) -> Cost:
        """A prefill, and a decode step a position."""
        return FIDELITY.cost(cases, params)

    async def run(self, session: Session, case: Case, repeat: int, seed: int) -> Raw:
        """Tops of both lanes, of those that this server serves; `missing` says why not of the others."""
        return await self._run(session, case, seed, None)

    async def run_beside(self, session: Session, case: Case, repeat: int, seed: int, base: Raw) -> Raw:
        """As `run`, on another arm than the base: where a server lets one name ids, those of the base's tops too."""
        return await self._run(session, case, seed, base)

    async def _run(self, session: Session, case: Case, seed: int, base: Raw | None) -> Raw:
        ids, k = list(case.body["ids"]), int(case.body["k"])
        lanes = await session.lanes()
        body: dict[str, Any] = {"missing": {}}
        spans = {
            Pass.PREFILL: (1, case.body["prefill"] + 1),
            Pass.DECODE: (case.body["prefix"] + 1, case.body["prefix"] + 1 + case.body["decode"]),
        }
        for how, (start, end) in spans.items():
            if end <= start:
                continue
            served = lanes.get(LANES[how], Missing("not offered by this engine"))
            if not isinstance(served, Available):
                body["missing"][how.value] = served.reason
                continue
            most = min(k, served.limits.get("top_k", k))
            asked: dict[str, Any] = {"start": start, "lane": LANES[how], "k": most}
            theirs = _parts(base.body).get(how) if base is not None and base.body is not None else None
            if "ids" in served.limits and theirs is not None and len(theirs["ids"]) == end - start:
                rows = await session.score_beside(ids[:end], **asked, base=_rows(theirs))  # type: ignore[attr-defined]
            else:
                rows = await session.score(ids[:end], **asked)
            if len(rows) != end - start:
                raise BadAnswer(f"{len(rows)} positions of {end - start}", kind="bad_shape")
            if len(rows) >= SAME_ROWS and all(r == rows[0] for r in rows):
                raise BadAnswer(f"the same top at all {len(rows)} positions", kind="degenerate_logprobs")
            body[how.value] = {
                "start": start,
                "k": most,
                "ids": [r.ids for r in rows],
                "lp": [r.logprobs for r in rows],
            }
        return Raw(body, seed=seed)

    def run_panel(self, panel: Panel, case: Case, base: ArmId, arms: Sequence[ArmId]) -> Sequence[PositionBlock]:
        """Not a panel suite."""
        raise LaneUnavailable("topk asks servers; on a panel fidelity sees the whole vocabulary")

    def score(self, case: Case, raw: Raw) -> Score:
        """A top is no answer to score."""
        return Score(None, error=raw.error)

    def compare(self, case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
        """Nothing breaks here: a distance is no break."""
        return PairScore("")

    def next_work(self, records: Records) -> Sequence[Work]:
        """One pass is all."""
        return ()

    def summarise(self, paired: PairedRecords) -> Summary:
        """fidelity's statistics on bucketed divergences, and the base mass that they rest on."""
        records = replace(paired.records, positions=tuple(_positions(paired.records)))
        statistics = (*(s for s in STATISTICS if s.name in _NAMES), _COVERED)
        found = summarise(
            PairedRecords(records, paired.candidate), statistics=statistics, estimator=TOPK_BUCKET, prefix="topk_"
        )
        k = min((part["k"] for raw in _bodies(records) for part in _parts(raw).values()), default=0)
        bound = f"tops of {k} tokens: divergences are lower bounds, see topk_*.covered for the mass they rest on"
        reasons = {reason for raw in _bodies(records) for reason in raw.get("missing", {}).values()}
        untested = tuple(u for u in found.untested if "no position was scored" not in u or not reasons)
        return replace(
            found, untested=(*untested, *sorted(reasons)), blind_spots=(*found.blind_spots, bound) if k else ()
        )

    def planted_defect(self) -> Fault:
        """Six times the noise on the tops of the candidate."""
        return Fault(script={"top_sd": 0.6}, metric="topk_decode.kl_mean", clean={"top_sd": 0.1})


def _bodies(records: Records) -> Iterator[Mapping[str, Any]]:
    return (raw.body for raws in records.raws.values() for raw in raws if raw.body is not None)


def _parts(body: Mapping[str, Any]) -> dict[Pass, Mapping[str, Any]]:
    return {how: body[how.value] for how in LANES if how.value in body}


def _positions(records: Records) -> Iterator[PositionBlock]:
    """Every arm's positions against the base's, of the lanes that both have."""
    for (arm, case_id), raws in records.raws.items():
        base = records.raws.get((records.base, case_id), ())
        if arm == records.base or not base or not raws or raws[0].body is None or base[0].body is None:
            continue
        ids = records.cases[case_id].body["ids"]
        mine, theirs = _parts(raws[0].body), _parts(base[0].body)
        for how in mine:
            if how in theirs and mine[how]["start"] == theirs[how]["start"]:
                start, a, b = mine[how]["start"], _rows(mine[how]), _rows(theirs[how])
                n = min(len(a), len(b))
                data = compare_rows(b[:n], a[:n], ids[start : start + n])
                yield PositionBlock(case_id, 0, how.value, arm, start, TOPK_BUCKET, data)


def _rows(part: Mapping[str, Any]) -> list[TopKRow]:
    return [TopKRow(tuple(i), tuple(x)) for i, x in zip(part["ids"], part["lp"], strict=True)]


SUITE = TopK()
