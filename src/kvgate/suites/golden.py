"""golden: chats whose answers have structure, asked at temperature 0 and compared with the base's answers.

A break is structural: JSON that no longer parses, a tool call that is missing or wrong, a loop, an answer that runs
into the limit, another script (`_breaks/`). Other words are drift, which is reported and breaks nothing: at
temperature 0 two runs of one engine differ on many prompts already.

Breaks are reproduced by reruns and held against the floor arms (`_golden/confirm.py`). The file format is in
`_golden/format.py`; without `--golden FILE` our own 80 prompts are asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvgate.core.engine import ArmId, Generate, Lane, Panel, Session
from kvgate.core.errors import LaneUnavailable, UserError
from kvgate.core.observation import Case, PairedRecords, PairScore, PositionBlock, Raw, Records, Score, Work
from kvgate.core.suite import Cost, Fault, SuiteContext, Summary
from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._golden.confirm import compare_runs, reruns
from kvgate.suites._golden.format import Prompt
from kvgate.suites._golden.reader import read_prompts

#: What a chat template adds, seen up to 70 tokens with a system prompt of its own.
TEMPLATE_TOKENS = 96
#: Limit of a prompt that names none.
DEFAULT_MAX_TOKENS = 512
_SENT = ("tools", "tool_choice", "response_format")


class GoldenParams(BaseModel):
    """Sizes of the suite.

    Attributes:
        max_tokens: upper limit of an answer; a prompt's own limit counts if it is lower.
        prompts: how many to ask (critical ones first, then those tagged smoke, then by turns of the categories);
            None asks all.
        repeats: planned runs of each prompt on each arm; reruns that confirm a break come on top, up to 5.
        file: a golden file; `--golden` does the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=1)
    prompts: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=1, ge=1, le=5)
    file: Path | None = None


