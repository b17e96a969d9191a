"""Contradictions between pages, address and log; each with a near miss that is none. And logs that are no evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import probe_kit as kit
import pytest

from kvgate.core.deployment import ScaleSeen
from kvgate.core.errors import UserError
from kvgate.engines._attached import describe
from kvgate.engines._kvlog import LogFacts, facts_of, read_log
from kvgate.engines._pages import read
from kvgate.engines._probe_checks import contradictions_of, not_this_servers
from kvgate.engines._probe_unknowns import unknowns_of

Pages = dict[str, Any]


def log_of(name: str, change: Callable[[str], str] = lambda text: text) -> LogFacts:
    return facts_of(change((kit.LOGS / name).read_text()))


FP8 = "vllm_0.32.0_cpu_fp8_e4m3.log"
E5M2 = "vllm_0.32.0_cpu_fp8_e5m2.log"
AUTO = "vllm_0.32.0_cpu_auto.log"
SGLANG = "sglang_0.5_e5m2_fa3.log"


def ids(pages: Pages, log: LogFacts | None, url: str = kit.URL) -> set[str]:
    return {n.id for n in contradictions_of(url, read(pages), log) if n.severity == "error"}


def with_root(pages: Pages, root: str) -> Pages:
    listed = dict(pages["/v1/models"]["data"][0]) | {"root": root}
    return pages | {"/v1/models": {"data": [listed]}}


def named(text: str) -> str:
    """The log of a server with the name that its pages have."""
    return text.replace("served_model_name=smollm2-hf", "served_model_name=smollm2")


@pytest.mark.parametrize(
    ("pages", "log", "found"),
    [
        # The same server: nothing.
        (kit.vllm_pages(), FP8, set()),
        (kit.vllm_pages("fp8"), FP8, set()),
        (kit.vllm_pages("auto", tokens=46_592), AUTO, set()),
        # The log says fp8, the metrics say auto or another type, and the other way round.
        (kit.vllm_pages("auto"), FP8, {"dtype-differs"}),
        (kit.vllm_pages("fp8_e4m3"), E5M2, {"dtype-differs"}),
        (kit.vllm_pages("fp8_e4m3", tokens=46_592), AUTO, {"dtype-differs"}),
        # Room.
        (kit.vllm_pages("fp8_e4m3", tokens=46_592), FP8, {"capacity-differs"}),
        # Another version; a local part is no other one.
        (kit.vllm_pages(version="0.31.0"), FP8, {"log-of-another-version"}),
        (kit.vllm_pages(version="0.32.0+cpu"), FP8, set()),
        # Another engine: nothing else of that log is held against the server.
        (kit.llama_pages(), FP8, {"log-of-another-engine", "log-of-another-model"}),
        # Another model; a commit's folder is no name.
        (with_root(kit.vllm_pages(), "Qwen/Qwen3-8B"), FP8, {"log-of-another-model"}),
        (with_root(kit.vllm_pages(), "/hub/snapshots/" + "0123456789abcdef" * 2 + "01234567"), FP8, set()),
        (with_root(kit.vllm_pages(), "/data/SmolLM2-HF/"), FP8, set()),
    ],
)
def test_pages_against_the_log(pages: Pages, log: str, found: set[str]) -> None:
    """What excludes each other is named; what agrees is silent."""
    assert ids(pages, log_of(log, named)) == found


def test_a_contradiction_says_both_sides_and_where() -> None:
    """Page and line are in it."""
    (only,) = contradictions_of(kit.URL, read(kit.vllm_pages("auto")), log_of(FP8, named))

    assert only.says == "KV type: the log says fp8_e4m3, /metrics vllm:cache_config_info cache_dtype says auto"
    assert only.places[0] == "/metrics vllm:cache_config_info cache_dtype"
    assert only.places[1].startswith("log line ")


def test_what_log_and_page_say_differently_nobody_knows() -> None:
    """Neither of two types, and neither of two rooms, is taken."""
    pages, log = kit.vllm_pages("auto", tokens=46_592), log_of(FP8, named)
    seen = describe(kit.URL, None, pages, log).consequence

    assert ids(pages, log) == {"dtype-differs", "capacity-differs"}
    assert (seen.k_codec, seen.v_codec, seen.cells) == (None, None, None)
    assert unknown(pages, log)["kv_dtype"] == "the log and a page say different types"
    assert unknown(pages, log)["tokens"] == "the log and a page say different room"


@pytest.mark.parametrize(
    ("pages", "found"),
    [
        (kit.sglang_pages(), {"backend-changed"}),  # of the log alone: fa3 was given up for triton
        (kit.sglang_pages(attention_backend="fa3"), {"backend-changed", "backend-differs"}),
        (kit.sglang_pages(tp_size=4), {"backend-changed", "tp-differs"}),
        (kit.sglang_pages(kv_cache_dtype="fp8_e4m3"), {"backend-changed", "dtype-differs", "requested-not-applied"}),
    ],
)
def test_sglang_pages_against_its_log(pages: Pages, found: set[str]) -> None:
    """SGLang's arguments, which resolution has changed, against its lines."""
    assert ids(pages, log_of(SGLANG)) == found


