"""What each engine's pages say, and which engine they are of."""

from __future__ import annotations

import asyncio
from typing import Any

import probe_kit as kit
import pytest

from kvgate.core.deployment import Engagement, Expected
from kvgate.core.errors import BadAnswer
from kvgate.enginefacts import page_facts
from kvgate.engines import _pages
from kvgate.engines._attached import describe, hold_against, stored_by_page
from kvgate.engines._http import Reply
from kvgate.engines._pages import Pages, read
from kvgate.engines.pages._reader import samples_of

PAGES = {
    "vllm": kit.vllm_pages(),
    "sglang": kit.sglang_pages(),
    "trtllm": kit.trtllm_pages(),
    "llama_cpp": kit.llama_pages(),
}


@pytest.mark.parametrize("engine", PAGES)
def test_each_engine_is_named_by_its_own_pages(engine: str) -> None:
    """Its metrics or pages show it, with the places."""
    got = read(PAGES[engine])

    assert got.engine == engine
    assert "/" in got.why


@pytest.mark.parametrize("engine", PAGES)
def test_one_word_names_no_engine(engine: str) -> None:
    """A name in the model list can be set by anybody."""
    got = read({"/v1/models": PAGES[engine]["/v1/models"]})

    assert got.engine is None
    assert engine in got.why


def test_pages_of_two_engines_are_nobodys() -> None:
    """vLLM's metrics beside llama.cpp's /props: which one answers is not known."""
    got = read(kit.llama_pages() | {"/metrics": kit.vllm_pages()["/metrics"]})

    assert got.engine is None
    assert "vllm" in got.why
    assert "llama_cpp" in got.why


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (
            "vllm",
            {
                "version": "0.32.0",
                "config_dtype": "fp8_e4m3",
                "tokens": 93_184,
                "block_tokens": 128,
                "blocks": 728,
                "prefix_cache": True,
                "context_tokens": 8192,
                "skip_layers": None,
                "metrics_model": "smollm2",
            },
        ),
        (
            "sglang",
            {
                "version": "0.5.3",
                "config_dtype": "fp8_e5m2",
                "asked_dtype": "fp8_e5m2",
                "backend": "triton",
                "tokens": 2_174_000,
                "kv_gib": 74.64,
                "prefix_cache": True,
                "chunked_prefill": True,
                "speculation": "none",
                "tp": 2,
                "slots": 2048,
                "scales_file": None,
            },
        ),
        (
            "trtllm",
            {"config_dtype": "fp8", "blocks": 45_999, "block_tokens": 32, "prefix_cache": True, "tp": 1},
        ),
        (
            "llama_cpp",
            {
                "context_tokens": 512,
                "slots": 2,
                "weights_dtype": "Q4_1",
                "model_path": "/models/smollm2.gguf",
                "speculation": "none",
                "build": None,
                "config_dtype": None,
            },
        ),
    ],
)
def test_what_pages_say(engine: str, said: dict[str, Any]) -> None:
    """Each field from its key, label or sample; an empty or null one is unknown."""
    got = read(PAGES[engine])

    assert {name: got.value(name) for name in said} == said


def test_metrics_are_held_apart_from_words() -> None:
    """What an engine counts is marked; what a page merely claims is not."""
    got = read(kit.vllm_pages())

    assert {c.field for c in got.claims if c.metric} >= {"tokens", "config_dtype", "metrics_model"}
    assert {c.field for c in got.claims if not c.metric} >= {"model", "version", "context_tokens"}


@pytest.mark.parametrize(
    ("pages", "codec"),
    [
        (kit.vllm_pages("fp8_e4m3"), "fp8_e4m3"),
        (kit.vllm_pages("fp8"), "fp8_e4m3"),
        (kit.vllm_pages("bfloat16"), "bf16"),
        # A checkpoint's own scheme turns FP8 on later, in another process.
        (kit.vllm_pages("auto"), None),
        (kit.vllm_pages("fp9"), None),
        (kit.vllm_pages("fp8_e4m3", version="0.99.0"), None),
        # Arguments, which the platform may change.
        (kit.sglang_pages(version="0.30.0"), None),
        (kit.trtllm_pages(version="0.20.0"), None),
    ],
)
def test_which_page_proves_a_type(pages: dict[str, Any], codec: str | None) -> None:
    """Only vLLM's gauge does, for a type that was written out, in versions that were read."""
    assert stored_by_page(read(pages)) == codec


EXPECTED = Expected(k_codec="fp8_e4m3", v_codec="fp8_e4m3", bytes_per_token=1)


