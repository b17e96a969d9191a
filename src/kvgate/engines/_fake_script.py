"""What the fake engine is told to do: its model, its faults, its noise, its clock. Field by field.

A script travels as JSON in `Settings.env["KVGATE_FAKE_SCRIPT"]` or as `Launch.engine_options["script"]`. `per_recipe`
lays other fields over it for one recipe, so that one environment serves a base and a faulty candidate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvgate.core.errors import UserError

#: Environment variable of `Settings.env` that holds a script as JSON.
SCRIPT_VARIABLE = "KVGATE_FAKE_SCRIPT"

#: What an answer is, from what was asked; breaks and clusters go by it.
Kind = Literal["tool", "json", "needle", "code", "number", "text"]
#: Ways to break an answer, named as the golden suite names the break.
BreakClass = Literal[
    "invalid_json",
    "schema_violation",
    "extra_data",
    "missing_call",
    "wrong_tool",
    "args_not_json",
    "missing_required",
    "type_mismatch",
    "truncated",
    "empty_output",
    "repetition_loop",
    "mojibake",
    "control_tokens",
    "number_drift",
    "code_unparsable",
]

#: What may come under 200 instead of an answer.
Nonsense = Literal[
    "html",
    "not_json",
    "no_choices",
    "wrong_type",
    "empty",
    "error",
    "trailing",
    "nul",
    "bad_utf8",
    "empty_choices",
    "gzip",
    "chunk_cut",
    "bom",
    "null_content",
]


class FakeScript(BaseModel):
    """All fields default to a healthy, silent, instant engine.

    Rates are shares between 0 and 1. Breaks, decay and flips are drawn by prompt, so the same prompt always breaks and
    a rerun confirms it. Noise and HTTP faults are drawn by request number, so a rerun may differ.

    Attributes:
        seed: of the model's own answers and of every fault's draw; arms that are compared share it.
        per_recipe: recipe or spelling -> fields laid over this script for that arm.

        break_rate: share of the answers of `break_kinds` that are broken.
        break_kinds: which answers may break; those that are JSON by default.
        break_classes: how; drawn by prompt among those that fit the answer, else the plainest that fits.
        break_by: "prompt" breaks prompts independently, "category" breaks whole kinds of answers together.
        needle_decay_tokens: prompts of at most this many tokens are always answered right; None: all are.
        needle_decay_rate: share of the longer prompts whose code comes back wrong.
        flip_rate: share of generated positions where the runner-up is taken (words of text answers, and the order of
            the top logprobs).

        refuse_logprobs: 400 to a request that asks for logprobs.
        logprobs: "ok", or "zero" (all 0.0), "nan", "positive", "identical" at all positions, "missing" (null), "single"
            (one entry of no doubt each, as of a server that speculates), "no_mass" (the chosen token has none).

        tokens_per_event: tokens in one streamed event. crlf: lines end in CRLF. comments: a comment before each event.
        sse_fields: an `event:`, the same `id:` and a `retry:` beside each event's data.
        continuous_usage: honour `stream_options.continuous_usage_stats`.
        truncate_rate: share of streams that end early, after `truncate_events` events.
        truncate_how: "clean" (the stream just ends, without [DONE]) or "reset" (the connection breaks).
        piece_bytes: bodies are sent in pieces of so many bytes; 0: whole. piece_ms: pause before each piece.

        http_500_rate: share of requests answered 500. nonsense_rate: share answered 200 with `nonsense`.
        nonsense: what that is; "no_choices" is JSON of another shape, "wrong_type" has a number for a text, "error" is
            an error object, "trailing" has bytes after its JSON, "nul" a NUL byte in it, "bad_utf8" a broken character,
            "empty_choices" an empty list, "gzip" a bomb of 100 MiB that nobody asked for, "chunk_cut" ends inside a
            chunk, "bom" is a whole answer behind a byte order mark, "null_content" one without a text.
        busy_first: so many requests after the first `busy_after` are answered `busy_status`, with `retry_after` in the
            header if it is given.
        content_length_off: bytes added to the announced length of whole bodies; the connection closes after the body.
        redirect_to: every generation is answered 307 to this address.
        oversize_bytes: every whole body is padded to at least this size.
        empty_metrics: the metrics page is 200 and empty.

        listed_as: the model that the list names. answers_as: the model that answers name, from request
            `answers_as_after` on. fingerprint: `system_fingerprint` of answers; "changed" is put behind it from request
            `fingerprint_after` on.
        hide_context: the list does not tell the context. tokenizer_shift: added to every token id. template_tokens:
            tokens that the chat template adds. finish_lie: what every answer gives as its reason. usage_off: added to
            the count of generated tokens.

        die_after, hang_after: generations answered before the process kills itself, or stops answering.
        die_on_load: ends with status 3 before it listens. hang_on_load: never listens. load_ms: time to load.
        load_timeout_s: how long its parent waits for it.
        wrong_dtype: codec that the load log names instead of the requested one.
        silent_log: the load log says nothing about the cache.

        ttft_ms, ttft_sd_ms: time to the first token. itl_ms, itl_sd_ms: time between tokens (normal, not below 0).

        noise_rate: share of answers disturbed at random: a word of a text, the form of a JSON answer.
        noise_seed: None takes one from the system, so that two equal deployments differ.
        noise_burst: successive requests that share one intensity, log-normal with sigma `noise_clustered`.
        noise_tail: Pareto index of how many words a disturbance changes (small is heavy). noise_drift: relative growth
            of the rate per 100 requests.

        top_sd: standard deviation on the logits of a top list, drawn anew by each server process.
        logit_sd: standard deviation on every logit of a panel arm; None takes `NOISE_SD` of its codecs.
        ubatch_sd: the same, added (in squares) to arms with `ubatch_tokens` under 64: a floor that is not zero.
        logit_clustered: log-normal sigma of the sd between texts. logit_heavy: share of positions with ten times it.
        logit_drift: relative growth of the sd per text. logit_nan_at: position whose logits are NaN.
        vocab: entries of the panel's vocabulary; must cover the tokenizer's ids.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0)
    per_recipe: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)

    break_rate: float = Field(0.0, ge=0, le=1)
    break_kinds: tuple[Kind, ...] = ("json", "tool")
    break_classes: tuple[BreakClass, ...] = ("invalid_json", "args_not_json")
    break_by: Literal["prompt", "category"] = "prompt"
    needle_decay_tokens: int | None = Field(None, ge=0)
    needle_decay_rate: float = Field(1.0, ge=0, le=1)
    flip_rate: float = Field(0.0, ge=0, le=1)

    refuse_logprobs: bool = False
    logprobs: Literal["ok", "zero", "nan", "positive", "identical", "missing", "single", "no_mass"] = "ok"

    tokens_per_event: int = Field(1, ge=1)
    crlf: bool = False
    comments: bool = False
    sse_fields: bool = False
    continuous_usage: bool = True
    truncate_rate: float = Field(0.0, ge=0, le=1)
    truncate_events: int = Field(2, ge=0)
    truncate_how: Literal["clean", "reset"] = "clean"
    piece_bytes: int = Field(0, ge=0)
    piece_ms: float = Field(0.0, ge=0)

    http_500_rate: float = Field(0.0, ge=0, le=1)
    nonsense_rate: float = Field(0.0, ge=0, le=1)
    nonsense: Nonsense = "html"
    busy_first: int = Field(0, ge=0)
    busy_after: int = Field(0, ge=0)
    busy_status: Literal[429, 503] = 503
    retry_after: str | None = None
    content_length_off: int = 0
    redirect_to: str | None = None
    oversize_bytes: int = Field(0, ge=0)
    empty_metrics: bool = False

    listed_as: str | None = None
    answers_as: str | None = None
    answers_as_after: int = Field(0, ge=0)
    fingerprint: str | None = None
    fingerprint_after: int | None = Field(None, ge=0)
    hide_context: bool = False
    tokenizer_shift: int = Field(0, ge=0)
    template_tokens: int = Field(0, ge=0)
    finish_lie: str | None = None
    usage_off: int = 0

    die_after: int | None = Field(None, ge=0)
    hang_after: int | None = Field(None, ge=0)
    die_on_load: bool = False
    hang_on_load: bool = False
    load_ms: float = Field(0.0, ge=0)
    load_timeout_s: float = Field(30.0, gt=0)
    wrong_dtype: str | None = None
    silent_log: bool = False

    ttft_ms: float = Field(0.0, ge=0)
    ttft_sd_ms: float = Field(0.0, ge=0)
    itl_ms: float = Field(0.0, ge=0)
    itl_sd_ms: float = Field(0.0, ge=0)

    noise_rate: float = Field(0.0, ge=0, le=1)
    noise_seed: int | None = Field(None, ge=0)
    noise_burst: int = Field(8, ge=1)
    noise_clustered: float = Field(0.0, ge=0)
    noise_tail: float = Field(2.0, ge=0.1)
    noise_drift: float = Field(0.0, ge=0)

    top_sd: float = Field(0.0, ge=0)
    logit_sd: float | None = Field(None, ge=0)
    ubatch_sd: float = Field(0.02, ge=0)
    logit_clustered: float = Field(0.0, ge=0)
    logit_heavy: float = Field(0.0, ge=0, le=1)
    logit_drift: float = Field(0.0, ge=0)
    logit_nan_at: int | None = Field(None, ge=0)
    vocab: int = Field(512, ge=2, le=65536)

    @model_validator(mode="after")
    def _overlays_are_scripts(self) -> Self:
        for recipe, fields in self.per_recipe.items():
            unknown = sorted(set(fields) - set(type(self).model_fields))
            if unknown or "per_recipe" in fields:
                raise ValueError(f"per_recipe[{recipe!r}] has unknown fields {unknown or ['per_recipe']}")
        return self

    def for_recipe(self, *names: str) -> FakeScript:
        """This script with the overlays of the first of `names` that has one."""
        fields = next((self.per_recipe[n] for n in names if n in self.per_recipe), {})
        plain = self.model_dump(exclude={"per_recipe"}, exclude_unset=True)
        return FakeScript.model_validate(plain | dict(fields))


def read_script(text: str) -> FakeScript:
    """A script from its JSON.

    Raises:
        UserError: not a script; the first thing that is wrong.
    """
    try:
        return FakeScript.model_validate_json(text)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the whole"
        raise UserError(
            f"{SCRIPT_VARIABLE} is not a fake-engine script: {where}: {first['msg']}",
            fix="see FakeScript in kvgate/engines/_fake_script.py for the fields",
        ) from None


def unit(*parts: object) -> float:
    """A draw in [0, 1) that depends on `parts` only, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
