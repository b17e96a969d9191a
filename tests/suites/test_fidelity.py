"""Cases, lanes and blocks of the fidelity suite, on the fake panel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from fidelity_lab import NONE, RecordingPanel, context, made_cases, word_tokens
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_corpus import write

from kvgate.core.engine import Lane, Pass, Tokens
from kvgate.core.errors import BadAnswer, LaneUnavailable, UserError
from kvgate.core.observation import Case, Raw, Records, content_digest
from kvgate.core.registry import get
from kvgate.core.suite import SuiteContext
from kvgate.stats.divergence import score_rows
from kvgate.suites.fidelity import SUITE, FidelityParams, block_sizes

ARMS = {"base": NONE, "same": NONE, "noisy": {"logit_sd": 0.2}}


def cases(params: FidelityParams | None = None, corpus: Path | None = None, tokens: int = 512) -> list[Case]:
    return list(SUITE.cases(context(params, corpus, tokens)))


def words(n: int, salt: int = 0) -> str:
    return " ".join(f"w{(i * i + salt) % 97}" for i in range(n))


def test_it_is_registered() -> None:
    """The registry finds the suite by name, and it asks for a panel."""
    assert get("suite", "fidelity") is SUITE
    assert SUITE.needs == {Lane.PANEL}


def test_smoke_is_two_documents_a_category_and_eight_decodes() -> None:
    """Smoke has twelve documents of 192 scored tokens; eight of them, from all categories, go on for 24 steps."""
    made = cases()
    assert len(made) == 12
    assert {c.body["prefill"] for c in made} == {192}
    decoding = [c for c in made if c.body["decode"]]
    assert {(c.body["decode"], c.body["prefix"]) for c in decoding} == {(24, 192)}
    assert len(decoding) == 8
    assert len({c.category for c in decoding}) == 6
    assert [c.cluster for c in made if c.category == "code"] == [
        "code/01-python-scheduler.txt",
        "code/02-mixed-languages.txt",
    ]
    cost = SUITE.cost(made, SUITE.presets()["smoke"])
    assert (cost.cases, cost.prefill_tokens, cost.decode_tokens) == (12, 12 * 192, 8 * 24)


def test_cases_are_deterministic_and_plain_json() -> None:
    """The same context gives the same ids, and a body survives JSON."""
    first, again = cases(), cases()
    assert [c.id for c in first] == [c.id for c in again]
    assert len({c.id for c in first}) == len(first)
    assert json.loads(json.dumps(first[0].body)) == first[0].body
    assert first[0].id == Case.make("fidelity", cluster=first[0].cluster, category="chat", body=first[0].body).id


def test_default_takes_whole_documents_up_to_the_context() -> None:
    """Without a token limit a document is used to its end or to the context's, and decode goes on from there."""
    tokens = 400
    made = {c.cluster: c for c in cases(SUITE.presets()["default"], tokens=tokens)}
    body = made["long/01-water-report.txt"].body
    assert (body["prefill"], body["prefix"], body["decode"], len(body["ids"])) == (tokens - 65, tokens - 65, 64, tokens)
    short = made["chat/01-bicycle-repair.txt"].body
    for c in made.values():
        assert len(c.body["ids"]) <= tokens
        assert c.body["prefill"] + c.body["decode"] + 1 == len(c.body["ids"])
    assert short["ids"] == list(word_tokens_of("chat/01-bicycle-repair.txt")[:tokens])


def word_tokens_of(name: str) -> tuple[int, ...]:
    from kvgate.suites._fidelity_corpus import read_corpus

    return next(word_tokens(d.text).ids for d in read_corpus(None).documents if d.name == name)


def test_a_separate_decode_prefix(tmp_path: Path) -> None:
    """With its own prefix the decode lane starts inside the text, and its second prefill is in the cost."""
    write(tmp_path, a__x=words(300))
    params = FidelityParams(prefill_tokens=200, decode_prefix_tokens=70, decode_tokens=5)
    (case,) = cases(params, tmp_path)
    assert (case.body["prefill"], case.body["prefix"], case.body["decode"]) == (200, 70, 5)
    assert len(case.body["ids"]) == 201
    assert SUITE.cost([case], params).prefill_tokens == 270


@pytest.mark.parametrize(
    "bad",
    [
        {"prefill_tokens": 63},
        {"decode_prefix_tokens": 10},
        {"decode_tokens": -1},
        {"documents_per_category": 0},
        {"tokens": 5},
    ],
)
def test_params_refuse_what_would_measure_something_else(bad: dict[str, int]) -> None:
    """Blocks under 64 tokens run another kernel; unknown and senseless parameters are refused too."""
    with pytest.raises(ValidationError):
        FidelityParams(**bad)


