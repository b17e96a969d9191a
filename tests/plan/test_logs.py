"""Start logs of four engines: what was asked for, chosen and reserved, and what contradicts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_lines import PUBLIC

from kvgate.core.errors import UserError
from kvgate.enginefacts.log_patterns import engines, load
from kvgate.plan.log_compare import settings_of
from kvgate.plan.log_values import StartLog
from kvgate.plan.logs import read_log

LOGS = Path(__file__).parent / "logs"
GIB = 2**30


def log(name: str, **how: str) -> StartLog:
    return read_log(LOGS / f"{name}.log", **how)


#: name, engine, version, K, V, how the type is known, tokens, KV bytes of the least rank (GiB as printed), context.
READ = [
    ("vllm_0.6.6_v0_l4", "vllm", "0.6.6", "fp8_e4m3", "fp8_e4m3", "printed", 9291 * 16, 3.97, 8192),
    ("vllm_0.8.5_tp2", "vllm", "0.8.5.post1", "bf16", "bf16", "auto", 282_512, None, 32768),
    ("vllm_0.11.0_dp2", "vllm", "0.11.0", "fp8_e4m3", "fp8_e4m3", "printed", 700_512, 48.10, 32768),
    ("vllm_0.20.0_gemma4", "vllm", "0.20.0", "bf16", "bf16", "auto", 26_800, 24.54, 16384),
    ("vllm_0.26.0_a100_auto", "vllm", "0.26.0", "bf16", "bf16", "auto", 389_872, 53.54, 40960),
    ("vllm_0.26.0_a100_fp8", "vllm", "0.26.0", "fp8_e4m3", "fp8_e4m3", "printed", 779_760, 53.54, 40960),
    ("vllm_0.32.0_cpu_auto", "vllm", "0.32.0", "bf16", "bf16", "auto", 46_592, 1.0, 8192),
    ("vllm_0.32.0_cpu_fp8_e4m3", "vllm", "0.32.0", "fp8_e4m3", "fp8_e4m3", "printed", 93_184, 1.0, 8192),
    ("vllm_0.32.0_cpu_fp8_e5m2", "vllm", "0.32.0", "fp8_e5m2", "fp8_e5m2", "printed", 93_184, 1.0, 8192),
    ("vllm_0.32.0_h200", "vllm", "0.32.0", "fp8_e4m3", "fp8_e4m3", "printed", 506_176, 61.79, 32768),
    ("sglang_0.4_h100", "sglang", None, "bf16", "bf16", "auto", 442_750, 54.04, 131072),
    ("sglang_0.5_e5m2_fa3", "sglang", None, "fp8_e5m2", "fp8_e5m2", "printed", 2_174_000, 74.64, 40960),
    ("sglang_0.5_deepseek_v32", "sglang", None, "fp8_e4m3", "fp8_e4m3", "printed", 975_424, 43.67, 163840),
    ("trtllm_0.13_qwen1.5", "trtllm", "0.13.0.dev2024090300", None, None, "unknown", 40_384, 19.72, None),
    ("trtllm_1.2_h200", "trtllm", "1.2.0rc7", "fp8_e4m3", "fp8_e4m3", "requested", 1_471_968, 101.07, 40960),
    ("llama_cpp_b4400_ollama_f16", "llama_cpp", None, "f16", "f16", "printed", 16_384, 4.0, 4096),
    ("llama_cpp_b4450_two_gpus", "llama_cpp", "b4450", "q8_0", "q8_0", "printed", 32_768, 4.25, 32768),
    ("llama_cpp_b6000_draft", "llama_cpp", "b6000", "q8_0", "q8_0", "printed", 8192, 1.0625, 8192),
    ("llama_cpp_b11549_sliding", "llama_cpp", None, "q8_0", "q8_0", "printed", 4096, 14.35 / 1024, 4096),
    ("llama_cpp_b11549_three_slots", "llama_cpp", None, "q8_0", "q4_0", "printed", 1536, 13.71 / 1024, 512),
]


@pytest.mark.parametrize(
    ("name", "engine", "version", "k", "v", "how", "tokens", "gib", "context"), READ, ids=[r[0] for r in READ]
)
def test_a_start_log_is_read(
    name: str,
    engine: str,
    version: str | None,
    k: str | None,
    v: str | None,
    how: str,
    tokens: int,
    gib: float | None,
    context: int | None,
) -> None:
    """Engine, version, types, tokens, bytes and longest sequence are what the lines say."""
    got = log(name)

    assert (got.engine, got.version) == (engine, version)
    assert (got.stored.k, got.stored.v, got.stored.how) == (k, v, how)
    assert got.tokens == tokens
    assert got.kv_bytes == (None if gib is None else pytest.approx(gib * GIB, abs=2))
    assert (got.whole("context_tokens") or got.whole("requested_context_tokens")) == context


def test_every_fact_has_its_line() -> None:
    """Number, text and row of each fact lead back to the line that says it."""
    for path in sorted(LOGS.glob("*.log")):
        lines = path.read_text().splitlines()
        got = read_log(path)
        assert got.facts
        for fact in got.facts:
            assert fact.line >= 1
            row = next(r for r in load(got.engine).line if r.id == fact.row)
            assert row.has in lines[fact.line - 1].replace("\x1b[0;0m", "")
            assert fact.text
            assert "\x1b" not in fact.text
            assert len(fact.text) <= 300


#: Lines that no log in the folder has.
FURTHER = {name: (LOGS / f"further_{name}.txt").read_text() for name in engines()}


@pytest.mark.parametrize("engine", engines())
def test_no_row_is_dead(engine: str) -> None:
    """Each row of each engine finds a line, in the logs of this folder, among the further or the public ones."""
    seen = set()
    for path in LOGS.glob(f"{engine}_*.log"):
        text = path.read_text()
        seen |= _rows(engine, text)
    seen |= _rows(engine, FURTHER[engine])
    for lines, of, _, _ in PUBLIC.values():
        seen |= _rows(engine, lines) if of == engine else set()

    assert {row.id for row in load(engine).line} == seen


def _rows(engine: str, text: str) -> set[str]:
    from kvgate.plan.log_text import lines_of
    from kvgate.plan.logs import _match, _Reading

    found = set()
    for line in lines_of(text):
        for row, pattern in _Reading(load(engine))._rows:
            if row.has in line.text and row.also in line.text and _match(row, pattern, line.text):
                found.add(row.id)
    return found


def test_two_caches_and_their_rotation() -> None:
    """A model with windows has two caches with their own cells, layers, bytes and rotation."""
    got = log("llama_cpp_b11549_sliding")

    assert [(c.kind, c.cells, c.layers, c.streams, c.k_rotation, c.v_rotation) for c in got.caches] == [
        ("full_attention", 4096, 3, 1, 256, 64),
        ("sliding_window", 1024, 15, 1, 256, 64),
    ]
    assert [round(c.total_bytes / 2**20, 2) for c in got.caches] == [6.38, 7.97]
    assert not got.contradictions


def test_a_draft_model_is_not_added() -> None:
    """The second context's cache is listed apart; its settings and bytes are not the model's."""
    got = log("llama_cpp_b6000_draft")

    assert [(c.context, c.k_type) for c in got.caches] == [(0, "q8_0"), (1, "f16")]
    assert got.kv_bytes == 1088 * 2**20
    assert got.whole("context_tokens") == 8192, "the draft has 4,096"
    assert any("second context" in n for n in got.notes)


def test_a_draft_of_sglang() -> None:
    """A second pool of as many tokens is the draft's; memory before the weights is that before the first ones."""
    lines = (LOGS / "sglang_0.4_h100.log").read_text().splitlines()
    at = next(i for i, x in enumerate(lines) if "KV Cache is allocated" in x)
    draft = [
        "[2025-03-25 16:37:07 TP0] Load weight begin. avail mem=8.41 GB",
        "[2025-03-25 16:37:08 TP0] Load weight end. type=LlamaEagle, dtype=torch.bfloat16, avail mem=7.91 GB, "
        "mem usage=0.50 GB.",
        "[2025-03-25 16:37:08 TP0] KV Cache is allocated. #tokens: 442750, K size: 0.84 GB, V size: 0.84 GB",
    ]

    got = read_log("\n".join(lines[: at + 1] + draft + lines[at + 1 :]))

    assert [c.context for c in got.caches] == [0, 1]
    assert got.kv_bytes == pytest.approx(54.04 * GIB, abs=2)
    assert got.whole("total") == round(78.59 * GIB)
    assert settings_of(got).weights_bytes == pytest.approx((15.11 + 0.50) * GIB, abs=2)