def test_sglang_resolves_auto_after_it_has_printed_it() -> None:
    """Its argument dump says auto where its page says what auto became: no contradiction."""
    log = log_of("sglang_0.5_deepseek_v32.log")
    pages = kit.sglang_pages(
        kv_cache_dtype="fp8_e4m3", launch_command="", max_total_num_tokens=None, internal_states=[], version=None
    )

    assert "dtype-differs" not in ids(pages, log)


def test_loaded_after_defaulting() -> None:
    """SGLang says `Loaded` after it has thrown the file away: the scales are 1.0, and that is named."""
    log = log_of("sglang_0.5_scales_rejected.log")
    pages = {
        "/server_info": {"mem_fraction_static": 0.8, "model_path": "Meta-Llama-3-8B-Instruct-FP8-KV"},
    }

    assert ids(pages, log) == {"scales-not-in-force"}
    assert describe(kit.URL, None, pages, log).consequence.k_scale == ScaleSeen(origin="unit")


@pytest.mark.parametrize(
    ("pages", "found"),
    [
        ({**kit.vllm_pages(), **{k: v for k, v in kit.llama_pages().items() if k == "/props"}}, "engines-disagree"),
        ({**kit.sglang_pages(), "/v1/models": kit.vllm_pages()["/v1/models"]}, "engines-disagree"),
        ({**kit.vllm_pages(), "/v1/models": {"data": [{"id": "other", "owned_by": "vllm"}]}}, "models-disagree"),
        (
            kit.sglang_pages(launch_command="--kv-cache-dtype=fp8_e4m3"),
            "requested-not-applied",
        ),
        ({**kit.trtllm_pages(), "/metrics": [{"kvCacheStats": {"tokensPerBlock": 64}}]}, "pages-disagree-block-tokens"),
    ],
)
def test_pages_against_each_other(pages: Pages, found: str) -> None:
    """A server whose pages exclude each other is named as that."""
    assert found in ids(pages, None)


@pytest.mark.parametrize("pages", [kit.vllm_pages(), kit.sglang_pages(), kit.trtllm_pages(), kit.llama_pages()])
def test_ordinary_pages_agree(pages: Pages) -> None:
    """No engine contradicts itself by being itself."""
    assert ids(pages, None) == set()


@pytest.mark.parametrize("name", ["fp8", "auto", "scheme"])
def test_recorded_pages_agree(name: str) -> None:
    """Real servers' pages, with and without /server_info."""
    assert ids(kit.recorded_vllm(name), None) == set()


def test_a_checkpoint_that_turns_fp8_on_is_unknown_by_its_pages() -> None:
    """The recorded server stores FP8, and its gauge says auto: nothing is claimed, and the reason says why."""
    pages = kit.recorded_vllm("scheme")
    seen = describe(kit.URL, None, pages, None)

    assert (read(pages).word("config_dtype"), seen.consequence.k_codec) == ("auto", None)
    assert seen.consequence.cells == 93_184
    assert "turns FP8 on later" in unknown(pages, None)["kv_dtype"]