class Golden:
    """The suite object; holds nothing."""

    name = "golden"
    version = 1
    scorer_version = 1
    needs = frozenset({Lane.CHAT, Lane.TOKENIZE})
    Params = GoldenParams

    def presets(self) -> Mapping[str, BaseModel]:
        """smoke: 12 prompts x 48 tokens. default: all prompts, each up to its own limit.

        Our own 80 write at most 11,844 tokens an arm, and fit into a context of 2,048.
        """
        return {"smoke": GoldenParams(prompts=12, max_tokens=48), "default": GoldenParams()}

    def check_files(self, files: Mapping[str, Path]) -> None:
        """Read the person's file before anything starts.

        Raises:
            UserError: file and line of what is wrong.
        """
        if "golden" in files:
            read_prompts(files["golden"])

    def cases(self, ctx: SuiteContext) -> Iterator[Case]:
        """One case a prompt, in the order of the file.

        Of our own prompts, those that do not fit the context are left out, and listed in the first case's body under
        "skipped": nobody chose them for this context. A person's own prompt that does not fit is an error.

        Raises:
            UserError: a bad file, a prompt of the person's that does not fit the context, or none of ours that does.
        """
        params: GoldenParams = ctx.params
        path = ctx.files.get("golden") or params.file
        fitting: list[tuple[Prompt, dict[str, Any]]] = []
        long: list[tuple[int, str]] = []
        for prompt in choose(read_prompts(path), params.prompts):
            body = _body(prompt, params, ctx)
            need = body["tokens"] + TEMPLATE_TOKENS + body["max_tokens"]
            if need <= ctx.context_tokens:
                fitting.append((prompt, body))
            elif path is None:
                long.append((need, prompt.id))
            else:
                raise UserError(
                    f"golden prompt {prompt.id!r} needs about {need} tokens, the context has {ctx.context_tokens}",
                    fix="raise --context, or lower its max_tokens",
                )
        if not fitting:
            raise UserError(
                f"no golden prompt fits a context of {ctx.context_tokens} tokens: the shortest needs about "
                f"{min(long)[0]}",
                fix="raise --context",
            )
        if long:
            fitting[0][1]["skipped"] = [_too_long(long, ctx.context_tokens)]
        for prompt, body in fitting:
            yield Case.make(self.name, cluster=prompt.id, category=prompt.category, body=body)

    def cost(self, cases: Sequence[Case], params: Any) -> Cost:
        """Planned runs of one arm; confirmation reruns come on top."""
        prefill = sum((c.body["tokens"] + TEMPLATE_TOKENS) * c.body["repeats"] for c in cases)
        return Cost(len(cases), prefill, sum(c.body["max_tokens"] * c.body["repeats"] for c in cases))

    async def run(self, session: Session, case: Case, repeat: int, seed: int) -> Raw:
        """One chat, not streamed: stream parsers lose braces of tool calls that the model did write.

        Raises:
            EngineError: the engine failed; that is no answer.
        """
        body = case.body
        answer = await session.generate(
            Generate(
                messages=body["messages"],
                max_tokens=body["max_tokens"],
                temperature=0.0,
                seed=seed,
                stream=False,
                extra={key: body[key] for key in _SENT if key in body},
            )
        )
        return Raw(
            {
                "text": answer.text,
                "tool_calls": [dict(c) for c in answer.tool_calls],
                "finish_reason": answer.finish_reason,
                "usage": dict(answer.usage),
            },
            seed=seed,
        )

    def run_panel(self, panel: Panel, case: Case, base: ArmId, arms: Sequence[ArmId]) -> Sequence[PositionBlock]:
        """Not a panel suite.

        Raises:
            LaneUnavailable: always; use `run`.
        """
        raise LaneUnavailable("golden asks chats of a server; it does not run on a panel")

    def score(self, case: Case, raw: Raw) -> Score:
        """1 without a structural flag, 0 with one; flags as "class: detail"."""
        if raw.error or raw.body is None:
            return Score(None, error=raw.error or "no answer")
        seen = inspect(Answer.from_body(raw.body), Expect.from_body(case.body))
        return Score(float(seen.clean), tuple(str(f) for f in seen.flags))

    def compare(self, case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
        """See `_golden/confirm.py`. `confirmed` here means reproduced; `summarise` also looks at the floor arms."""
        return compare_runs(case, ref, arm)

    def next_work(self, records: Records) -> Sequence[Work]:
        """The next rerun of each break that is not decided yet."""
        return reruns(records)

    def summarise(self, paired: PairedRecords) -> Summary:
        """See `_golden/summary.py`."""
        from kvgate.suites._golden.summary import summarise

        return summarise(paired)

    def planted_defect(self) -> Fault:
        """Three quarters of the JSON answers and tool calls lose their last character."""
        return Fault(script={"break_rate": 0.75}, metric="golden.net_breaks")


SUITE = Golden()


def choose(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, in the order of the file: critical, then tagged smoke, then by turns of categories."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    turn: dict[str, int] = {}
    ranked = []
    for at, prompt in enumerate(prompts):
        turn[prompt.category] = turn.get(prompt.category, 0) + 1
        ranked.append(("critical" not in prompt.tags, "smoke" not in prompt.tags, turn[prompt.category], at))
    return [prompts[at] for at in sorted(r[-1] for r in sorted(ranked)[:limit])]


def _too_long(long: Sequence[tuple[int, str]], context_tokens: int) -> str:
    """'3 prompts that need up to 900 tokens, the context has 512: a, b, c'."""
    names = [name for _, name in long]
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    many = "1 prompt that needs" if len(long) == 1 else f"{len(long)} prompts that need up to"
    return f"{many} {max(long)[0]} tokens, the context has {context_tokens}: {shown}"


def _body(prompt: Prompt, params: GoldenParams, ctx: SuiteContext) -> dict[str, Any]:
    """All that `run` and the checks need, as a JSON value."""
    sent = prompt.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"schema_", "checks", "category"})
    checks = prompt.checks.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    schema = prompt.answer_schema()
    if schema is not None:
        checks |= {"json": True, "schema": schema}
    if prompt.tool_choice == "none":
        checks.setdefault("call", "forbidden")
    elif prompt.tool_choice not in (None, "auto"):
        checks.setdefault("call", "required")
    own = prompt.max_tokens or max(DEFAULT_MAX_TOKENS, params.max_tokens)
    limit = min(own, params.max_tokens)
    shown = json.dumps([sent["messages"], sent.get("tools", [])], ensure_ascii=False)
    body = {key: value for key, value in sent.items() if value != [] and value != ()}
    return body | {
        "checks": checks,
        "max_tokens": limit,
        "limit_lowered": limit < own,
        "repeats": params.repeats,
        "tokens": len(ctx.tokenize(shown).ids),
    }
