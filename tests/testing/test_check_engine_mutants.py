"""Drivers that are broken on purpose: each fails the contract suite, with a sentence that says what it broke."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from kvgate.core.deployment import Consequence, Deployment, Engaged, Engagement, Expected, Note
from kvgate.core.engine import Available, Generate, Generated, Lane, Launch, Missing, Request, Session, Tokens, TopKRow
from kvgate.core.errors import BadAnswer, EngineError, EngineTimeout, UserError
from kvgate.core.registry import discover
from kvgate.engines.fake import FakeDriver
from kvgate.testing import EngineReport, check_engine, fake_request
from testing.toy_engine import STORES, ToyDriver, ToySession

REQUEST = fake_request("q8_0", context_tokens=512)


def checked(driver: Any, request: Request = REQUEST) -> EngineReport:
    return asyncio.run(check_engine(driver, request))


def test_the_unbroken_toy_passes() -> None:
    """What the mutants are made of keeps every promise that can be asked of something without a process."""
    report = checked(ToyDriver())

    assert "prefill_topk rows are sorted, of probabilities, and of their positions" in report.checks
    assert report.untested == ["the engine has no process that could be killed"]


class Impure(ToyDriver):
    calls = 0

    def resolve(self, want: Request) -> Launch:
        self.calls += 1
        return replace(super().resolve(want), env={"CALL": str(self.calls)})


class ChangesOurEnvironment(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        os.environ["KVGATE_MUTANT"] = str(id(want))
        return super().resolve(want)


class ShellLine(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        return replace(super().resolve(want), argv="toy --model x")  # type: ignore[arg-type]


class KeyInTheLaunch(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        return replace(super().resolve(want), engine_options={"arguments": ["--api-key", "0123456789abcdef" * 4]})


class TakesAnything(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        known = want.recipe.k is not None and want.recipe.k.codec in STORES
        return super().resolve(want if known else replace(want, recipe=REQUEST.recipe))


class SaysNothingAllowed(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        try:
            return super().resolve(want)
        except UserError:
            raise UserError(f"no {want.spelling}") from None


class HidesTheNearest(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        try:
            return super().resolve(want)
        except UserError:
            raise UserError(f"no {want.spelling}", allowed=["f16"]) from None


class RaisesATraceback(ToyDriver):
    def resolve(self, want: Request) -> Launch:
        try:
            return super().resolve(want)
        except UserError:
            raise KeyError(want.spelling) from None


class AlwaysSure(ToyDriver):
    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return Engaged(Engagement.CONFIRMED, "surely", ("surely",))


class SureOfWhatItSees(ToyDriver):
    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        if observed.consequence.k_codec is None:
            return Engaged(Engagement.UNOBSERVED, "nothing")
        return Engaged(Engagement.CONFIRMED, "something", observed.evidence)


class ProvesNothing(ToyDriver):
    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return super().engaged(expected, observed)._replace(lines=())


class HasAPanelAfterAll(ToyDriver):
    def open_panel(self, launches: Mapping[str, Launch]) -> Any:
        return open(os.devnull)


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (Impure, "resolve\\(\\) is not pure"),
        (ChangesOurEnvironment, "changed the environment of this process"),
        (ShellLine, "never a shell line"),
        (KeyInTheLaunch, "looks like a key"),
        (TakesAnything, "which nothing stores, was taken"),
        (SaysNothingAllowed, "names nothing that is allowed"),
        (HidesTheNearest, "does not name 'q8_0'"),
        (RaisesATraceback, "raised KeyError, not UserError"),
        (AlwaysSure, "of which nothing was observed"),
        (SureOfWhatItSees, "confirmed where other types were observed"),
        (ProvesNothing, "without a reason and lines"),
        (HasAPanelAfterAll, "says that there is no panel"),
    ],
)
def test_a_broken_driver(driver: type[ToyDriver], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolution and engagement."""
    monkeypatch.setenv("KVGATE_MUTANT", "")
    with pytest.raises(AssertionError, match=says):
        checked(driver())


class Fields(ToySession):
    """A deployment with some fields changed."""

    changed: ClassVar[Mapping[Any, Any]] = {}

    async def deployment(self) -> Deployment:
        return (await super().deployment()).model_copy(update=dict(self.changed))


class OtherEngine(Fields):
    async def deployment(self) -> Deployment:
        seen = await super().deployment()
        return seen.model_copy(update={"identity": seen.identity.model_copy(update={"engine": "vllm"})})


class Changing(ToySession):
    calls = 0

    async def deployment(self) -> Deployment:
        seen, Changing.calls = await super().deployment(), Changing.calls + 1
        return seen.model_copy(update={"identity": seen.identity.model_copy(update={"build": str(self.calls)})})


class Lanes(ToySession):
    changed: ClassVar[Mapping[Any, Any]] = {}

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        return {k: v for k, v in {**await super().lanes(), **self.changed}.items() if v is not None}


class Guesses(ToySession):
    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        return replace(await super().tokenize(text), exact=False)