# -- logs of two ----------------------------------------------------------------------------------------------------


def interleaved(a: str, b: str) -> str:
    """Lines of two logs in turn, as two servers write them into one file."""
    one, two = (kit.LOGS / a).read_text().splitlines(), (kit.LOGS / b).read_text().splitlines()
    turns = [line for pair in zip(one, two, strict=False) for line in pair]
    return "\n".join([*turns, *one[len(two) :], *two[len(one) :]])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (interleaved(FP8, AUTO), "log-of-two-servers"),
        (interleaved(SGLANG, SGLANG), "log-of-two-servers"),
        (interleaved(FP8, SGLANG), "log-of-two-engines"),
    ],
)
def test_a_log_of_two_is_evidence_of_neither(text: str, problem: str) -> None:
    """Nothing in it counts, and that is said."""
    log = facts_of(text)

    assert [id_ for id_, _ in log.problems] == [problem]
    assert log.consequence.k_codec is None
    assert problem in ids(kit.vllm_pages(), log)


def test_processes_that_alternate_are_two_servers() -> None:
    """The first goes on to write after the second has begun, though the second started when the first was ready."""
    text = (kit.LOGS / FP8).read_text() + (kit.LOGS / E5M2).read_text()
    first = next(line for line in text.splitlines() if line.startswith("(APIServer pid="))

    assert facts_of(text).problems == ()
    assert [id_ for id_, _ in facts_of(text + first + "\n").problems] == ["log-of-two-servers"]


@pytest.mark.parametrize("first", [AUTO, FP8])
def test_a_restart_is_no_second_server(first: str) -> None:
    """A log that was appended to over a restart says what the last start says."""
    log = facts_of((kit.LOGS / first).read_text() + (kit.LOGS / E5M2).read_text())

    assert log.problems == ()
    assert log.consequence.k_codec == "fp8_e5m2"


def test_several_api_servers_are_one_server() -> None:
    """`--api-server-count` makes several processes, each of which says that it is ready."""
    text = (kit.LOGS / FP8).read_text()
    assert facts_of(text + "INFO:     Application startup complete.\n").problems == ()


@pytest.mark.parametrize(("port", "found"), [(8000, set()), (9999, set()), (8001, {"log-of-another-start"})])
def test_the_port_of_an_earlier_start_is_another_servers(port: int, found: set[str]) -> None:
    """A proxy changes ports, so only an earlier start with the asked port speaks."""
    text = (kit.LOGS / E5M2).read_text().replace(":8000", ":8001") + (kit.LOGS / FP8).read_text()
    pages = kit.vllm_pages()

    assert ids(pages, facts_of(named(text)), f"http://127.0.0.1:{port}") == found


# -- what is observed, and what is not --------------------------------------------------------------------------------


def unknown(pages: Pages, log: LogFacts | None) -> dict[str, str]:
    reading = read(pages)
    own = log if log is not None and not not_this_servers(kit.URL, reading, log) else None
    return {u.field: u.why for u in unknowns_of(describe(kit.URL, None, pages, log), reading, own)}


def test_silence_on_scales_is_no_evidence() -> None:
    """vLLM's plain checkpoint gets 1.0 without a word, so the origin stays unknown with that reason."""
    seen = describe(kit.URL, None, kit.vllm_pages(), log_of(FP8, named))

    assert seen.consequence.k_scale is None
    assert "1.0 without a word" in unknown(kit.vllm_pages(), log_of(FP8, named))["k_scale"]


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("WARNING [kv_cache.py:1] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended", "unit"),
        ("INFO [cache.py:361] Using fp8_per_token_head data type to store kv cache. It reduces the GPU memory "
         "footprint and boosts the performance. Dynamic per-token-head scales will be computed at runtime", "dynamic"),
        ("WARNING Using uncalibrated q_scale 1.0 and/or prob_scale 1.0 with fp8 attention.", None),
    ],
)  # fmt: skip
def test_scales_that_a_line_names(line: str, origin: str | None) -> None:
    """Only a line on the scales of K and V says where they come from."""
    text = named((kit.LOGS / FP8).read_text()).replace(
        "INFO 11-30 12:57:48 [core.py", line + "\n(EngineCore) INFO [core.py", 1
    )
    scale = describe(kit.URL, None, {}, facts_of(text)).consequence.k_scale

    assert (scale.origin if scale is not None else None) == origin


