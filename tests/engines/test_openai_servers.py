"""How each kind of server scores a given text, the base's ids beside its own top, and rows that mean nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvgate.core import registry
from kvgate.core.engine import Available, Lane, Missing, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines._openai_lanes import largest_gap, probe_lanes
from kvgate.engines._pages import readers
from kvgate.engines.servers._server import Question, joined, lost_mass, refuse_alike

#: Four tokens; what follows each text is likely in this order, and shifted by the text's last token.
VOCAB = 40


def truth(ids: Sequence[int], *, shift: int = 0) -> dict[int, float]:
    """A whole distribution after a text: falling by rank, another order after another token."""
    ranked = [(7 * i + 3 * ids[-1] + shift) % VOCAB for i in range(VOCAB)]
    total = sum(0.8**rank for rank in range(VOCAB))
    return {token: math.log(0.8**rank / total) for rank, token in enumerate(dict.fromkeys(ranked))}


def top(ids: Sequence[int], k: int, **how: Any) -> list[tuple[int, float]]:
    return sorted(truth(ids, **how).items(), key=lambda e: -e[1])[:k]


class Pretend:
    """The session as a server's file sees it: answers of one kind of server, and what it was asked."""

    def __init__(self, kind: str, *, cap: int = 5, **how: Any) -> None:
        self.kind, self.cap, self.how = kind, cap, how
        self.asked: list[Mapping[str, Any]] = []
        self.computed = 1

    async def model_name(self, *, timeout_s: float | None = None) -> str:
        return "m"

    async def has_native(self) -> bool:
        return self.kind == "llama_cpp"

    async def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        self.asked.append(body)
        return {"/v1/completions": self._vllm, "/generate": self._sglang, "/completion": self._native}[path](body)

    def _vllm(self, body: Mapping[str, Any]) -> Any:
        ids = body["prompt"]
        if "logprob_token_ids" in body:
            row = {f"token_id:{i}": truth(ids, **self.how)[i] for i in body["logprob_token_ids"]}
            return {"choices": [{"logprobs": {"top_logprobs": [row]}}]}
        rows = [
            {str(i): {"logprob": x} for i, x in top(ids[:n], min(self.cap, body["prompt_logprobs"]), **self.how)}
            for n in range(1, len(ids))
        ]
        return {"choices": [{"prompt_logprobs": [None, *rows]}]}

    def _sglang(self, body: Mapping[str, Any]) -> Any:
        ids, start = body["input_ids"], body["logprob_start_len"]
        wanted = body.get("token_ids_logprob", ())
        ends = range(start + 1, len(ids))
        tops = [None, *([[x, i, "t"] for i, x in top(ids[:n], self.cap, **self.how)] for n in ends)]
        named = [None, *([[truth(ids[:n], **self.how)[i], i, "t"] for i in wanted] for n in ends)]
        tokens = [None, *([truth(ids[:n])[ids[n]], ids[n], "t"] for n in ends)]
        meta = {"input_top_logprobs": tops, "input_token_ids_logprobs": named, "input_token_logprobs": tokens}
        return {"meta_info": meta | {"cached_tokens": 0}}

    def _native(self, body: Mapping[str, Any]) -> Any:
        row = [{"id": i, "logprob": x} for i, x in top(body["prompt"], self.cap, **self.how)]
        return {"completion_probabilities": [{"top_logprobs": row}], "timings": {"prompt_n": self.computed}}


TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
LANE = {"vllm": Lane.PREFILL_TOPK, "sglang": Lane.PREFILL_TOPK, "llama_cpp": Lane.FORCED_DECODE}


def score(ask: Pretend, *, base: Sequence[TopKRow] = (), start: int = 2) -> list[TopKRow]:
    server = registry.get("server", ask.kind)
    rows: list[TopKRow] = asyncio.run(server.score(ask, Question(TEXT, start, LANE[ask.kind], 5, base)))
    return rows


@pytest.mark.parametrize("kind", LANE)
def test_rows_are_of_the_right_positions(kind: str) -> None:
    """The row of token i is what its predecessors make likely, for every kind of server."""
    rows = score(Pretend(kind))

    assert rows == [TopKRow(*zip(*top(TEXT[:n], 5), strict=True)) for n in range(2, len(TEXT))]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_bases_ids_are_in_the_candidates_rows(kind: str) -> None:
    """A candidate with another top tells the base's tokens too, and its own top stays as it is."""
    base, ask = score(Pretend(kind)), Pretend(kind, shift=11)
    plain, beside = score(Pretend(kind, shift=11)), score(ask, base=base)

    assert max(lost_mass(r, b) for r, b in zip(plain, base, strict=True)) > 0.1, "else nothing is to be asked for"
    for n, row, own, theirs in zip(range(2, len(TEXT)), beside, plain, base, strict=True):
        here, right = dict(zip(row.ids, row.logprobs, strict=True)), truth(TEXT[:n], shift=11)
        assert set(theirs.ids) | set(own.ids) == set(row.ids)
        assert all(here[i] == pytest.approx(right[i], abs=1e-12) for i in here)
        assert list(row.logprobs) == sorted(row.logprobs, reverse=True)