def test_short_documents_are_skipped_and_said(tmp_path: Path) -> None:
    """A document too short for the need is left out with the reason, and the next one takes its place."""
    write(tmp_path, a__1=words(50), a__2=words(100), a__3=words(100, 1), a__4=words(100, 2), b__1=words(3))
    made = cases(FidelityParams(documents_per_category=2, prefill_tokens=80, decode_tokens=0), tmp_path)
    assert [c.cluster for c in made] == ["a/2.txt", "a/3.txt", "a/4.txt"]
    assert made[0].body["skipped"] == ["a/1.txt: 50 tokens, 81 needed", "b/1.txt: 3 tokens, 81 needed"]
    assert "skipped" not in made[1].body


def test_a_preset_takes_twelve_documents_however_they_are_sorted(tmp_path: Path) -> None:
    """One folder of a person's texts fills the preset alone; what is not used is said."""
    write(tmp_path, **{f"a__{i:02d}": words(100, i) for i in range(14)})
    made = cases(FidelityParams(documents_per_category=2, prefill_tokens=80, decode_tokens=0), tmp_path)
    assert len(made) == 12
    assert made[0].body["skipped"] == ["2 more documents are not used by this preset, which takes 12 of each category"]


def test_too_few_documents_for_the_decode_lane_are_said(tmp_path: Path) -> None:
    """Documents long enough for prefill only are used there, and the missing decode is noted."""
    write(tmp_path, a__1=words(100), b__1=words(200))
    made = cases(FidelityParams(prefill_tokens=90, decode_tokens=20), tmp_path)
    assert [c.body["decode"] for c in made] == [0, 20]
    assert made[0].body["skipped"] == ["decode lane: 1 of 2 documents have the 111 tokens it needs"]


