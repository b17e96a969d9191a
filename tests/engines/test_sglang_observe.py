"""What SGLang's log and page prove, and what they do not; TensorRT-LLM's log too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from family_kit import make_environment, request

from kvgate.core.deployment import Deployment, Engaged, Engagement, Note
from kvgate.core.engine import Attach, Launch
from kvgate.core.errors import BadAnswer
from kvgate.core.registry import discover
from kvgate.engines import _sglang_observe, _trtllm_observe
from kvgate.engines._sglang_info import info_of
from kvgate.engines._sglang_logprobs import prefill_rows, step_row
from kvgate.engines._sglang_serving import SglangAttached

LOGS = Path(__file__).parents[1] / "plan" / "logs"
NOTE = Note(place="serving", host="127.0.0.1", port=1, pid=1)
AT = "[2026-10-02 10:00:00"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("sglang") / "env", "sglang")


@pytest.fixture
def fp8(python: Path, tmp_path: Path) -> Launch:
    made: Launch = discover("engine")["sglang"].resolve(request("sglang", python, tmp_path, "fp8_e4m3"))
    return made


def lines(dtype: str = "torch.float8_e4m3fn", *, tokens: int = 4096, extra: Sequence[str] = ()) -> list[str]:
    """A load log of 0.5.23 for the tests' model."""
    gib = tokens * 11520 / 2**31
    return [
        f"{AT}] server_args={{'model_path': 'm', 'kv_cache_dtype': 'fp8_e4m3', 'tp_size': 1, 'page_size': 1}}",
        *(f"{AT} TP0] {line}" for line in extra),
        f"{AT} TP0] KV Cache is allocated. dtype: {dtype}, #tokens: {tokens}, K size: {gib:.2f} GB, "
        f"V size: {gib:.2f} GB",
        f"{AT} TP0] max_total_num_tokens={tokens}, chunked_prefill_size=512, max_prefill_tokens=16384, "
        "max_running_requests=1, context_len=1024, available_gpu_mem=1.00 GB",
        f"{AT}] The server is fired up and ready to roll!",
    ]


def judged(
    launch: Launch, log: Sequence[str], *, version: str | None = "0.5.23", page: Any = None
) -> tuple[Deployment, Engaged]:
    seen = _sglang_observe.deployment_of(launch, log, info_of(page), package="sglang", version=version, note=NOTE)
    return seen, _sglang_observe.engaged(launch.expected, seen)


def test_a_log_of_todays_form(fp8: Launch) -> None:
    """Arguments are printed as a mapping since 0.5.23 at the latest, and as ServerArgs(...) before: both are read."""
    today, verdict = judged(fp8, lines())
    older = [
        lines()[0].replace("{'model_path': 'm', 'kv_cache_dtype': 'fp8_e4m3'", "ServerArgs(kv_cache_dtype='fp8_e4m3'")
    ]
    before, same = judged(fp8, [*older, *lines()[1:]])

    assert verdict.level is same.level is Engagement.CONFIRMED
    assert today.consequence == before.consequence
    assert (today.identity.slots, today.identity.context_tokens, today.identity.tensor_parallel) == (1, 1024, 1)


@pytest.mark.parametrize(
    ("dtype", "level", "says"),
    [
        ("torch.float8_e4m3fn", Engagement.CONFIRMED, "4,096 tokens, as planned"),
        ("torch.float8_e4m3fnuz", Engagement.CONFIRMED, "fp8_e4m3fnuz"),
        ("torch.float8_e5m2", Engagement.CONTRADICTED, "the log says fp8_e5m2"),
        ("torch.bfloat16", Engagement.CONTRADICTED, "the log says bf16"),
        ("torch.uint8", Engagement.CONTRADICTED, "names no KV cache type"),
    ],
)
def test_types(fp8: Launch, dtype: str, level: Engagement, says: str) -> None:
    """The pool's own line decides; E4M3 may be the platform's, nothing else may be another format."""
    _, verdict = judged(fp8, lines(dtype))

    assert verdict.level is level
    assert says in verdict.reason