def test_vllm_is_asked_again_only_where_it_matters() -> None:
    """Each further question costs a whole request: none for a top that holds nearly all of the base's mass."""
    base = score(Pretend("vllm"))
    same, other = Pretend("vllm"), Pretend("vllm", shift=11)
    score(same, base=base)
    score(other, base=base)

    assert len(same.asked) == 1
    assert len(other.asked) == 1 + len(base)
    assert all(len(body["logprob_token_ids"]) <= 128 and body["max_tokens"] == 1 for body in other.asked[1:])
    assert [len(body["prompt"]) for body in other.asked[1:]] == list(range(2, len(TEXT)))


def test_a_step_that_computed_the_text_again_is_no_decode() -> None:
    """llama.cpp tells how many tokens a step computed; more than one means that the slot's cache was gone."""
    ask = Pretend("llama_cpp")
    ask.computed = 5

    with pytest.raises(BadAnswer, match="computed 5 tokens instead of one") as e:
        score(ask)
    assert e.value.kind == "not_decoded"


def test_every_server_is_one_whose_pages_are_known() -> None:
    """A server's file is chosen by the engine that the pages show, so it needs a reader of that name."""
    assert set(registry.discover("server")) <= set(readers())
    for server in registry.discover("server").values():
        assert server.asked_ids >= 0


def test_joined_rows_keep_their_own_numbers() -> None:
    """What a row says of an id stands; the order is by likelihood."""
    assert joined(TopKRow((1, 2), (-0.5, -3.0)), {2: -9.0, 7: -1.0}) == TopKRow((1, 7, 2), (-0.5, -1.0, -3.0))


@pytest.mark.parametrize(
    ("rows", "k", "fine"),
    [
        ([TopKRow((1,), (0.0,)), TopKRow((2,), (-1e-9,))], 20, False),  # a finished sampler, or a draft's check
        ([TopKRow((1,), (0.0,)), TopKRow((2,), (0.0,))], 1, True),  # one was asked for
        ([TopKRow((1,), (0.0,))], 20, True),  # one certain position is possible
        ([TopKRow((1,), (-0.7,)), TopKRow((2,), (-0.1,))], 20, True),  # a short list of real numbers
        ([TopKRow((1, 2), (-0.7, -0.8))] * 8, 2, False),
        ([TopKRow((1, 2), (-0.7, -0.8))] * 7, 2, True),
        ([], 5, True),
    ],
)
def test_rows_that_no_text_has(rows: list[TopKRow], k: int, fine: bool) -> None:
    """One entry of no doubt everywhere, or one top everywhere, is refused; what a model can give passes."""
    if fine:
        refuse_alike(rows, k)
        return
    with pytest.raises(BadAnswer) as e:
        refuse_alike(rows, k)
    assert e.value.kind == "degenerate_logprobs"


class Cached:
    """A session whose prefix cache makes prompt log-probabilities wrong the second time, or does not."""

    def __init__(self, kind: str, second: str) -> None:
        self._ask, self._second, self._seen = Pretend(kind), second, 0
        self.asked_ids = registry.get("server", kind).asked_ids

    async def generate(self, request: Any = None) -> Any:
        raise BadAnswer("none")

    metrics = generate

    async def exact_tokens(self, text: str) -> tuple[int, ...]:
        return tuple(ord(c) % VOCAB for c in text)

    async def tokenize(self, text: str, *, special: bool = False) -> Any:
        from kvgate.core.engine import Tokens

        return Tokens(await self.exact_tokens(text))

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        return await self.score_beside(ids, start=start, lane=lane, k=k, base=())

    async def score_beside(
        self, ids: Sequence[int], *, start: int, lane: Lane, k: int, base: Sequence[TopKRow]
    ) -> Sequence[TopKRow]:
        server = registry.get("server", self._ask.kind)
        self._seen += len(ids) > 40 and not base
        if self._seen == 2 and self._second == "short":
            raise BadAnswer("3 positions in the answer, 90 asked for")
        if self._seen == 2 and self._second == "stale":
            self._ask.how = {"shift": 11}
        if base and self._second == "wrong_names":
            self._ask.how = {"shift": 11}
        rows: Sequence[TopKRow] = await server.score(self._ask, Question(ids, start, lane, k, base))
        return rows


@pytest.mark.parametrize(
    ("second", "lane"),
    [
        ("same", Available({"top_k": 5, "ids": 128})),
        ("wrong_names", Available({"top_k": 5})),
        ("short", Missing("not scored again once its prefix is cached")),
        ("stale", Missing("a text's rows are others once its prefix is cached")),
    ],
)
def test_a_prefix_cache_that_spoils_prompt_logprobs_is_found(second: str, lane: Available | Missing) -> None:
    """The same text twice must give the same rows; ids that may be named must have the values of the top."""
    found = asyncio.run(probe_lanes(Cached("vllm", second)))[Lane.PREFILL_TOPK]

    if isinstance(lane, Missing):
        assert isinstance(found, Missing) and lane.reason in found.reason and "prefix cache off" in found.reason
    else:
        assert found == lane


def test_the_gap_is_of_likely_tokens() -> None:
    """A tail that moves is no staleness; a likely token that moves, or that one list lacks, is."""
    a = [TopKRow((1, 2), (-0.1, -6.0))]

    assert largest_gap(a, [TopKRow((1, 3), (-0.11, -6.5))]) == pytest.approx(0.01)
    assert largest_gap(a, [TopKRow((1, 2), (-1.1, -0.5))]) == pytest.approx(5.5)
    assert largest_gap(a, [TopKRow((7, 2), (-0.1, -6.0))]) == pytest.approx(5.9)