@pytest.mark.parametrize(("text", "longest"), [("word", 1), ("a few words", 3)])
def test_a_corpus_of_one_token_is_refused(tmp_path: Path, text: str, longest: int) -> None:
    """Nothing usable is one line with the corpus, what the longest document has and what is needed."""
    write(tmp_path, a__x=text)
    with pytest.raises(UserError, match=f"the longest has {longest} tokens, 193 are needed") as error:
        cases(corpus=tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_context_too_short_is_refused() -> None:
    """The message says the need and a context that meets it."""
    with pytest.raises(UserError, match="needs 217; use --context 256"):
        cases(tokens=128)
    assert cases(tokens=217)


def test_guessed_token_ids_are_refused() -> None:
    """Without exact ids the text cannot be forced; the lane is unavailable."""
    guess = SuiteContext(SUITE.presets()["smoke"], 0, lambda text: Tokens((1,) * 500, exact=False), 512)
    with pytest.raises(LaneUnavailable, match="exact token ids"):
        list(SUITE.cases(guess))


@given(st.integers(64, 5000))
def test_blocks_are_never_small(tokens: int) -> None:
    """Every block has 64 to 128 tokens, they add up, and all but the last are multiples of 64."""
    sizes = block_sizes(tokens)
    assert sum(sizes) == tokens
    assert all(64 <= n <= 128 for n in sizes)
    assert all(n % 64 == 0 for n in sizes[:-1])


def test_too_few_tokens_for_a_block() -> None:
    """63 tokens are a programming error, not a small block."""
    with pytest.raises(ValueError, match="at least 64"):
        block_sizes(63)


def test_lanes_score_the_next_tokens_of_the_text() -> None:
    """Positions equal score_rows on the whole text, with the right targets and starts, for every arm but the base."""
    (case,) = made_cases(3, documents=1, prefill=150, decode=7)
    panel = RecordingPanel(ARMS, seed=1)
    blocks = SUITE.run_panel(panel, case, "base", list(ARMS))
    assert panel.steps == [(64, Pass.PREFILL), (86, Pass.PREFILL)] + 7 * [(1, Pass.DECODE)]
    ids = np.asarray(case.body["ids"])
    panel.begin(ids.tolist())
    rows = panel.step(157, Pass.PREFILL)
    by_key = {(b.lane, b.arm): b for b in blocks}
    assert set(by_key) == {(lane, arm) for lane in ("prefill", "decode") for arm in ("same", "noisy")}
    for arm in ("same", "noisy"):
        want = score_rows(rows["base"], rows[arm], ids[1:])
        assert (by_key["prefill", arm].start, by_key["decode", arm].start) == (1, 151)
        assert by_key["prefill", arm].data.tobytes() == want[:150].tobytes()
        assert by_key["decode", arm].data.tobytes() == want[150:].tobytes()
    assert not by_key["prefill", "same"].data["kl"].any()
    assert by_key["decode", "noisy"].data["kl"].all()


def test_a_separate_prefix_is_fed_and_not_scored() -> None:
    """The decode lane begins again, feeds its prefix in blocks, and scores only what follows."""
    (case,) = made_cases(4, documents=1, prefill=100)
    body = {**case.body, "prefix": 64, "decode": 3}
    case = Case.make("fidelity", cluster="d", body=body)
    panel = RecordingPanel(ARMS, seed=1)
    blocks = SUITE.run_panel(panel, case, "base", list(ARMS))
    assert panel.steps == [(100, Pass.PREFILL), (64, Pass.PREFILL)] + 3 * [(1, Pass.DECODE)]
    decode = next(b for b in blocks if b.lane == "decode" and b.arm == "same")
    assert (decode.start, len(decode.data)) == (65, 3)
    prefill = next(b for b in blocks if b.lane == "prefill" and b.arm == "same")
    # The text's positions 65, 66, 67 are rows 64, 65, 66 of the prefill lane.
    assert decode.data["base_lp"].tolist() == prefill.data["base_lp"][64:67].tolist()


def test_blocks_hold_at_most_1024_positions() -> None:
    """A long document is stored in rows of at most 1,024 positions whose starts follow each other."""
    (case,) = made_cases(5, documents=1, prefill=2500)
    blocks = SUITE.run_panel(RecordingPanel(ARMS, seed=1), case, "base", ["base", "noisy"])
    assert [(b.start, len(b.data), b.arm) for b in blocks] == [
        (1, 1024, "noisy"),
        (1025, 1024, "noisy"),
        (2049, 452, "noisy"),
    ]


def test_nan_logits_leave_the_lane_and_only_theirs() -> None:
    """An arm whose logits are not numbers has no positions; the others keep theirs; a bad base ends the case."""
    (case,) = made_cases(6, documents=1)
    arms = {"base": NONE, "bad": {"logit_nan_at": 40}, "good": {"logit_sd": 0.1}}
    blocks = SUITE.run_panel(RecordingPanel(arms, seed=1), case, "base", ["bad", "good"])
    assert ("bad", "prefill") not in {(b.arm, b.lane) for b in blocks}
    alone = SUITE.run_panel(RecordingPanel({k: arms[k] for k in ("base", "good")}, seed=1), case, "base", ["good"])
    kept = [b for b in blocks if b.arm == "good"]
    assert [(b.lane, b.start, b.data.tobytes()) for b in kept] == [(b.lane, b.start, b.data.tobytes()) for b in alone]

    with pytest.raises(BadAnswer, match="degenerate"):
        SUITE.run_panel(RecordingPanel({"base": {"logit_nan_at": 40}, "good": NONE}, seed=1), case, "base", ["good"])


class ShortPanel(RecordingPanel):
    """Loses an arm, or a row."""

    def __init__(self, lose: str) -> None:
        super().__init__(ARMS, seed=1)
        self.lose = lose

    def step(self, n: int, how: Pass) -> Mapping[str, np.ndarray]:
        rows = dict(super().step(n, how))
        if self.lose == "row":
            rows["noisy"] = rows["noisy"][:-1]
        else:
            del rows[self.lose]
        return rows


@pytest.mark.parametrize("lose", ["row", "noisy", "base"])
def test_missing_rows_are_a_bad_answer(lose: str) -> None:
    """An arm or a row that the panel does not return is a failure of the engine."""
    (case,) = made_cases(7, documents=1)
    with pytest.raises(BadAnswer, match="gave no 64 rows"):
        SUITE.run_panel(ShortPanel(lose), case, "base", list(ARMS))


def test_the_serving_half_of_the_protocol_does_nothing() -> None:
    """A panel suite cannot be run on a server, scores nothing, breaks nothing and asks for no second pass."""
    (case,) = made_cases(8, documents=1)
    with pytest.raises(LaneUnavailable, match="panel"):
        asyncio.run(SUITE.run(None, case, 0, 0))  # type: ignore[arg-type]
    raw: Sequence[Raw] = (Raw(None, error="EngineDied: x"),)
    assert (SUITE.score(case, raw[0]).value, SUITE.score(case, raw[0]).error) == (None, "EngineDied: x")
    assert SUITE.compare(case, raw, raw).break_class == ""
    records = Records("fidelity", "base", (), (), {case.id: case}, digest=content_digest(0))
    assert not SUITE.next_work(records)