def test_arguments_are_no_type(fp8: Launch) -> None:
    """A log that names the type among its arguments alone proves nothing: the pool's line is missing."""
    seen, verdict = judged(fp8, [line for line in lines() if "KV Cache is allocated" not in line])

    assert seen.consequence.k_codec is None
    assert (verdict.level, verdict.reason) == (Engagement.CONTRADICTED, "the load log names no KV cache type")


def test_versions_that_nobody_has_read(fp8: Launch) -> None:
    """An unknown version confirms nothing, an unreadable one is an engine of ours that cannot be named."""
    assert judged(fp8, lines(), version="0.9.0")[1].level is Engagement.UNOBSERVED
    assert judged(fp8, lines(), version=None)[1].level is Engagement.CONTRADICTED
    assert judged(fp8, ["not a log"])[1].level is Engagement.CONTRADICTED


def test_mxfp8_looks_like_fp8(python: Path, tmp_path: Path) -> None:
    """The pool's line names the element type, which two codecs share: nothing is observed."""
    launch = discover("engine")["sglang"].resolve(request("sglang", python, tmp_path, "mxfp8"))

    verdict = judged(launch, lines())[1]

    assert verdict.level is Engagement.UNOBSERVED
    assert "which mxfp8 looks like there too" in verdict.reason


def test_a_file_of_scales_that_was_rejected(fp8: Launch) -> None:
    """ "Loaded KV cache scaling factors" is printed after a rejected file too: the warning before it counts."""
    trap = (
        "Defaulting to KV cache scaling factors = 1.0 for all layers in TP rank 0",
        "Loaded KV cache scaling factors from s.json",
    )
    asked = fp8.effective.with_sides(
        *(type(s)(s.codec, s.params, "checkpoint", s.transforms) for _, s in fp8.effective.sides())
    )
    wanted = Launch(**{f: getattr(fp8, f) for f in fp8.__dataclass_fields__} | {"effective": asked})

    seen, verdict = judged(wanted, lines(extra=trap))
    plain = judged(fp8, lines(extra=trap))[1]
    alarm = judged(
        wanted,
        lines(extra=["Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."]),
    )

    assert seen.consequence.k_scale is not None
    assert seen.consequence.k_scale.origin == "unit"
    assert verdict.level is plain.level is Engagement.CONTRADICTED
    assert "every scale is 1.0" in verdict.reason
    # A false alarm: it is printed whatever the checkpoint carries.
    assert alarm[1].level is Engagement.CONFIRMED
    assert alarm[0].consequence.k_scale is not None
    assert alarm[0].consequence.k_scale.origin is None


def test_a_backend_that_was_given_up(fp8: Launch) -> None:
    """An error that the log itself holds contradicts: another backend runs than the one that was asked for."""
    extra = ["FlashAttention3 only supports fp8_e4m3 if using FP8; Setting attention backend to triton."]

    seen, verdict = judged(fp8, lines(extra=extra), page={"attention_backend": "fa3"})

    assert judged(fp8, lines(), page={"attention_backend": "fa3"})[0].loud.backend == "fa3"
    assert seen.loud.backend == "triton"
    assert verdict.level is Engagement.CONTRADICTED


def test_a_pool_that_is_sized_later(fp8: Launch) -> None:
    """After the graphs are captured another line says what is really there; the one before is an upper bound."""
    bound = [x.replace("KV Cache is allocated", "KV Cache VA upper bound") for x in lines(tokens=999999)[:2]]
    real = f"{AT} TP0] Post-capture KV sizing: KV cache allocated. dtype: torch.float8_e4m3fn, #tokens: "
    real += "4096, KV size: 0.04 GB, avail mem=1.00 GB"

    seen, verdict = judged(fp8, [*bound, real, *lines()[2:]])

    assert (seen.consequence.cells, seen.consequence.k_codec) == (4096, "fp8_e4m3")
    assert verdict.level is Engagement.CONFIRMED, verdict.reason


