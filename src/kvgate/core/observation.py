"""What was seen: cases, raw answers, positions. Immutable; a retry is a new attempt, never an overwrite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Positions = NDArray[np.void]  # structured, dtype POSITION_FIELDS

#: Columns of one scored position (34 bytes). `np.zeros(n, dtype=POSITION_FIELDS)` makes a block of n.
#: kl: KL(base || arm) in nats. base_lp, lp: log-probability of the next text token under base and arm (nat).
#: base_entropy: nat. base_margin: p1 - p2 of the base. covered: base mass over which kl was taken (1.0: whole
#: vocabulary). base_top1, top1: argmax token ids. base_top1_rank: rank of the base's argmax in the arm (0: same).
POSITION_FIELDS: list[tuple[str, str]] = [
    ("kl", "<f4"),
    ("base_lp", "<f4"),
    ("lp", "<f4"),
    ("base_entropy", "<f4"),
    ("base_margin", "<f4"),
    ("covered", "<f4"),
    ("base_top1", "<u4"),
    ("top1", "<u4"),
    ("base_top1_rank", "<u2"),
]

#: How positions were estimated; rows of different estimators are never mixed.
FULL_VOCABULARY = "full"
TOPK_BUCKET = "topk_bucket"


def content_digest(value: Any) -> str:
    """sha256 of a JSON value's canonical form, 64 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to run on every arm. `id` is the digest of its content, so the same case has the same id anywhere.

    Attributes:
        cluster: unit of inference: document, template or prompt. Cases that share a haystack share a cluster.
        bucket: length or position bucket ("" if none).
        category: "code", "chat", ... ("" if none).
        body: JSON value with all that `run` needs.
    """

    id: str
    suite: str
    cluster: str
    bucket: str
    category: str
    body: Mapping[str, Any]

    @classmethod
    def make(cls, suite: str, *, cluster: str, body: Mapping[str, Any], bucket: str = "", category: str = "") -> Case:
        """A case with its id computed. The order of keys counts: a schema's grammar follows it."""
        ordered = json.dumps(body, ensure_ascii=False, allow_nan=False)
        digest = content_digest([suite, cluster, bucket, category, ordered])
        return cls(digest[:16], suite, cluster, bucket, category, body)


@dataclass(frozen=True, slots=True)
class Raw:
    """One answer as it came, before any score.

    Attributes:
        body: JSON value (for chat: text, tool_calls, finish_reason, usage, events); None when there was no answer.
        error: "" or "<class>: <message>" of an engine failure. A Raw with an error is never counted as an answer.
        seed: sampling seed sent.
        started: ISO time, UTC. ms: wall time.
    """

    body: Mapping[str, Any] | None
    error: str = ""
    seed: int = 0
    started: str = ""
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one raw answer: value 0..1 or None, flags in the suite's own words, error."""

    value: float | None
    flags: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class PairScore:
    """An arm's answers to one case against the base's.

    Attributes:
        break_class: "" if nothing broke, else the class of the taxonomy ("invalid_json").
        confirmed: True or False once the repeats decide; None while they do not yet.
        detail: one line for the report, e.g. the schema path.
        repaired: the base was broken and the arm is not.
    """

    break_class: str
    confirmed: bool | None = None
    detail: str = ""
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One run to do: the resume key without the run id. A panel case is one row with arm "*"."""

    arm: str
    case_id: str
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class PositionBlock:
    """Scored positions of one case, lane and arm; `start` is the index in the text of the first token scored."""

    case_id: str
    repeat: int
    lane: str  # "prefill" | "decode"
    arm: str
    start: int
    estimator: str
    data: Positions


@dataclass(frozen=True, slots=True)
class Records:
    """All that one suite saw in one run, as read back from the store. Deterministic order: case, arm, repeat.

    Attributes:
        base: name of the base arm. floors: floor arms of this suite's lane. candidates: candidate arms.
        raws: (arm, case_id) -> answers by repeat. scores: the same keys and order, present once scored.
        pairs: (arm, case_id) -> comparison with the base, for floors and candidates.
        positions: blocks of panel suites.
        digest: sha256 over everything above; seeds the resampling.
    """

    suite: str
    base: str
    floors: tuple[str, ...]
    candidates: tuple[str, ...]
    cases: Mapping[str, Case]
    raws: Mapping[tuple[str, str], tuple[Raw, ...]] = field(default_factory=dict)
    scores: Mapping[tuple[str, str], tuple[Score, ...]] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], PairScore] = field(default_factory=dict)
    positions: tuple[PositionBlock, ...] = ()
    digest: str = ""

    def pair_with(self, candidate: str) -> PairedRecords:
        """The view of one candidate."""
        return PairedRecords(self, candidate)


@dataclass(frozen=True, slots=True)
class PairedRecords:
    """Records seen from one candidate (or from one floor arm, which is then treated as one)."""

    records: Records
    candidate: str
