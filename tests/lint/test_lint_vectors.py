"""The handed cases: what people really typed, and what must not be flagged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lint.lint_kit import MODELS, SCHEME, ids, run, scaled, scales, severity

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: c["id"])
def test_a_handed_case(tmp_path: Path, case: dict) -> None:
    """Each named finding is there at its severity, each named absence holds, and so does the exit code."""
    text, options = case["text"], dict(case["options"])
    if "file" in case:
        path = tmp_path / "kv_scales.json"
        path.write_text(json.dumps(case["file"]))
        text = text.replace("{kv_scales.json}", str(path))
    if "log" in case:
        options["log"] = case["log"]

    report = run(tmp_path, text, **options)

    for name in case.get("errors", ()):
        assert severity(report, name) == "error"
    for name in case.get("warnings", ()):
        assert severity(report, name) == "warning"
    assert not ids(report) & set(case.get("absent", ()))
    assert report.exit_code == case.get("exit", int(bool(case.get("errors"))))


def test_half_of_the_scales_are_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 good layers of an encoder and 60 zeros of a decoder: the count and the layers are named."""
    tensors = scales(layers=60) | scales(0.0, 0.0, layers=60, name="model.decoder.layers.{i}.self_attn.{side}_scale")
    monkeypatch.setitem(MODELS, "diffusion", (scaled(SCHEME, num_hidden_layers=60), tensors))

    report = run(tmp_path, "vllm serve {diffusion}")

    found = next(f for f in report.findings if f.id == "scales-zero")
    assert found.severity == "error"
    assert found.message.startswith("120 of 240 KV scales are zero: layer 0 k")
    assert report.exit_code == 1


def test_a_legacy_rank_key_is_named_with_its_repair(tmp_path: Path) -> None:
    """'rank0' is told by name, and what to write instead."""
    path = tmp_path / "kv_cache_scales.json"
    body = {"0": 0.0230364, "1": 0.01979}
    path.write_text(
        json.dumps({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"rank0": body}}})
    )

    report = run(tmp_path, str(path))

    found = next(f for f in report.findings if f.id == "sglang-scales-ranks")
    assert "'rank0'" in found.message and found.fix == "write '0'"


def test_the_linter_s_own_example(tmp_path: Path) -> None:
    """e5m2 with FLASH_ATTN on an H100 is an error that says what would be taken."""
    report = run(
        tmp_path, "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8_e5m2 --attention-backend FLASH_ATTN", device="h100"
    )

    found = next(f for f in report.findings if f.id == "vllm-backend-dtype")
    assert found.severity == "error" and "FLASHINFER" in found.fix


@pytest.mark.parametrize(
    ("word", "device", "kernel"),
    [
        ("bfloat16", "a100-80gb", "FLASH_ATTN"),
        ("bfloat16", "h100", "FLASH_ATTN"),
        ("bfloat16", "b200", "FLASHINFER"),
        ("bfloat16", "rtx5090", "FLASH_ATTN"),
        ("fp8", "a100-80gb", "FLASHINFER"),
        ("fp8", "l40s", "FLASHINFER"),
        ("fp8", "h100", "FLASH_ATTN"),
        ("fp8_e4m3", "b300", "FLASHINFER"),
        ("fp8", "rtx5090", "FLASHINFER"),
        ("fp8_e5m2", "h100", "FLASHINFER"),
        ("fp8_e5m2", "b200", "FLASHINFER"),
        ("nvfp4", "h100", "FLASHINFER"),
        ("nvfp4", "b200", "FLASHINFER"),
        ("nvfp4_4over6", "h100", ""),
        ("nvfp4_4over6", "rtx5090", ""),
        ("nvfp4_4over6", "b200", "FLASHINFER"),
        ("int8_per_token_head", "h100", "TRITON_ATTN"),
        ("fp8_per_token_head", "b200", "TRITON_ATTN"),
        ("turboquant_4bit_nc", "h100", "TURBOQUANT"),
    ],
)
def test_the_table_of_kernels(word: str, device: str, kernel: str) -> None:
    """Plain attention with heads of 128: the derived table of backends by KV type and device."""
    assert _chosen("Qwen/Qwen3-32B", word, device) == (kernel,)