@pytest.mark.parametrize(
    "page", [None, [], "x", 7, {"kv_cache_dtype": ["a"], "page_size": -1, "internal_states": [None]}, {"version": 3}]
)
def test_a_page_of_another_form(page: Any) -> None:
    """A stranger's page says nothing where it has another form than expected."""
    assert info_of(page).word("version") in (None, "3")
    assert info_of(page).whole("block_tokens") is None


def test_the_page_gives_no_key_away() -> None:
    """SGLang's page holds its own API key and its command line; neither is read."""
    page = {
        "api_key": "hunter2",
        "launch_command": "x --api-key hunter2",
        "kv_cache_dtype": "bf16",
        "version": "0.5.23",
    }
    info = info_of(page | {"model_path": "/home/secret", "admin_api_key": "hunter2"})

    assert "hunter2" not in repr(info)
    assert "/home/secret" not in "".join(info.lines)
    assert "config_dtype=bf16" in info.lines[0]


def attached(log: Path | None, page: Any, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment of a server that answers one page."""

    async def get_json(self: Any, path: str, **options: Any) -> Any:
        if path == "/server_info" and page is not None:
            return page
        raise BadAnswer("no", status=404)

    monkeypatch.setattr(SglangAttached, "get_json", get_json)
    return asyncio.run(SglangAttached(Attach("http://127.0.0.1:1", "fp8_e5m2", log=log)).deployment())


def test_an_attached_server(fp8: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page names an argument, which is no proof; its log is."""
    page = {"version": "0.5.23", "kv_cache_dtype": "fp8_e4m3", "attention_backend": "fa3", "tp_size": 2}
    expected = fp8.expected.model_copy(update={"parts_mib": ()})
    alone = attached(None, page, monkeypatch)
    with_log = attached(LOGS / "sglang_0.5_e5m2_fa3.log", page, monkeypatch)

    assert (alone.identity.engine, alone.identity.version, alone.loud.backend) == ("sglang", "0.5.23", "fa3")
    assert (alone.identity.tensor_parallel, alone.note.pid) == (2, None)
    assert _sglang_observe.engaged(expected, alone).level is Engagement.UNOBSERVED
    assert (with_log.consequence.k_codec, with_log.consequence.cells) == ("fp8_e5m2", 2174000)
    assert _sglang_observe.engaged(expected, with_log).level is Engagement.CONTRADICTED


def test_a_log_of_another_engine_is_none(fp8: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's log beside SGLang's address says nothing of this server."""
    seen = attached(LOGS / "vllm_0.32.0_h200.log", {}, monkeypatch)

    assert seen.consequence.k_codec is None
    assert _sglang_observe.engaged(fp8.expected, seen).level is Engagement.UNOBSERVED


def meta(**changed: Any) -> dict[str, Any]:
    """An answer of `/generate` to three tokens."""
    tops = [None, [[-0.1, 7, None], [-3.0, 8, None]], [[-0.2, 9, None], [-2.0, 8, None]]]
    said = {"cached_tokens": 0, "input_token_logprobs": [[None, 5, None], [-0.1, 7, None], [-0.2, 9, None]]}
    return {"meta_info": said | {"input_top_logprobs": tops, "output_top_logprobs": [[[-0.3, 4, None]]]} | changed}


def test_rows_of_a_prompt_and_of_a_step() -> None:
    """Rows are those of the tokens that were asked for; a step is one token after what the cache holds."""
    assert [r.ids for r in prefill_rows(meta(), [5, 7, 9], 1)] == [(7, 8), (9, 8)]
    assert [r.ids for r in prefill_rows(meta(), [5, 7, 9], 2)] == [(9, 8)]
    assert step_row(meta(cached_tokens=2), 3).ids == (4,)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cached_tokens": 2}, "2 tokens of the text came from the prefix cache"),
        ({"cached_tokens": None}, "does not say how many tokens came from the prefix cache"),
        ({"cached_tokens": True}, "does not say how many tokens"),
        ({"input_token_logprobs": [[None, 5, None], [-0.1, 7, None], [-0.2, 6, None]]}, "other tokens than the text's"),
        ({"input_top_logprobs": None}, "no input_top_logprobs"),
        ({"input_top_logprobs": [None]}, "1 positions in the answer, 2 asked for"),
        ({"input_top_logprobs": [None, [[0.5, 7, None]], [[-1.0, 7, None]]]}, "degenerate logprobs"),
        ({"input_top_logprobs": [None, [[-1.0, 7, None]], [["x", 7, None]]]}, "no known shape"),
        ({"finish_reason": {"type": "abort", "message": "NaN happened"}}, "gave the request up: NaN happened"),
    ],
)
def test_answers_that_are_none(changed: dict[str, Any], says: str) -> None:
    """What cannot be counted is BadAnswer, never a row."""
    with pytest.raises(BadAnswer, match=says):
        prefill_rows(meta(**changed), [5, 7, 9], 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({}, "computed 3 tokens at once"), ({"cached_tokens": 2, "output_top_logprobs": []}, "no output_top_logprobs")],
)
def test_steps_that_are_none(changed: dict[str, Any], says: str) -> None:
    """A prompt that was filled in anew is no step."""
    with pytest.raises(BadAnswer, match=says):
        step_row(meta(**changed), 3)
    with pytest.raises(BadAnswer, match="no meta_info"):
        step_row(json.loads("[]"), 3)


def trtllm(tmp_path: Path, python: Path, log: str, version: str | None = "1.2.0") -> tuple[Deployment, Engaged]:
    launch = discover("engine")["trtllm"].resolve(request("trtllm", python, tmp_path, "fp8_e4m3"))
    seen = _trtllm_observe.deployment_of(launch, log.splitlines(), package="tensorrt_llm", version=version, note=NOTE)
    return seen, _trtllm_observe.engaged(launch.expected, seen)


def test_trtllms_bytes(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The bytes of a token prove a type; rounded too far they prove none; an unread version proves nothing."""
    python = make_environment(tmp_path_factory.mktemp("trtllm") / "env", "trtllm")
    head = "[10/02/2026-10:00:00] [TRT-LLM] [I] TensorRT-LLM version: 1.2.0\n"
    args = "[TRT-LLM] [I] LLM Args: TorchLlmArgs(kv_cache_config=KvCacheConfig(max_tokens=4096, dtype='fp8'))\n"
    exact = "Peak memory during memory usage profiling (torch + non-torch): 1.00 GiB, available KV cache memory "
    exact += "when calculating max tokens: 9.00 GiB, kv size is 11520. device total memory 79.19 GiB\n"
    room = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache (4096).\n"

    def level(*parts: str, version: str | None = "1.2.0") -> Engagement:
        return trtllm(tmp_path, python, head + args + "".join(parts), version)[1].level

    assert level(exact, room.format("0.04")) is Engagement.CONFIRMED
    assert level(room.format("0.04")) is Engagement.CONFIRMED
    assert level(room.format("0.09")) is Engagement.CONTRADICTED
    assert level() is Engagement.UNOBSERVED
    assert level(exact, version="9.0") is Engagement.UNOBSERVED
    assert level(exact, version=None) is Engagement.CONTRADICTED
    assert level(exact.replace("11520", "23040")) is Engagement.CONTRADICTED
    int8 = (args.replace("fp8", "int8"), exact)
    assert trtllm(tmp_path, python, head + "".join(int8))[1].level is Engagement.CONTRADICTED