def test_digits_that_were_not_printed() -> None:
    """vLLM rounds to two decimals and prints no trailing zeros: 1.0 GiB is known to 0.005."""
    fact = log("vllm_0.32.0_cpu_auto").fact("available")

    assert fact is not None
    assert (fact.value, fact.within) == (GIB, 0.005 * GIB)


def test_ranks_are_told_apart() -> None:
    """Colours and prefixes do not hide a line; the rank with the least decides and is named."""
    got = log("vllm_0.11.0_dp2")

    assert {f.rank: f.value for f in got.every("tokens")} == {"DP0": 737_504, "DP1": 700_512}
    least = got.fact("available")
    assert least is not None
    assert (least.rank, least.value, least.line) == ("DP1", round(48.10 * GIB), 12)
    assert log("sglang_0.5_deepseek_v32").caches[1].rank == "DP3 TP3 EP3"
    assert got.whole("dp") == 2


def test_scales_and_queries() -> None:
    """What a log tells of scales is told; what it cannot tell is unknown, with the reason."""
    told = log("vllm_0.11.0_dp2")
    silent = log("vllm_0.32.0_h200")
    alarm = log("sglang_0.5_e5m2_fa3")

    assert (told.scales, told.word("query_scale")) == ("unit", "1.0")
    assert silent.scales is None
    assert any("no proof of calibrated ones" in n for n in silent.notes)
    assert alarm.scales is None
    assert any("even where the checkpoint has scales" in n for n in alarm.notes)
    further = read_log(FURTHER["vllm"])
    assert (further.word("query_dtype_prefill"), further.word("query_dtype_decode")) == (
        "torch.float8_e4m3fn",
        "torch.bfloat16",
    )