def test_sglangs_alarm_says_nothing_of_scales() -> None:
    """`no scaling factors provided` is printed where the checkpoint has them, too."""
    log = log_of(SGLANG)

    assert describe(kit.URL, None, kit.sglang_pages(), log).consequence.k_scale is None
    assert "even where the checkpoint has scales" in unknown(kit.sglang_pages(), log)["k_scale"]


def test_queries_and_accumulation_only_from_lines() -> None:
    """FlashInfer's line names the type of queries; what no line names is unknown, with the reason."""
    log = log_of("vllm_0.32.0_h200.log")
    line = (
        "INFO [flashinfer.py:1] FlashInfer resolved query dtypes: prefill=torch.float8_e4m3fn, "
        "decode=torch.float8_e4m3fn, decode_backend=trtllm-gen, kv_cache_dtype=fp8_e4m3\n"
    )
    mixed = line.replace("decode=torch.float8_e4m3fn", "decode=torch.bfloat16")
    text = (kit.LOGS / "vllm_0.32.0_h200.log").read_text()

    assert describe(kit.URL, None, {}, log).loud.query_dtype is None
    assert describe(kit.URL, None, {}, facts_of(line + text)).loud.query_dtype == "fp8_e4m3"
    assert describe(kit.URL, None, {}, facts_of(mixed + text)).loud.query_dtype is None
    assert "decode torch.bfloat16" in unknown({}, facts_of(mixed + text))["query_dtype"]
    assert {"accumulation", "probability_dtype"} <= set(unknown({}, log))


def test_auto_is_no_observation() -> None:
    """By the engine's rule it is the compute type, unless the checkpoint has a scheme: unknown, and what would tell."""
    why = unknown(kit.vllm_pages("auto", tokens=46_592), log_of(AUTO, named))["kv_dtype"]

    assert "unless the checkpoint has a KV scheme" in why


def test_a_log_that_is_not_this_servers_gives_no_number() -> None:
    """A log of another version: its room and type are not the server's."""
    seen = describe(kit.URL, None, kit.vllm_pages("auto", version="0.31.0", kv_cache_size_tokens="None"), log_of(FP8))

    assert (seen.consequence.k_codec, seen.consequence.cells, seen.loud.backend) == (None, None, None)


# -- files that are no logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x1f\x8b\x08\x00rest", ("packed", "gunzip -c")),
        (b"\x28\xb5\x2f\xfdrest", ("packed", "zstdcat")),
        (b"\x7fELF\x02\x01\0\0\0", ("binary data",)),
    ],
)
def test_files_that_are_no_logs(tmp_path: Path, data: bytes, words: tuple[str, ...]) -> None:
    """One line that says what it is and what to do."""
    path = tmp_path / "server.log"
    path.write_bytes(data)

    with pytest.raises(UserError) as e:
        read_log(path)

    assert all(word in str(e.value) for word in words)


def test_a_log_that_was_cut_short_says_whose_it_is() -> None:
    """Without a line on the cache there is no number, but the engine is known, and that the log says no more."""
    text = (kit.LOGS / FP8).read_text()
    cut = facts_of("\n".join(text.splitlines()[:7]))

    assert cut.engine == "vllm"
    assert cut.start is None
    assert cut.consequence.cells is None
    assert "says neither the KV type nor the room" in cut.why
    assert ids(kit.llama_pages(), cut) >= {"log-of-another-engine"}
