"""TensorRT-LLM: the file that says everything of the cache, cold pages, and what was not verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.core.errors import UserError
from kvgate.launch.ask import launch
from kvgate.launch.commands import Commands
from kvgate.launch.yaml_file import yaml_text
from lint.lint_kit import folder

GIB = 1 << 30


def body(found: Commands, name: str) -> dict[str, Any]:
    """One file of an answer, read back."""
    return dict(yaml.safe_load(found.files[name]))


def test_the_files_differ_in_the_dtype_alone() -> None:
    """Command and files are alike but for kv_cache_config.dtype; defaults stand in both."""
    found = launch("tensorrt-llm", "Qwen/Qwen3-32B", "fp8_e4m3", device="h100", context_tokens=32768, tp=2)

    new, old = body(found, "candidate.yaml"), body(found, "baseline.yaml")

    assert new["kv_cache_config"].pop("dtype") == "fp8" and old["kv_cache_config"].pop("dtype") == "auto"
    assert new == old
    assert new == {
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "max_seq_len": 32768,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "tokens_per_block": 32},
    }
    assert found.candidate.argv == ("trtllm-serve", "Qwen/Qwen3-32B", "--config", "candidate.yaml")
    assert found.rollback == found.baseline and found.baseline is not None


def test_windows_are_the_shortest_list_that_repeats() -> None:
    """gpt-oss alternates a window of 128 with full layers; Gemma 4 has five windows for each full layer."""
    oss = launch("trtllm", "openai/gpt-oss-20b", "fp8", device="h100", context_tokens=65536)
    gemma = launch("trtllm", "google/gemma-4-31B-it", "fp8", device="h100", context_tokens=65536)
    dense = launch("trtllm", "Qwen/Qwen3-32B", "fp8", device="h100")

    assert body(oss, "candidate.yaml")["kv_cache_config"]["max_attention_window"] == [128, 65536]
    assert body(gemma, "baseline.yaml")["kv_cache_config"]["max_attention_window"] == [1024] * 5 + [65536]
    assert "max_attention_window" not in body(dense, "candidate.yaml")["kv_cache_config"]


def test_a_checkpoint_that_auto_follows_has_no_baseline() -> None:
    """No word is known that rolls such a checkpoint back, and that is the answer; native is refused."""
    found = launch("trtllm", "Qwen/Qwen3-32B-FP8-Static-PerTensor", "fp8_e4m3", device="h100")

    assert found.baseline is None and found.rollback is None and list(found.files) == ["candidate.yaml"]
    assert "not verified" in found.why_no_rollback and found.why_no_rollback.startswith("no known rollback")
    with pytest.raises(UserError, match="auto follows this checkpoint"):
        launch("trtllm", "Qwen/Qwen3-32B-FP8-Static-PerTensor", "native", device="h100")


def test_a_calibrated_checkpoint_goes_back_to_its_original() -> None:
    """Served is the new folder; it has no 16-bit baseline, and the way back is the model of before."""
    found = launch("trtllm", "Qwen/Qwen3-32B", "nvfp4", device="b200", calibrate="modelopt")

    assert found.candidate.argv[1] == "./Qwen3-32B-kv-nvfp4" and found.baseline is None
    assert found.rollback is not None and found.rollback.argv[1] == "Qwen/Qwen3-32B"
    assert body(found, "baseline.yaml")["kv_cache_config"]["dtype"] == "auto"


def test_cold_pages() -> None:
    """Compression is the candidate's alone; manager, host cache and hot type are both arms'."""
    found = launch("trtllm", "Qwen/Qwen3-32B", "native", device="b200", cold_pages="nvfp4", host_cache_bytes=64 * GIB)

    new, old = body(found, "candidate.yaml"), body(found, "baseline.yaml")

    assert new.pop("kv_cache_compression_config") == {"algorithm": "quantization_for_cold_page", "quant": "nvfp4"}
    assert new == old
    assert new["kv_cache_config"]["use_kv_cache_manager_v2"] is True
    assert new["kv_cache_config"]["host_cache_size"] == 64 * GIB
    assert any("offload_bytes_total" in n for n in found.notes)


@pytest.mark.parametrize(
    ("model", "kv", "device", "options", "says"),
    [
        ("Qwen/Qwen3-32B", "native", "h100", {}, "10.0, 10.3"),
        ("Qwen/Qwen3-32B", "native", "rtx5090", {}, "10.0, 10.3"),
        ("Qwen/Qwen3.5-122B-A10B-NVFP4", "nvfp4", "b200", {}, "unknown model"),
        ("deepseek-ai/DeepSeek-V4-Flash", "native", "b200", {}, "DeepSeek-V4"),
        ("Qwen/Qwen3-32B", "native", "b200", {"helix": True}, "HELIX"),
        ("Qwen/Qwen3-32B", "native", "b200", {"host_cache_bytes": 0}, "--host-cache"),
        ("Qwen/Qwen3-32B", "native", "b200", {"cold_pages": "fp8"}, "allowed: nvfp4"),
    ],
)
def test_cold_pages_that_cannot_be(model: str, kv: str, device: str, options: dict[str, Any], says: str) -> None:
    """Device, model, parallelism and missing room each stop with their reason."""
    given = {"cold_pages": "nvfp4", "host_cache_bytes": GIB, **options}
    if says == "unknown model":
        model, says = "Qwen/Qwen3-32B", "hot cache is NVFP4 already"
        given["calibrate"] = "modelopt"

    with pytest.raises(UserError) as caught:
        launch("trtllm", model, kv, device=device, **given)
    assert says in str(caught.value)


def test_other_engines_have_no_cold_pages() -> None:
    """The option is refused where it would be dropped."""
    for engine in ("vllm", "sglang"):
        with pytest.raises(UserError, match="feature of TensorRT-LLM"):
            launch(engine, "Qwen/Qwen3-32B", "fp8_e4m3", cold_pages="nvfp4")


@pytest.mark.parametrize(
    ("model", "kv", "device", "says"),
    [
        ("Qwen/Qwen3-32B", "nvfp4", "b200", "needs a checkpoint that ModelOpt made"),
        ("Qwen/Qwen3-32B", "fp8_e4m3", "mi300x", "NVIDIA GPUs"),
        ("Qwen/Qwen3-32B", "fp8_e4m3", "t4", "hardware table"),
        ("Qwen/Qwen2.5-7B-Instruct", "fp8_e4m3", "h100", "Qwen2.5 was broken"),
        # The device is named before a checkpoint that would not help on it.
        ("Qwen/Qwen3-32B", "nvfp4", "h100", "marks nvfp4 for 10.0, 10.3, and not for 9.0"),
        ("moonshotai/Kimi-K3", "fp8_e4m3", "b200", "96.4 to 74.5"),
    ],
)
def test_what_tensorrt_llm_is_not_asked_for(model: str, kv: str, device: str, says: str) -> None:
    """Hardware outside the table, and models whose FP8 cache is known to be broken, are refused."""
    with pytest.raises(UserError) as caught:
        launch("trtllm", model, kv, device=device)
    assert says in str(caught.value)


def test_what_was_not_verified_is_said(tmp_path: Path) -> None:
    """Scales of a checkpoint that the PyTorch backend may not read are loud where they are asked for."""
    found = launch("trtllm", str(folder(tmp_path, "scheme")), "fp8_e4m3@checkpoint", device="h100")

    assert any("was not verified" in t for t in found.loud)
    assert any("not run" in n for n in found.notes)


@pytest.mark.parametrize(
    "text", ["on", "1.0", "null", "~", "a: b", "# x", "it's", '"', "- x", "{", "é\u2028", "0x10", ""]
)
def test_yaml_reads_back_as_what_it_was(text: str) -> None:
    """Words that YAML takes for something else stay words; order and lists stay too."""
    values = {"z": text, text or "key": [1, text], "a": {"b": True, "c": 0.9}}

    back = yaml.safe_load(yaml_text(values))

    assert back == values and list(back) == list(values)
