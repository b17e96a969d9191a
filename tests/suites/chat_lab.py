"""Records of the serving suites made with fake engines; shared by the tests of golden and needle.

`Desk` answers from the fake engine's model without a server, `Lines` from a function. Over HTTP: `kvgate.testing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.engine import Generate, Generated, Tokens
from kvgate.core.errors import EngineError
from kvgate.core.observation import Case, Raw, Records, content_digest
from kvgate.core.suite import Suite, SuiteContext
from kvgate.engines import _fake_tokens
from kvgate.engines._fake_answers import answer, read_chat
from kvgate.engines._fake_breaks import broken, disturbed
from kvgate.engines._fake_script import FakeScript

Script = Mapping[str, Any]


def fake_tokens(text: str) -> Tokens:
    """The fake engine's own tokenizer."""
    return Tokens(tuple(_fake_tokens.encode(text)))


def context(params: Any, *, tokens: int = 8192, seed: int = 0, **files: Any) -> SuiteContext:
    """A context for `cases`."""
    return SuiteContext(params, seed, fake_tokens, tokens, files)


@dataclass
class Desk:
    """A session of one arm without a server: the fake model's answers, faults and noise."""

    script: FakeScript
    noise_seed: int = 0
    served: list[Generate] = field(default_factory=list)

    async def generate(self, request: Generate) -> Generated:
        body = {"messages": list(request.messages or ()), **request.extra}
        asked = read_chat(body)
        n_prompt = len(_fake_tokens.encode(asked.text))
        given = answer(self.script, type(asked)(**{**_fields(asked), "n_tokens": n_prompt}))
        given = disturbed(self.script, self.noise_seed, len(self.served), broken(self.script, asked, given))
        self.served.append(request)
        calls = (
            [{"id": f"call_{len(self.served)}", "function": dict(zip(("name", "arguments"), given.tool, strict=True))}]
            if given.tool
            else []
        )
        ids = _fake_tokens.encode(given.text)
        cut = len(ids) > request.max_tokens
        text = _fake_tokens.decode(ids[: request.max_tokens]) if cut else given.text
        return Generated(
            text, "length" if cut else given.finish_reason, tuple(calls), usage={"completion_tokens": len(ids)}
        )


def _fields(asked: Any) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__dataclass_fields__}


class Lines:
    """A session that answers from a function of (request, how often it was asked)."""

    def __init__(self, say: Callable[[Generate, int], Generated]) -> None:
        self.say, self.asked = say, dict[str, int]()

    async def generate(self, request: Generate) -> Generated:
        key = content_digest(list(request.messages or ()))
        self.asked[key] = self.asked.get(key, 0) + 1
        return self.say(request, self.asked[key] - 1)


async def _answer(suite: Suite, session: Any, case: Case, repeat: int) -> Raw:
    try:
        return await suite.run(session, case, repeat, 0)
    except EngineError as e:
        return Raw(None, error=f"{type(e).__name__}: {e}")


async def observed(suite: Suite, cases: Sequence[Case], sessions: Mapping[str, Any], floors: int = 1) -> Records:
    """First answers of all arms, then what the suite asks for until it asks for nothing. Arms: base, floors, rest."""
    arms = list(sessions)
    raws: dict[tuple[str, str], tuple[Raw, ...]] = {}
    for arm in arms:
        for case in cases:
            raws[arm, case.id] = (await _answer(suite, sessions[arm], case, 0),)

    def records() -> Records:
        digest = content_digest([[k[0], k[1], [r.body for r in v]] for k, v in sorted(raws.items())])
        return Records(
            suite.name,
            arms[0],
            tuple(arms[1 : 1 + floors]),
            tuple(arms[1 + floors :]),
            {c.id: c for c in cases},
            dict(raws),
            digest=digest,
        )

    while work := suite.next_work(records()):
        for w in work:
            case = next(c for c in cases if c.id == w.case_id)
            assert w.repeat == len(raws[w.arm, w.case_id]), "a rerun takes the next number"
            raws[w.arm, w.case_id] += (await _answer(suite, sessions[w.arm], case, w.repeat),)
    return records()


def at_desks(
    suite: Suite, cases: Sequence[Case], base: Script, candidate: Script, *, noise: int = 0, floors: int = 1
) -> Records:
    """Base, floors with the base's script, one candidate; every arm has noise of its own."""
    scripts = [base] * (1 + floors) + [candidate]
    names = ["base", *(f"floor{i}" for i in range(floors)), "candidate"]
    desks = {
        n: Desk(FakeScript.model_validate(s), 100 * noise + i)
        for i, (n, s) in enumerate(zip(names, scripts, strict=True))
    }
    return asyncio.run(observed(suite, cases, desks, floors))
