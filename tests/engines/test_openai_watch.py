"""A server that is not the one it was, or not the model that it lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvgate.core.deployment import Deployment
from kvgate.core.engine import Attach, Generate
from kvgate.core.errors import EngineChanged
from kvgate.engines._watch import Watch, same_name
from kvgate.engines.fake import DRIVER
from kvgate.engines.openai import DRIVER as OPENAI
from kvgate.engines.openai import OpenAISession
from kvgate.testing.requests import fake_request


@pytest.mark.parametrize(
    ("asked", "said", "names", "same"),
    [
        ("m", "m", (), True),
        ("gpt-4o", "gpt-4o-2024-08-06", (), True),
        ("qwen3", "qwen3:8b", (), True),
        ("/models/a.gguf", "a.gguf", (), True),
        ("a.gguf", "/models/a.gguf", (), True),
        ("prod", "/data/llama", ("/data/llama",), True),
        ("m", "n", (), False),
        ("gpt-4", "gpt-4o", (), False),
        ("llama-3-8b", "llama-3", (), False),
        ("a/llama", "b/mistral", (), False),
        ("", "m", (), False),
    ],
)
def test_names_of_one_model(asked: str, said: str, names: tuple[str, ...], same: bool) -> None:
    """A dated snapshot, a path and what is listed are the same model; a name that only begins alike is not."""
    assert same_name(asked, said, names) is same


def test_what_is_not_told_is_no_change() -> None:
    """Bodies without the fields, with null or with nonsense in them change nothing; a first word is remembered."""
    watch = Watch(lambda text: text)
    bodies: tuple[Any, ...] = (
        None,
        [],
        {},
        {"system_fingerprint": None, "model": 3},
        {"system_fingerprint": "", "model": ""},
    )
    for body in bodies:
        watch.see(body, "m")
    watch.see({"system_fingerprint": "a", "model": "m"}, "m")
    watch.see({"model": "anything"}, None)

    with pytest.raises(EngineChanged, match="was 'a' and is now 'b'"):
        watch.see({"system_fingerprint": "b", "model": "m"}, "m")


def attached(use: Callable[[OpenAISession], Awaitable[Any]], **script: Any) -> Any:
    """Run `use` with a session attached to a scripted server."""

    async def run() -> Any:
        async with DRIVER.open(DRIVER.resolve(fake_request(script=script))) as started:
            http = started._http  # type: ignore[attr-defined]
            async with OPENAI.attach(Attach(http.url, api_key=http._key)) as s:
                return await use(s)

    return asyncio.run(run())


async def three(s: OpenAISession, *, stream: bool = False) -> list[str]:
    return [(await s.generate(Generate(prompt="Hi", max_tokens=3, stream=stream))).text for _ in range(3)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"answers_as": "other"}, "asked for model 'fake-model', answered by 'other'"),
        ({"answers_as": "fake-model-2", "answers_as_after": 2}, "model was 'fake-model' and is now 'fake-model-2'"),
        ({"fingerprint": "v1", "fingerprint_after": 2}, "system_fingerprint was 'v1' and is now 'v1changed'"),
    ],
)
def test_a_server_that_changes_or_lies_is_noticed(script: dict[str, Any], said: str, stream: bool) -> None:
    """Streamed or not, the first answer of the other one ends it."""
    with pytest.raises(EngineChanged, match=said):
        attached(lambda s: three(s, stream=stream), **script)

    assert len(attached(lambda s: three(s, stream=stream), fingerprint="v1")) == 3


def deployment(**script: Any) -> Deployment:
    found: Deployment = attached(lambda s: s.deployment(), **script)
    return found


def test_tokenizer_and_template_are_known_by_what_they_do() -> None:
    """Equal servers have equal digests; another tokenizer and another template each change their own."""
    one, same = deployment(), deployment()
    cut, wrapped = deployment(tokenizer_shift=3), deployment(template_tokens=5)

    assert one.identity.tokenizer_digest and one.identity.template_digest
    assert one.identity == same.identity
    assert cut.identity.tokenizer_digest != one.identity.tokenizer_digest
    assert wrapped.identity.tokenizer_digest == one.identity.tokenizer_digest
    assert wrapped.identity.template_digest != one.identity.template_digest


def test_the_fingerprint_is_a_note() -> None:
    """It covers the recipe, so that it may differ between arms."""
    one, other = deployment(fingerprint="fp8"), deployment(fingerprint="bf16")

    assert (one.note.fingerprint, deployment().note.fingerprint) == ("fp8", None)
    assert one.digest() == other.digest() and one.identity == other.identity


@pytest.mark.parametrize(("want", "found"), [(1024, 1024), (8192, 4096)])
def test_a_context_that_is_not_told_is_found(want: int, found: int) -> None:
    """A prompt of the wanted length; where it is refused, the number in the refusal."""

    async def use(s: OpenAISession) -> tuple[Any, Any]:
        return (await s.deployment()).identity.context_tokens, await s.find_context(want)

    assert attached(use, hide_context=True) == (None, found)
