"""Calibration: nothing left to a default, and what is served afterwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from kvgate.core.errors import UserError
from kvgate.launch.ask import launch
from kvgate.lint.run import Options, lint
from launch.test_launch_commands import after
from lint.lint_kit import folder

CALIBRATED = "fp8_e4m3@calibrated#9f2c1a07"


def test_llm_compressor_writes_every_field() -> None:
    """`type` left out would mean int; the script's text is Python with the model and the folder in it."""
    found = launch("vllm", "meta-llama/Llama-3.1-8B-Instruct", CALIBRATED, device="h100")

    recipe = yaml.safe_load(found.files["kv-recipe.yaml"])["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    call = next(n for n in ast.walk(ast.parse(found.files["calibrate.py"])) if isinstance(n, ast.Call))
    said = {k.arg: ast.literal_eval(k.value) for k in call.keywords}

    assert recipe["kv_cache_scheme"] == {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
    }
    assert said["model"] == "meta-llama/Llama-3.1-8B-Instruct" and said["recipe"] == "kv-recipe.yaml"
    assert said["output_dir"] == found.candidate.argv[2] == "./Llama-3.1-8B-Instruct-kv-fp8-e4m3"
    assert [s.argv for s in found.calibrate] == [("python", "calibrate.py")]


def test_the_arms_share_the_calibrated_checkpoint() -> None:
    """Baseline and candidate serve the same weights; the way back is the model of before."""
    found = launch("vllm", "meta-llama/Llama-3.1-8B-Instruct", "fp8_e4m3", device="h100", calibrate="llm-compressor")

    assert found.baseline is not None and found.rollback is not None
    assert found.baseline.argv[2] == found.candidate.argv[2]
    assert found.rollback.argv[2] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (
        after(found.baseline.argv, "--kv-cache-dtype") == after(found.rollback.argv, "--kv-cache-dtype") == "bfloat16"
    )


def test_modelopt_names_the_format() -> None:
    """The default fp8_cast calibrates nothing, so the format is written; lint agrees; changed weights are shouted."""
    found = launch("sglang", "Qwen/Qwen3-32B", CALIBRATED, device="h100")

    command = found.calibrate[0]

    assert after(command.argv, "--kv_cache_qformat") == "fp8" and after(command.argv, "--qformat") == "fp8"
    assert [f.id for f in lint(command.text, Options()).findings if f.severity != "info"] == []
    assert any("WEIGHTS CHANGE" in t for t in found.loud)
    assert found.baseline is not None and "--model-path" in found.baseline.argv
    assert found.rollback is not None and after(found.rollback.argv, "--model-path") == "Qwen/Qwen3-32B"


def test_scales_for_each_head() -> None:
    """:head becomes attn_head, with the kernels that read it said and pinned."""
    found = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3:head@calibrated#9f2c1a07", device="b200")

    assert "strategy: attn_head" in found.files["kv-recipe.yaml"]
    assert set(found.backends.values()) == {"FLASH_ATTN"}
    assert any("FlashAttention 3 and 4" in n for n in found.notes)


def test_a_checkpoint_with_scales_needs_no_calibration(tmp_path: Path) -> None:
    """@calibrated on a checkpoint that brings scales serves it as it is."""
    found = launch("vllm", str(folder(tmp_path, "scheme")), CALIBRATED, device="h100")

    assert found.calibrate == () and found.files == {}


def test_a_model_called_like_code_stays_text(tmp_path: Path) -> None:
    """Quotes and line ends of Python in a folder's name do not end the literal."""
    path = folder(tmp_path, "dense")
    odd = path.with_name('x"); import os; os.system("true') if False else path.parent / 'x"+__import__("os").sep+"'
    path.rename(odd)

    found = launch("vllm", str(odd), "fp8_e4m3", calibrate="llm-compressor")
    call = next(n for n in ast.walk(ast.parse(found.files["calibrate.py"])) if isinstance(n, ast.Call))

    assert ast.literal_eval(next(k.value for k in call.keywords if k.arg == "model")) == str(odd)


@pytest.mark.parametrize(
    ("engine", "model", "kv", "calibrate", "says"),
    [
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", "awq", "unknown calibrator 'awq'; allowed: llm-compressor, modelopt"),
        ("vllm", "Qwen/Qwen3-32B", "native", "modelopt", "native cache needs no calibration"),
        ("vllm", "Qwen/Qwen3-32B", "int8_per_token_head", "modelopt", "takes no scales"),
        ("vllm", "Qwen/Qwen3-32B", "nvfp4", "llm-compressor", "calibrates no nvfp4"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3@unit", "llm-compressor", "scales of 1.0 need no calibration"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3:head", "modelopt", "--calibrate llm-compressor"),
        ("vllm", "deepseek-ai/DeepSeek-V3", "fp8_e4m3", "llm-compressor", "refuses a checkpoint that fp8 quantized"),
        ("vllm", "deepseek-ai/DeepSeek-V2-Lite", "fp8_e4m3", "llm-compressor", "MLA"),
        ("trtllm", "Qwen/Qwen3-32B", "fp8_e4m3", "llm-compressor", "TensorRT-LLM reads; allowed: modelopt"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3@checkpoint", "none", "no KV scheme"),
    ],
)
def test_what_cannot_be_calibrated(engine: str, model: str, kv: str, calibrate: str, says: str) -> None:
    """Calibrators that do not fit stop with what does."""
    with pytest.raises(UserError) as caught:
        launch(engine, model, kv, calibrate=calibrate)
    assert says in str(caught.value)