def ids(got: StartLog) -> list[str]:
    return [c.id for c in got.contradictions]


def test_backend_that_was_asked_for_and_does_not_run() -> None:
    """SGLang with fa3 and e5m2 starts on triton: one error with the lines of both ranks."""
    got = log("sglang_0.5_e5m2_fa3")

    assert ids(got) == ["backend-changed"]
    assert got.contradictions[0].lines == (2, 3)
    assert "now triton" in got.contradictions[0].says
    assert got.word("backend") == "triton"


def test_kv_type_that_was_asked_for_and_does_not_run() -> None:
    """q4_0 was asked for, the log says f16 and 4,096 MiB: an error that says not to measure."""
    plain = log("llama_cpp_b4400_ollama_f16")
    asked = log("llama_cpp_b4400_ollama_f16", requested="q4_0")

    assert not plain.contradictions, "nobody asked"
    assert ids(asked) == ["requested-not-applied", "requested-not-applied"]
    assert asked.contradictions[0].says.startswith("K: q4_0 was asked for, the engine stores f16")
    assert asked.kv_bytes == 4096 * 2**20, "16,384 cells x 64 layers x 1,024 elements x 2 bytes, K and V"
    assert not log("llama_cpp_b4400_ollama_f16", requested="f16").contradictions


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("OLLAMA_KV_CACHE_TYPE: ", "OLLAMA_KV_CACHE_TYPE:q4_0 ", "requested-not-applied"),
        (
            "flash_attn    = 0",
            'msg="quantized kv cache requested but flash attention disabled" type=q4_0',
            "dtype-dropped",
        ),
        ("K (f16): 2048.00", "K (f16): 1088.00", "cache-sum"),
        ("type_k = 'f16'", "type_k = 'q8_0'", "types-differ"),
        ("CUDA3 KV buffer size =   512.00", "CUDA3 KV buffer size =   272.00", "cache-parts"),
    ],
)
def test_contradictions_inside_a_llama_cpp_log(old: str, new: str, says: str) -> None:
    """One changed line is found, by its own name."""
    text = (LOGS / "llama_cpp_b4400_ollama_f16.log").read_text()
    assert old in text

    assert says in ids(read_log(text.replace(old, new)))