@pytest.mark.parametrize(
    ("model", "word", "device", "kernel"),
    [
        ("openai/gpt-oss-20b", "fp8", "a100-80gb", "TRITON_ATTN"),
        ("openai/gpt-oss-20b", "fp8", "h100", "FLASH_ATTN"),
        ("openai/gpt-oss-20b", "fp8", "b200", "FLASHINFER"),
        ("deepseek-ai/DeepSeek-V3", "bfloat16", "h100", "FLASH_ATTN_MLA"),
        ("deepseek-ai/DeepSeek-V3", "fp8", "h100", "FLASHMLA"),
        ("deepseek-ai/DeepSeek-V3", "fp8", "b200", "FLASHINFER_MLA"),
        ("deepseek-ai/DeepSeek-V3", "fp8", "a100-80gb", "TRITON_MLA"),
        ("deepseek-ai/DeepSeek-V3", "fp8", "rtx5090", "TRITON_MLA"),
    ],
)
def test_the_table_of_kernels_of_other_models(model: str, word: str, device: str, kernel: str) -> None:
    """Sinks and MLA move the choice as the derived table says."""
    assert _chosen(model, word, device) == (kernel,)


def _chosen(model: str, word: str, device: str) -> tuple[str, ...] | None:
    from kvgate.enginefacts.facts import load
    from kvgate.hardware.device import device as device_of
    from kvgate.lint.backend_choice import chosen
    from kvgate.lint.command import Command
    from kvgate.lint.model_view import model_view
    from kvgate.lint.subject import Subject

    return chosen(Subject(Command("vllm"), load("vllm"), device=device_of(device), model=model_view(model)), word)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("scheme", set()),
        ("zero", {"scales-zero"}),
        ("negative", {"scales-negative"}),
        ("nan", {"scales-not-finite"}),
        ("inf", {"scales-not-finite"}),
        ("unit", {"scales-unit"}),
        ("large", {"scales-large"}),
        ("tiny", {"scales-tiny"}),
        ("missing", {"scales-missing"}),
        ("promised", {"scales-missing"}),
        ("dynamic", set()),
        ("one_side", {"scales-one-side"}),
        ("wrong_name", {"scales-name"}),
        ("modelopt_name", set()),
        ("fused", {"scales-fused"}),
        ("per_head", set()),
        ("per_head_wrong", {"scales-shape"}),
        ("tensor_many", {"scales-shape"}),
        ("zero_point", {"scales-zero-point"}),
    ],
)
def test_scales_of_a_checkpoint(tmp_path: Path, name: str, found: set[str]) -> None:
    """Each fault of the scales is told by its own rule, and by no other."""
    report = run(tmp_path, f"{{{name}}}")

    assert {i for i in ids(report) if i.startswith("scales-")} == found


def test_scales_in_half_precision_and_many_files(tmp_path: Path) -> None:
    """Values are read in BF16 too, and from each of several files."""
    from lint.lint_kit import pack

    (tmp_path / "config.json").write_text(json.dumps(scaled()))
    for i, bits in enumerate((0x3CA4, 0x7FC0)):  # 0.02 and a NaN
        tensors = {f"model.layers.{i}.self_attn.{side}_scale": ("BF16", (1,), [bits]) for side in "kv"}
        (tmp_path / f"model-{i}.safetensors").write_bytes(pack(tensors))

    report = run(tmp_path, str(tmp_path))

    found = next(f for f in report.findings if f.id == "scales-not-finite")
    assert found.message == "2 of 4 KV scales are NaN or infinite: layer 1 k, layer 1 v"