@pytest.mark.parametrize(
    ("pages", "spelling", "level"),
    [
        (kit.vllm_pages("fp8_e4m3"), "fp8_e4m3", Engagement.CONFIRMED),
        (kit.vllm_pages("bfloat16"), "fp8_e4m3", Engagement.CONTRADICTED),
        (kit.vllm_pages("auto"), "fp8_e4m3", Engagement.UNOBSERVED),
        (kit.sglang_pages(), "fp8_e4m3", Engagement.UNOBSERVED),
        (kit.vllm_pages("fp8_e4m3", kv_cache_dtype_skip_layers="['0', '1']"), "fp8_e4m3", Engagement.CONTRADICTED),
        (
            kit.vllm_pages("fp8_e4m3", kv_cache_dtype_skip_layers="['sliding_window']"),
            "fp8_e4m3/keep=sliding_window",
            Engagement.CONFIRMED,
        ),
        (kit.vllm_pages("fp8_e4m3"), "fp8_e4m3/keep=sliding_window", Engagement.CONTRADICTED),
    ],
)
def test_an_attached_server_without_a_log_is_as_sure_as_its_gauge(
    pages: dict[str, Any], spelling: str, level: Engagement
) -> None:
    """`kvgate check URL --against URL` takes vLLM's gauge for what it proves, and no more."""
    engaged = hold_against(EXPECTED, describe(kit.URL, spelling, pages, None))

    assert engaged.level is level, engaged.reason


def test_identity_of_an_attached_server_comes_from_its_pages() -> None:
    """Engine, version, sizes and settings; what no page says stays unknown."""
    who = describe(kit.URL, "native", kit.sglang_pages(), None).identity

    assert (who.engine, who.version, who.tensor_parallel, who.context_tokens) == ("sglang", "0.5.3", 2, 40_960)
    assert (who.prefix_cache, who.chunked_prefill, who.speculation) == (True, True, "none")
    assert (who.model_digest, who.device) == (None, None)


@pytest.mark.parametrize("word", ["0", "-1", "NaN", "inf", "1e99", "12.5", "\u0663", "9" * 400, "None", ""])
def test_a_number_that_is_none_is_unknown(word: str) -> None:
    """Zero tokens, a half, another script's digits or more than any memory holds are no number."""
    assert read(kit.vllm_pages(kv_cache_size_tokens=word)).value("tokens") is None


def test_a_bad_line_hides_no_other() -> None:
    """prometheus-client refuses a whole page for one line; here the others are read."""
    page = 'vllm:x{a="unclosed 1\nvllm:num_requests_running{model_name="m"} NaN\nvllm:y{a="b\\"c"} 2\n}{ vllm:\n'

    assert [(s.name, dict(s.labels)) for s in samples_of(page)] == [
        ("vllm:num_requests_running", {"model_name": "m"}),
        ("vllm:y", {"a": 'b"c'}),
    ]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(200, "text/html", b"<html>hi</html>"), "HTML"),
        (Reply(200, "application/json", b"<!doctype html>"), "HTML"),
        (Reply(200, "application/json", b"{not json"), "not JSON"),
        (Reply(200, "application/json", b"[" * 100_000), "not JSON"),
        (Reply(200, "text/plain", b"a\0b"), "binary"),
        (Reply(200, "text/plain", b"x" * (_pages.MAX_PAGE_BYTES + 1)), "over"),
        (Reply(503, "text/plain", b"busy"), "HTTP 503"),
    ],
)
def test_a_page_that_is_none_is_missing_with_its_reason(reply: Reply, why: str) -> None:
    """HTML, binary data, broken and huge answers become no value."""
    got = fetched({"/version": reply})

    assert "/version" not in got.got
    assert why in got.missing["/version"]


def test_older_names_are_asked_only_where_the_newer_page_is_absent() -> None:
    """SGLang before 0.5 has /get_server_info; asking a newer one for it would only make it warn."""
    here = Reply(200, "application/json", b'{"mem_fraction_static": 0.8}')

    old, new = fetched({"/get_server_info": here}), fetched({"/server_info": here, "/get_server_info": here})

    assert old.got["/server_info"] == {"mem_fraction_static": 0.8}
    assert read(old.got).engine == "sglang"
    assert "/get_server_info" not in new.statuses


def test_a_refused_page_keeps_its_status() -> None:
    """A redirect or an answer over the limit is missing, and says what it was."""

    async def get(path: str) -> Reply:
        raise BadAnswer(f"{path}: redirects to elsewhere", status=302)

    got = asyncio.run(_pages.fetch(get))

    assert not got.got
    assert got.statuses["/metrics"] == 302


def fetched(routes: dict[str, Reply]) -> Pages:
    """Pages of a server that has only these."""

    async def get(path: str) -> Reply:
        return routes.get(path, Reply(404, "text/plain", b""))

    return asyncio.run(_pages.fetch(get))


@pytest.mark.parametrize("engine", page_facts.engines())
def test_every_row_has_a_source(engine: str) -> None:
    """Facts without an origin do not get in; every engine with rows has a reader, and the other way round."""
    facts = page_facts.load(engine)

    assert all(row.source.ref and row.source.version for row in (*facts.sign, *facts.fact, *facts.line))
    assert engine in _pages.readers()
    assert set(_pages.readers()) == set(page_facts.engines())