class CutsTexts(ToySession):
    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        return Tokens(tuple(text.encode()[:200]))


class Answers(ToySession):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return got

    async def generate(self, request: Generate) -> Generated:
        return self.bend(request, await super().generate(request))


class Moody(Answers):
    calls = 0

    def bend(self, request: Generate, got: Generated) -> Generated:
        Moody.calls += 1
        return replace(got, text=f"{got.text}{self.calls}")


class LosesTheEnd(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, text=got.text[:-1]) if request.stream else got


class NoArrivals(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, events=())


class NoEnd(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, finish_reason=None)


class KeepsNothing(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, raw={})


class EmptyPage(ToySession):
    async def metrics(self) -> str:
        return "\n"


class CountsWrong(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, usage={"completion_tokens": 99})


class TopsUpsideDown(Answers):
    def bend(self, request: Generate, got: Generated) -> Generated:
        return replace(got, topk=tuple(replace(p, top=p.top[::-1]) for p in got.topk))


class TooManyTops(Answers):
    async def generate(self, request: Generate) -> Generated:
        return await super().generate(replace(request, top_logprobs=2 * request.top_logprobs))


class CutsPrompts(ToySession):
    def fits(self, n: int) -> None:
        """Anything."""


class CutsChats(ToySession):
    async def generate(self, request: Generate) -> Generated:
        if request.messages is not None:
            request = replace(request, messages=[{**m, "content": m["content"][:99]} for m in request.messages])
        return await super().generate(request)


class CutsScores(ToySession):
    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        return await super().score(ids[-400:], start=min(start, 399), lane=lane, k=k)


class DiesOfLength(ToySession):
    def fits(self, n: int) -> None:
        try:
            super().fits(n)
        except BadAnswer:
            raise EngineError("died") from None


class Patient(ToySession):
    async def generate(self, request: Generate) -> Generated:
        return await super().generate(replace(request, timeout_s=9))


class WrongHurry(ToySession):
    async def generate(self, request: Generate) -> Generated:
        try:
            return await super().generate(request)
        except EngineTimeout:
            raise BadAnswer("slow") from None


class Rows(ToySession):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return rows

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        return self.bend(list(await super().score(ids, start=start, lane=lane, k=k)))