def test_bytes_that_contradict_their_type() -> None:
    """The bytes of q8_0 under the name f16 are no whole heads; the types that would fit are named."""
    text = (LOGS / "llama_cpp_b11549_sliding.log").read_text()
    wrong = text.replace("K (q8_0):    3.19 MiB, V (q8_0):    3.19 MiB", "K (f16):    3.19 MiB, V (q8_0):    3.19 MiB")

    found = read_log(wrong)

    assert "type-against-bytes" in ids(found)
    assert "take the same 3.19 MiB" in str(found.contradictions)
    lying = text.replace("(q8_0)", "(f16)")
    assert any("it would be in" in c.says and "q8_0" in c.says for c in read_log(lying).contradictions)
    assert not read_log(text).contradictions


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv_cache_dtype=fp8_e4m3,", "kv_cache_dtype=auto,", "requested-not-configured"),
        ("506,176 tokens", "253,088 tokens", "tokens-against-concurrency"),
        ("'attention_backend': 'FLASH_ATTN'", "'attention_backend': 'FLASHINFER'", "backend-changed"),
        ("(0.92, 128.54 GiB)", "(0.92, 118.54 GiB)", "share-against-memory"),
        ("Available KV cache memory: 61.79", "Available KV cache memory: -1.79", "no-room"),
        (
            "Using FlashAttention version 3",
            "but not found the expected name in the model: "
            "Found k_scale in the checkpoint (e.g. a.k_scale), but not found the expected name in the model",
            "scales-dropped",
        ),
        (
            "Using FlashAttention version 3",
            "Hybrid KV cache manager is disabled for this hybrid model",
            "windows-ignored",
        ),
    ],
)
def test_contradictions_inside_a_vllm_log(old: str, new: str, says: str) -> None:
    """One changed line is found, by its own name; the log itself has none."""
    text = (LOGS / "vllm_0.32.0_h200.log").read_text()
    assert old in text

    assert not read_log(text).contradictions
    assert says in ids(read_log(text.replace(old, new)))


def test_auto_that_became_fp8() -> None:
    """The configuration says auto, but FP8 scales are spoken of: auto is no way back."""
    text = (LOGS / "vllm_0.20.0_gemma4.log").read_text()
    line = "(EngineCore_DP0 pid=99) WARNING [kv_cache.py:1] Using KV cache scaling factor 1.0 for fp8_e4m3. If this ..."

    got = read_log(text.replace("(APIServer pid=7) INFO:", line + "\n(APIServer pid=7) INFO:"))

    assert ids(got) == ["auto-became-fp8"]
    assert "write bfloat16" in got.contradictions[0].says


def test_a_checkpoint_in_fp8_says_nothing() -> None:
    """A real start with `auto` that runs in FP8: no line says so, the type is marked as not printed."""
    got = log("vllm_0.32.0_cpu_auto_kv_scheme")

    assert (got.stored.how, got.stored.k) == ("auto", "bf16")
    assert got.tokens == 93_184, "twice the room of the plain model"
    assert any("unless the checkpoint carries a KV scheme" in n for n in got.notes)


def test_scales_that_were_rejected() -> None:
    """`Loaded` after `Defaulting ... = 1.0` is an error, and the scales in force are 1.0."""
    got = log("sglang_0.5_scales_rejected")

    assert ids(got) == ["scales-not-in-force"]
    assert got.scales == "unit"


def test_blocks_and_tokens_of_tensorrt() -> None:
    """631 blocks of 64 tokens are 40,384; another number of tokens contradicts them."""
    text = (LOGS / "trtllm_0.13_qwen1.5.log").read_text()

    assert not read_log(text).contradictions
    assert ids(read_log(text.replace("(40384)", "(40320)"))) == ["blocks-against-tokens"]


def test_tokens_of_a_hybrid_are_no_capacity() -> None:
    """Before 0.21 the printed tokens of a model with windows are no capacity, and the log says so."""
    old = log("vllm_0.20.0_gemma4")
    flat = log("vllm_0.8.5_tp2")

    assert any("are no capacity" in n and "26,800" in n for n in old.notes)
    assert not any("no capacity" in n for n in flat.notes)


