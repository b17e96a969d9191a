"""Sixteen bits, spelled out or by default: scales are then read by nothing, and two spellings are not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint.lint_kit import MODELS, SCHEME, ids, run, scaled, scales, severity

FAULTY = (
    "zero",
    "negative",
    "nan",
    "inf",
    "unit",
    "large",
    "tiny",
    "missing",
    "promised",
    "one_side",
    "wrong_name",
    "fused",
    "per_head",
    "per_head_wrong",
    "tensor_many",
    "zero_point",
    "affine",
)


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize(
    "text",
    [
        "vllm serve {%s} --kv-cache-dtype bfloat16",
        "vllm serve {%s} --kv-cache-dtype=float16",
        "vllm serve {%s} --kv-cache-dtype int8_per_token_head",
        "sglang serve --model-path {%s} --kv-cache-dtype bf16",
    ],
)
def test_a_cache_that_reads_no_scales_is_not_blamed_for_them(tmp_path: Path, name: str, text: str) -> None:
    """A baseline, a rollback and a cache that scales each token have no finding about the checkpoint's scales."""
    found = ids(run(tmp_path, text % name))

    assert not {i for i in found if i.startswith("scales-")} and "sglang-per-head-scales" not in found


@pytest.mark.parametrize("name", ["zero", "nan", "per_head_wrong", "wrong_name"])
def test_a_cache_that_reads_scales_is(tmp_path: Path, name: str) -> None:
    """The same checkpoints are errors for FP8, for auto that becomes FP8, and for the folder alone."""
    for text in ("vllm serve {%s} --kv-cache-dtype fp8", "vllm serve {%s}", "{%s}", "vllm serve {%s} --seed $S"):
        report = run(tmp_path, text % name)
        assert any(f.id.startswith("scales-") and f.severity == "error" for f in report.findings), text
        assert report.exit_code == 1


def test_auto_that_stays_sixteen_bits_warns_of_scales_nobody_reads_yet(tmp_path: Path) -> None:
    """SGLang's auto does not follow compressed-tensors: broken scales are no error there before FP8 is asked for."""
    auto = run(tmp_path, "sglang serve --model-path {zero}")
    asked = run(tmp_path, "sglang serve --model-path {zero} --kv-cache-dtype fp8_e4m3")

    assert (severity(auto, "scales-zero"), severity(asked, "scales-zero")) == ("warning", "error")
    assert "16 bits" in next(f.why for f in auto.findings if f.id == "scales-zero")


