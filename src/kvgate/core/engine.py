"""Protocols between kvgate and an engine: Driver -> Session (one deployment) or Panel (several arms in lockstep)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.geometry import ModelFiles
from kvgate.core.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ArmId = str


class Lane(StrEnum):
    """What a deployment can serve."""

    CHAT = "chat"
    COMPLETE = "complete"
    TOKENIZE = "tokenize"
    PREFILL_TOPK = "prefill_topk"
    DECODE_TOPK = "decode_topk"
    FORCED_DECODE = "forced_decode"
    PANEL = "panel"
    METRICS = "metrics"


class Pass(StrEnum):
    """How positions were computed; also the prefix of their metrics."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a deployment but the recipe. Equal on all arms, unless an arm declares a perturbation.

    Attributes:
        context_tokens: tokens of context for one sequence (slot).
        batch_tokens, ubatch_tokens: logical and physical batch; slots: parallel sequences.
        threads: CPU threads; checkpoints: context checkpoints (llama.cpp).
        env: environment variables set for the child.
        arguments: the person's own words for the engine's command line, "--name=value" each.
    """

    context_tokens: int
    batch_tokens: int = 2048
    ubatch_tokens: int = 512
    slots: int = 1
    threads: int = 2
    checkpoints: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a person wants: a recipe on a model, under settings. `python` owns the engine if ours does not."""

    model: ModelFiles
    recipe: Recipe
    settings: Settings
    spelling: str = ""
    python: Path | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one deployment: pure data, made by `Driver.resolve`.

    Attributes:
        argv: command of the serving child, a list; never a shell.
        env: variables to set for the child; the recipe's own are subject, not identity.
        engine_options: what the worker needs beyond argv (JSON value), e.g. type_k, type_v, n_ubatch.
        expected: what must then be observed.
        effective: the recipe this engine will really run.
    """

    engine: str
    request: Request
    argv: tuple[str, ...]
    env: Mapping[str, str]
    engine_options: Mapping[str, Any]
    expected: Expected
    effective: Recipe


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one deployment computes, alone: reading n tokens takes `read_ms` * n + `attend_ms` * n * n.

    Attributes:
        attend_ms: attention's share, which grows with every token before. write_ms: one generated token.
    """

    read_ms: float
    attend_ms: float
    write_ms: float

    def seconds(self, read_tokens: float, write_tokens: float) -> float:
        """Seconds of one request of so many tokens; a written one attends to those read before it."""
        attended = self.attend_ms * read_tokens * (read_tokens + 2 * write_tokens)
        return (self.read_ms * read_tokens + attended + self.write_ms * write_tokens) / 1e3


@dataclass(frozen=True, slots=True)
class Attach:
    """A server that already runs. `log`: its load log, if the person has it; `api_key` comes from the environment."""

    url: str
    spelling: str = "native"
    api_key: str | None = field(default=None, repr=False)
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class Available:
    """A lane that works; `limits` in the lane's own words, e.g. {"top_k": 20}."""

    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Missing:
    """A lane that does not, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of a text; `exact` is False where the server has no tokenizer and this is a guess."""

    ids: tuple[int, ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Generate:
    """One generation. Exactly one of `messages` (OpenAI chat format) and `prompt` (text or token ids).

    `extra` goes into the request body as it is (tools, response_format, tool_choice).
    """

    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: str | Sequence[int] | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    top_logprobs: int = 0
    stream: bool = False
    timeout_s: float = 300.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One generated position: the sampled token and the top of the distribution (nat)."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class TopKRow(NamedTuple):
    """What a server tells of one position's distribution: ids and log-probabilities (nat), most likely first.

    `ids` and `logprobs` may hold more than was asked for: some servers add the text's own next token.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer.

    Attributes:
        text: content. tool_calls: as the server returned them. finish_reason: the server's word, None if it gave none.
        usage: the server's token counts. events: (monotonic ns, tokens so far or None) per streamed chunk.
        raw: the whole response body (the last one, for a stream).
    """

    text: str
    finish_reason: str | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    token_ids: tuple[int, ...] | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    events: tuple[tuple[int, int | None], ...] = ()
    topk: tuple[TokenLogprobs, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """ONE deployment. The child dies with its parent; random API key; loopback.

    Every method raises EngineDied, EngineTimeout or BadAnswer when the engine fails; a failure is recorded as that.
    """

    async def deployment(self) -> Deployment:
        """Requested and observed, with evidence lines; re-read after every restart."""
        ...

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Probed, not assumed."""
        ...

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Ids of a text; `special` puts before it what the model expects at the beginning of a document (BOS)."""
        ...

    async def generate(self, request: Generate) -> Generated: ...

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """The top of the distribution of each token of a given text, from token `start` (at least 1) to the last.

        Args:
            lane: PREFILL_TOPK (all positions of one prompt) or FORCED_DECODE (one step a position).
            k: entries a position; a server may give fewer.

        Raises:
            BadAnswer: the server gives no such thing, or other rows than were asked for.
        """
        ...

    async def metrics(self) -> str:
        """The server's metrics page as text."""
        ...


class Panel(Protocol):
    """SEVERAL arms of one model in lockstep, full vocabulary. Rows come by shared memory."""

    def deployments(self) -> Mapping[ArmId, Deployment]:
        """From this process's own log; a serving lane's evidence does not count here."""
        ...

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text and empty every arm's cache."""
        ...

    def step(self, n: int, how: Pass) -> Mapping[ArmId, NDArray[np.float32]]:
        """Feed the next n tokens; return raw logits [n, vocab] per arm, valid until the next step."""
        ...


class Driver(Protocol):
    """One engine, one file in `engines/`. Importable without the engine's package."""

    name: str
    aliases: tuple[str, ...]

    def resolve(self, want: Request) -> Launch:
        """Recipe -> this engine's spelling, argv, env and Expected. Pure.

        Raises:
            UserError: the engine cannot do this, with the allowed values and the fix.
        """
        ...

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]: ...

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        """All arms of one model in one worker process.

        Raises:
            LaneUnavailable: this engine, wheel or platform has no panel; the reason is for the user.
        """
        ...

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """Largest difference in nat between the panel's row and the server's, at one position after `ids`.

        None where an engine has nothing to compare with.

        Raises:
            LaneUnavailable: they differ by more than rounding (the panel does not compute what the server does), or
                the server gave nothing to compare with.
            EngineError: the panel failed.
        """
        ...

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        """Hold the observed consequences against the expected ones."""
        ...