def test_a_start_that_failed_is_read() -> None:
    """Qwen3-Coder on 8 H20 at 262,144 tokens: what was left and what would fit, and that it did not start."""
    text = (
        "INFO vLLM API server version 0.10.0\n"
        "INFO Available KV cache memory: 48.66 GiB\n"
        "ValueError: To serve at least one request with the models's max seq len (262144), (62.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (48.66 GiB). Based on the available memory, the "
        "estimated maximum model length is 205728. Try increasing `gpu_memory_utilization`.\n"
    )

    got = read_log(text)

    assert ids(got) == ["no-room"]
    assert (got.whole("fits_tokens"), got.tokens) == (205_728, None)
    # 253,952 bytes a token; the print leaves 0.005 GiB and one block open.
    assert abs(205_728 - round(48.66 * GIB) // 253_952 // 16 * 16) <= 16 + 0.005 * GIB / 253_952


def test_the_token_line_of_gpt_oss_is_no_capacity() -> None:
    """78,384 printed tokens are less than one sequence of 131,072, yet 1.18 of those fit."""
    text = (
        "INFO vLLM API server version 0.19.1\n"
        "INFO Available KV cache memory: 5.38 GiB\n"
        "INFO GPU KV cache size: 78,384 tokens\n"
        "INFO Maximum concurrency for 131,072 tokens per request: 1.18x\n"
    )

    got = read_log(text)

    assert any("78,384 tokens are no capacity" in n and "154,665" in n for n in got.notes)


def test_meanings_hang_on_the_version() -> None:
    """The row that counts is that of the log's version; without a version both readings are named."""
    old, new = log("vllm_0.20.0_gemma4").fact("tokens"), log("vllm_0.26.0_a100_auto").fact("tokens")
    assert old is not None
    assert new is not None
    assert "no capacity" in old.means
    assert "most sequences at once" in new.means
    unknown = read_log("GPU KV cache size: 26,800 tokens\nMaximum concurrency for 16,384 tokens per request: 3.21x")
    assert unknown.version is None
    assert any("the version is unknown" in n for n in unknown.notes)


def test_a_version_that_nobody_has_read() -> None:
    """vLLM 0.45 is read with the newest rows, and said to be uncertain."""
    got = read_log((LOGS / "vllm_0.32.0_h200.log").read_text().replace("0.32.0", "0.45.0"))

    assert (got.version, got.version_known, got.tokens) == ("0.45.0", False, 506_176)
    assert any("0.45.0 is outside of what was read" in n for n in got.notes)


def test_only_the_last_start_counts() -> None:
    """A log that was appended to counts from the last start; one that broke off hides nothing."""
    first, second = (LOGS / f"vllm_0.26.0_a100_{kv}.log" for kv in ("auto", "fp8"))
    banner = "(APIServer pid=1) INFO 08-01 10:00:01 [api_utils.py:347]   █  version 0.26.0\n"

    both = read_log(banner + first.read_text() + banner + second.read_text())
    broke_off = read_log(banner + first.read_text() + banner)

    assert (both.stored.k, both.tokens, both.earlier_starts) == ("fp8_e4m3", 779_760, 1)
    assert any("1 earlier start(s)" in n for n in both.notes)
    assert broke_off.tokens == 389_872


def test_what_users_typed_is_not_read() -> None:
    """A prompt that quotes a capacity line changes nothing, before or after the server is ready."""
    text = (LOGS / "vllm_0.32.0_h200.log").read_text()
    line = "GPU KV cache size: 5 tokens, Maximum concurrency for 1 tokens per request: 5.00x"
    forged = f"INFO [logger.py:1] Received request x: prompt: '{line}'\n"
    later = text + line + "\n"

    assert read_log(forged + text).tokens == 506_176
    assert read_log(later).tokens == 506_176


def test_keys_are_not_shown() -> None:
    """No fact repeats an API key that stands in the arguments."""
    got = log("vllm_0.6.6_v0_l4")

    assert "sk-not-for-print" in (LOGS / "vllm_0.6.6_v0_l4.log").read_text()
    assert "sk-not-for-print" not in str(got)
    assert any("api_key='***'" in f.text for f in got.facts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no line of a known engine's start"),
        ("hello\nworld", "holds no line of a known engine's start; allowed: llama.cpp, SGLang, TensorRT-LLM, vLLM"),
        ("INFO vLLM API server version 0.8.5\nINFO nothing else", "vLLM wrote it, but it says neither the KV type"),
        ("system_info: n_threads = 1", "start llama-server with -lv 4"),
        ("[TensorRT-LLM][INFO] hello", "start it with TLLM_LOG_LEVEL=INFO"),
        (
            "system_info: n_threads = 1\nKV self size  = 4.00 MiB, K (f16): 2.00 MiB, V (f16): 2.00 MiB\n"
            "vLLM API server version 0.8.5",
            "holds lines of llama.cpp (line 1) and vLLM (line 3)",
        ),
        ("system_info: n_threads = 1\nllama_init: quantized V cache requires flash_attn", "line 2: quantized V needs"),
    ],
)
def test_a_log_that_says_nothing_is_refused(text: str, says: str) -> None:
    """One line names what is missing and how to get it; never a number."""
    with pytest.raises(UserError) as e:
        read_log(text)

    assert says in str(e.value)
    assert "\n" not in str(e.value)