class OneShort(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return rows[1:] or rows


class Ascending(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow(r.ids[::-1], r.logprobs[::-1]) for r in rows]


class Heavy(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow(r.ids, tuple(x / 8 for x in r.logprobs)) for r in rows]


class Positive(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow(r.ids, (0.5, *r.logprobs[1:])) for r in rows]


class NotANumber(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow(r.ids, (*r.logprobs[:-1], float("nan"))) for r in rows]


class Twice(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow((r.ids[0], r.ids[0], *r.ids[2:]), r.logprobs) for r in rows]


class FewEntries(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [TopKRow(r.ids[:1], r.logprobs[:1]) for r in rows]


class AllAlike(Rows):
    def bend(self, rows: list[TopKRow]) -> Sequence[TopKRow]:
        return [rows[0]] * len(rows)


class OffByOne(ToySession):
    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """Each row is that of the next token; the last one has none, and is made from what there is."""
        return await super().score([*ids, 97], start=start + 1, lane=lane, k=k)


class Shifted(ToySession):
    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """Rows of a window that ends where scoring starts: they hang on the start."""
        return await super().score(ids[start - 1 :], start=1, lane=lane, k=k)


class LooksAhead(ToySession):
    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        ahead = [[*ids[:n], ids[-1]] for n in range(start, len(ids))]
        return [(await super(LooksAhead, self).score([*a, 0], start=len(a), lane=lane, k=k))[0] for a in ahead]


class Noisy(ToySession):
    calls = 0

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        Noisy.calls += 1
        return await super().score([*ids[:-2], self.calls % 7, ids[-1]], start=start, lane=lane, k=k)


def bent(name: str, base: type[ToySession], changed: Mapping[Any, Any]) -> type[ToySession]:
    """A session that is only told apart by what it changes."""
    return type(name, (base,), {"changed": changed})


SESSIONS: Sequence[tuple[type[ToySession], str]] = [
    (OtherEngine, "says engine 'vllm'"),
    (bent("Blind", Fields, {"consequence": Consequence()}), "observed no KV cache types"),
    (bent("Unproven", Fields, {"evidence": ()}), "no evidence lines"),
    (
        bent("TellsTheKey", Fields, {"evidence": ("server_args: api_key=" + "0123456789abcdef" * 4,)}),
        "evidence holds what looks like a key",
    ),
    (
        bent("OpenToAll", Fields, {"note": Note(place="serving", host="0.0.0.0", port=1)}),
        "listens on 0.0.0.0, not on loopback",
    ),
    (Changing, "changed between two calls on one server"),
    (bent("ForgetsALane", Lanes, {Lane.METRICS: None}), "says nothing about \\['metrics'\\]"),
    (bent("MissingWithoutReason", Lanes, {Lane.METRICS: Missing(" ")}), "missing without a reason"),
    (bent("NoLimit", Lanes, {Lane.PREFILL_TOPK: Available()}), "does not say how many entries"),
    (Guesses, "tokenize\\(\\) guesses"),
    (CutsTexts, "for ten times the text"),
    (Moody, "temperature 0 gave two answers"),
    (LosesTheEnd, "streamed '"),
    (NoArrivals, "arrival of its events"),
    (NoEnd, "finish_reason is None"),
    (KeepsNothing, "keeps no raw answer"),
    (EmptyPage, "the page is empty"),
    (bent("ReasonOfLines", Lanes, {Lane.METRICS: Missing("a\nb")}), "a reason of several lines"),
    (bent("LimitOfNothing", Lanes, {Lane.CHAT: Available({"top_k": 0})}), "limits that are none"),
    (CountsWrong, "usage counts 99 tokens"),
    (TopsUpsideDown, "top logprobs are not in order"),
    (TooManyTops, "3 alternatives were asked for, 6 came"),
    (CutsPrompts, "a complete over the context was answered"),
    (CutsChats, "a chat over the context was answered"),
    (CutsScores, "a text over the context was scored"),
    (DiesOfLength, "over the context raised EngineError, not BadAnswer"),
    (Patient, "answered within 0.1 ms"),
    (WrongHurry, "raised BadAnswer, not EngineTimeout"),
    (OneShort, "5 rows for 6 positions"),
    (Ascending, "not most likely first"),
    (Heavy, "sums to more than 1"),
    (Positive, "no log-probabilities"),
    (NotANumber, "no log-probabilities"),
    (Twice, "a token twice in one top"),
    (FewEntries, "4 entries were asked for and promised, 1 came"),
    (AllAlike, "the same top at all 6 positions"),
    (OffByOne, "generation chooses from"),
    (Shifted, "hangs on where scoring starts"),
    (Noisy, "a text scored twice gave other rows"),
    (LooksAhead, "rows hang on tokens that come after them"),
]


@pytest.mark.parametrize(("session", "says"), SESSIONS, ids=[s.__name__ for s, _ in SESSIONS])
def test_a_broken_session(session: type[ToySession], says: str) -> None:
    """Observation, lanes, answers, rows."""
    driver = ToyDriver()
    driver.session = session

    with pytest.raises(AssertionError, match=says):
        checked(driver)


class Wrapped(FakeDriver):
    """The fake engine, which has a process, with something wrong around it."""

    @asynccontextmanager
    async def _around(self, launch: Launch) -> AsyncIterator[Session]:
        async with super().open(launch) as session:
            yield session

    def open(self, launch: Any) -> Any:
        return self._around(launch)


class KeyOnTheCommandLine(Wrapped):
    def open(self, launch: Any) -> Any:
        return FakeDriver().open(replace(launch, argv=(*launch.argv, "0123456789abcdef" * 4)))


class LeavesItsProcess(Wrapped):
    """It is stopped when the test is over, not before."""

    kept: ClassVar[list[Any]] = []

    @asynccontextmanager
    async def _around(self, launch: Launch) -> AsyncIterator[Session]:
        inner = FakeDriver().open(launch)
        self.kept.append(inner)
        yield await inner.__aenter__()


class NamesAnotherDeath(Wrapped):
    @asynccontextmanager
    async def _around(self, launch: Launch) -> AsyncIterator[Session]:
        async with FakeDriver().open(launch) as session:
            honest = session.generate

            async def generate(request: Generate) -> Generated:
                try:
                    return await honest(request)
                except EngineTimeout:
                    raise
                except BadAnswer:
                    raise
                except EngineError:
                    raise BadAnswer("something") from None

            session.generate = generate  # type: ignore[method-assign]
            yield session


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (KeyOnTheCommandLine, "looks like a key among its words"),
        (LeavesItsProcess, "still runs"),
        (NamesAnotherDeath, "raised BadAnswer, not EngineDied"),
    ],
)
def test_a_broken_process(driver: type[Wrapped], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, ends and deaths of real processes."""
    monkeypatch.setattr("kvgate.testing._engine_process.GONE_S", 0.3)
    LeavesItsProcess.kept.clear()

    async def run() -> None:
        try:
            await check_engine(driver(), REQUEST)
        finally:
            for inner in LeavesItsProcess.kept:
                await inner.__aexit__(None, None, None)

    with pytest.raises(AssertionError, match=says):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"wrong_dtype": "f16"}, "contradicted"),
        ({"silent_log": True}, "observed no KV cache types"),
        ({"noise_rate": 1.0, "noise_tail": 0.1, "noise_seed": 3}, "temperature 0 gave two answers"),
    ],
)
def test_a_fake_engine_with_faults(script: Mapping[str, Any], says: str) -> None:
    """Faults of the server itself, not of its driver."""
    with pytest.raises(AssertionError, match=says):
        checked(discover("engine")["fake"], fake_request("q8_0", script=script, context_tokens=512))