def test_a_damaged_file_is_told_for_any_cache(tmp_path: Path) -> None:
    """Weights live in the same file."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")

    assert "checkpoint-unread" in ids(run(tmp_path, f"vllm serve {folder} --kv-cache-dtype bfloat16"))


V4 = "sglang serve --model-path deepseek-ai/DeepSeek-V4 --kv-cache-dtype "
V3 = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --attention-backend trtllm_mla --kv-cache-dtype "


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (V4 + "bf16", "sglang-deepseek-v4-word"),
        (V4 + "fp8_e5m2", "sglang-deepseek-v4-word"),
        (V4 + "bfloat16", ""),
        (V4 + "fp8_e4m3", ""),
        (V3 + "bfloat16", "sglang-trtllm-mla-word"),
        (V3 + "bf16", ""),
        (V3 + "auto", ""),
    ],
)
def test_each_engine_s_own_spelling_of_sixteen_bits(tmp_path: Path, text: str, error: str) -> None:
    """DeepSeek-V4 takes bfloat16 alone, trtllm_mla bf16 alone; the fix of each is the other word."""
    found = {f.id for f in run(tmp_path, text).findings if f.severity == "error"}

    assert found == ({error} if error else set())


NV = "sglang serve --model-path Qwen/Qwen3-32B --kv-cache-dtype nvfp4 "


@pytest.mark.parametrize(
    ("text", "device", "error"),
    [
        (NV + "--attention-backend flashinfer", "", ""),
        (NV + "--attention-backend triton", "", "sglang-nvfp4-backend"),
        (NV + "--attention-backend triton --prefill-kv-cache-dequant-dtype fp8_e4m3", "", ""),
        (NV + "--decode-attention-backend flashinfer", "", "sglang-nvfp4-backend"),
        (NV + "--speculative-algorithm STANDALONE", "b200", "sglang-nvfp4-speculation"),
        (NV + "--speculative-algorithm STANDALONE", "rtx5090", ""),
        (NV + "--speculative-algorithm NGRAM", "b200", "sglang-nvfp4-speculation"),
        (NV + "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1", "b200", ""),
        (NV + "--enable-lmcache", "rtx5090", ""),
        (NV + "--prefill-kv-cache-dequant-dtype nvfp4", "rtx5090", "sglang-prefill-dequant"),
        (NV + "--prefill-kv-cache-dequant-dtype nvfp4", "b200", ""),
        (NV.replace("nvfp4", "bf16") + "--prefill-kv-cache-dequant-dtype auto", "", ""),
        (
            NV.replace("nvfp4", "fp4_mx_block16") + "--prefill-attention-backend fa4 --decode-attention-backend triton",
            "",
            "",
        ),
        (
            NV.replace("nvfp4", "fp4_mx_block16")
            + "--prefill-attention-backend fa4 --decode-attention-backend trtllm_mha",
            "",
            "sglang-mx4-backend",
        ),
        (
            NV.replace("nvfp4", "fp4_mx_block16")
            + "--prefill-attention-backend triton --decode-attention-backend flashinfer",
            "",
            "",
        ),
    ],
)
def test_four_bits_of_sglang_as_its_own_checks_take_them(tmp_path: Path, text: str, device: str, error: str) -> None:
    """What stops the start is an error, and what SGLang resolves by itself or only warns of is none."""
    found = {f.id for f in run(tmp_path, text, device=device).findings if f.severity == "error"}

    assert found == ({error} if error else set())


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("vllm serve Qwen/Qwen3-32B --kv-cache-dtype turboquant_4bit_nc --attention-backend TURBOQUANT", True),
        ('vllm serve Qwen/Qwen3-32B --kv-cache-dtype turboquant_k8v4 -ac \'{"backend": "turboquant"}\'', True),
        (
            "vllm serve Qwen/Qwen3.5-27B --kv-cache-dtype turboquant_k8v4 --attention-backend TURBOQUANT",
            False,
        ),
        ("vllm serve a/unknown --kv-cache-dtype turboquant_k8v4 --attention-backend TURBOQUANT", False),
        ("vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8 --attention-backend TURBOQUANT", False),
    ],
)
def test_turboquant_is_not_named(tmp_path: Path, text: str, fires: bool) -> None:
    """It cannot serve the boundary layers of a dense model; a hybrid keeps none, and an unknown model is not judged."""
    assert ("vllm-turboquant-named" in ids(run(tmp_path, text))) is fires


@pytest.mark.parametrize(
    ("text", "found", "absent"),
    [
        (
            "sglang serve --model-path x --kv-cache-d fp4_e2m1",
            {"sglang-fp4-e2m1", "flag-shortened"},
            {"flag-misspelled"},
        ),
        ("vllm serve x --attention-b FLASH_ATN", {"vllm-backend-unknown", "flag-shortened"}, set()),
        ("vllm serve x --attention_back FLASH_ATN", {"vllm-backend-unknown", "flag-shortened"}, set()),
        ("vllm serve x --kv-cache-dt int8", set(), {"vllm-plain-int8", "flag-shortened"}),
        ("trtllm-serve x --kv_cache_dt fp4", set(), {"kv-dtype-unknown", "flag-shortened"}),
        ("llama-server -m x.gguf --cache-type-", set(), {"flag-shortened"}),
    ],
)
def test_shortened_options_are_read_where_argparse_reads_them(
    tmp_path: Path, text: str, found: set[str], absent: set[str]
) -> None:
    """The beginning of one option is that option; of two it is none, as for parsers that take whole names only."""
    have = ids(run(tmp_path, text))

    assert found <= have and not have & absent


def test_tp_is_a_shortened_option_of_sglang(tmp_path: Path) -> None:
    """SGLang's parser declares --tp-size; --tp counts all the same, and nobody is told to write it out."""
    report = run(tmp_path, "sglang serve --model-path {dense} --tp 4")

    assert "tp-replicates-heads" in ids(report) and "flag-shortened" not in ids(report)


def test_a_benchmark_of_lists_is_each_of_its_runs(tmp_path: Path) -> None:
    """llama-bench takes lists: a right one has no error, and the pair that cannot start is told."""
    right = run(tmp_path, "llama-bench -m x.gguf -ctk f16,q8_0 -ctv f16,q8_0 -fa 1")
    wrong = run(tmp_path, "llama-bench -m x.gguf -ctk f16,q8_0,q8_1 -ctv f16,q8_0 -fa 0,1")
    server = run(tmp_path, "llama-server -m x.gguf -ctk f16,q8_0")

    assert right.exit_code == 0
    assert {"llama-v-needs-flash-attention", "llama-q8-1-aborts"} <= ids(wrong)
    assert severity(server, "kv-dtype-unknown") == "error"


@pytest.mark.parametrize("left_out", ["num_bits", "type", "strategy", "symmetric"])
@pytest.mark.parametrize("word", ["", " --kv-cache-dtype bfloat16"])
def test_a_scheme_with_a_key_left_out_stops_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, word: str
) -> None:
    """vLLM reads the dictionary as it stands, for a 16-bit cache too: an absent key is no default."""
    scheme = {k: v for k, v in SCHEME.items() if k != left_out}
    monkeypatch.setitem(MODELS, "short", (scaled(scheme), scales()))

    found = next(f for f in run(tmp_path, f"vllm serve {{short}}{word}").findings if f.id == "vllm-kv-scheme-not-taken")

    assert found.severity == "error" and f"{left_out} is left out" in found.message
