"""SGLang: words that mean 16 bits, backends that are pinned, models that start in FP8, and what is never written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.launch.ask import launch
from kvgate.lint.run import Options, lint
from launch.test_launch_commands import after, differences
from lint.lint_kit import folder


def test_the_arms_differ_in_the_word_alone() -> None:
    """bf16 is spelled out, never auto, and one backend is pinned on both arms."""
    found = launch("sglang", "Qwen/Qwen3-32B", "fp8", device="h100", context_tokens=32768, tp=2)

    assert found.baseline is not None and found.rollback == found.baseline
    assert differences(found.candidate, found.baseline) == {"fp8_e4m3", "bf16"}
    assert found.candidate.argv[:3] == ("sglang", "serve", "--model-path")
    assert found.backends == {"candidate": "fa3", "baseline": "fa3"} and found.loud == ()


@pytest.mark.parametrize(
    ("model", "kv", "device", "backend", "own"),
    [
        ("Qwen/Qwen3-32B", "fp8_e4m3", "b200", "trtllm_mha", ""),
        ("Qwen/Qwen3-32B", "fp8_e4m3", "rtx5090", "flashinfer", ""),
        ("Qwen/Qwen3-32B", "fp8_e4m3", "a10", "flashinfer", ""),
        ("Qwen/Qwen3-32B", "fp8_e4m3", "mi300x", "aiter", ""),
        ("Qwen/Qwen3-32B", "fp8_e5m2", "h100", "flashinfer", "fa3"),
        ("Qwen/Qwen3-32B", "fp8_e5m2", "b200", "flashinfer", "trtllm_mha"),
        ("Qwen/Qwen3-32B", "mxfp8", "b200", "fa4", "trtllm_mha"),
        ("Qwen/Qwen3-32B", "fp4_mx_block16", "h100", "triton", "fa3"),
        ("openai/gpt-oss-20b", "fp8_e4m3", "h100", "fa3", ""),
        ("openai/gpt-oss-20b", "fp8_e4m3", "b200", "trtllm_mha", ""),
        ("openai/gpt-oss-20b", "fp8_e4m3", "rtx5090", "triton", ""),
        ("openai/gpt-oss-20b", "fp8_e5m2", "h100", "triton", "fa3"),
        ("google/gemma-4-26B-A4B", "fp8_e4m3", "h100", "triton", ""),
        ("Qwen/Qwen3.5-27B", "fp8_e4m3", "b200", "triton", ""),
        ("XiaomiMiMo/MiMo-V2-Flash", "fp8_e4m3", "b200", "triton", "fa4"),
        ("deepseek-ai/DeepSeek-V3", "fp8_e4m3", "b200", "trtllm_mla", ""),
        ("deepseek-ai/DeepSeek-V3", "fp8_e4m3", "h100", "flashmla", "fa3"),
        ("deepseek-ai/DeepSeek-V2-Lite", "fp8_e4m3", "b200", "trtllm_mla", "flashinfer"),
    ],
)
def test_the_backend_is_the_engines_own_or_shouted(model: str, kv: str, device: str, backend: str, own: str) -> None:
    """Both arms run on one backend; where SGLang would serve 16 bits with another, that is said loudly."""
    found = launch("sglang", model, kv, device=device)

    assert found.backends == {"candidate": backend, "baseline": backend}
    assert after(found.candidate.argv, "--attention-backend") == backend
    assert (f"serves 16 bits with {own} on {device}" in " ".join(found.loud)) == bool(own)


def test_nvfp4_has_a_backend_for_each_phase() -> None:
    """On 10.x trtllm_mha does both; on 12.x flashinfer fills the cache and trtllm_mha decodes it, on both arms."""
    blackwell = launch("sglang", "Qwen/Qwen3-32B", "nvfp4", device="b200")
    consumer = launch("sglang", "Qwen/Qwen3-32B", "nvfp4", device="rtx5090")

    assert after(blackwell.candidate.argv, "--attention-backend") == "trtllm_mha"
    for serve in (consumer.candidate, consumer.baseline):
        assert serve is not None
        assert after(serve.argv, "--prefill-attention-backend") == "flashinfer"
        assert after(serve.argv, "--decode-attention-backend") == "trtllm_mha"


@pytest.mark.parametrize(
    ("model", "device", "candidate", "baseline"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "h200", ("flashmla_kv", "flashmla_kv"), ("flashmla_sparse", "fa3")),
        ("deepseek-ai/DeepSeek-V3.2", "b200", ("trtllm", "trtllm"), ("flashmla_sparse", "trtllm")),
        ("zai-org/GLM-5.1", "rtx-pro-6000", ("flashinfer_sparse_mla",) * 2, ("flashmla_sparse", "trtllm")),
        ("deepseek-ai/DeepSeek-V3.2", "mi300x", ("triton", "triton"), ("triton", "triton")),
    ],
)
def test_sparse_mla_changes_kernels_loudly(
    model: str, device: str, candidate: tuple[str, str], baseline: tuple[str, str]
) -> None:
    """SGLang has other kernels for sparse MLA in FP8: each arm names its own, and the change is shouted."""
    found = launch("sglang", model, "fp8_e4m3", device=device)

    assert found.baseline is not None
    for serve, (prefill, decode) in ((found.candidate, candidate), (found.baseline, baseline)):
        assert after(serve.argv, "--dsa-prefill-backend") == prefill
        assert after(serve.argv, "--dsa-decode-backend") == decode
    assert any("THE KERNEL CHANGES" in t for t in found.loud) == (candidate != baseline)


@pytest.mark.parametrize(
    ("model", "device", "says"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "b200", "auto would start this model in fp8_e4m3"),
        ("nvidia/GLM-5.1-NVFP4", "h200", "auto would start this checkpoint in fp8_e4m3"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "h200", "fp8_e4m3"),
        ("deepseek-ai/DeepSeek-V3.2", "h200", ""),
    ],
)
def test_auto_is_resolved_and_never_a_baseline(model: str, device: str, says: str) -> None:
    """What auto would become is said, and neither the baseline nor the way back says auto."""
    found = launch("sglang", model, "fp8_e4m3", device=device)

    assert found.rollback is not None and after(found.rollback.argv, "--kv-cache-dtype") == "bf16"
    assert any("auto would start" in n and says in n for n in found.notes) == bool(says)


def test_the_scheme_of_compressed_tensors_is_not_followed(tmp_path: Path) -> None:
    """SGLang's auto follows ModelOpt's word alone; the note does not say that it starts in FP8."""
    found = launch("sglang", str(folder(tmp_path, "scheme")), "fp8_e4m3@checkpoint", device="h100")

    assert any("auto does not follow" in n for n in found.notes)


def test_no_known_rollback_is_an_answer() -> None:
    """DeepSeek-V4's pages are packed FP8 whatever is asked: no baseline, no rollback, and native is refused."""
    found = launch("sglang", "deepseek-ai/DeepSeek-V4-Flash", "fp8_e4m3", device="b200")

    assert found.baseline is None and found.rollback is None
    assert found.why_no_rollback.startswith("no known rollback")
    with pytest.raises(UserError, match="packed FP8"):
        launch("sglang", "deepseek-ai/DeepSeek-V4-Flash", "native", device="b200")
    for kv in ("bf16", "bfloat16"):
        with pytest.raises(UserError, match=f"^{kv}: .*packed FP8"):
            launch("sglang", "deepseek-ai/DeepSeek-V4-Flash", kv, device="b200")


def test_float16_has_no_word(tmp_path: Path) -> None:
    """A float16 model is served with auto and --dtype float16; not where auto would follow the checkpoint."""
    plain = launch("sglang", "meta-llama/Llama-2-7b-hf", "fp8_e4m3", device="h100")
    path = folder(tmp_path, "dense")
    config = json.loads((path / "config.json").read_text())
    body = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (path / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16", "quantization_config": body}))
    scheme = launch("sglang", str(path), "fp8_e4m3", device="h100")

    assert plain.baseline is not None and after(plain.baseline.argv, "--kv-cache-dtype") == "auto"
    assert after(plain.baseline.argv, "--dtype") == after(plain.candidate.argv, "--dtype") == "float16"
    assert scheme.baseline is None and "auto follows the checkpoint" in scheme.why_no_rollback


@pytest.mark.parametrize(
    ("model", "kv", "device", "says"),
    [
        ("Qwen/Qwen3-32B", "fp8_e5m2", "mi300x", "stores E4M3 under this word"),
        ("Qwen/Qwen3-32B", "fp8_e5m2", "cpu", "knows E4M3 only"),
        ("Qwen/Qwen3-32B", "mxfp8", "h100", "10.x"),
        ("Qwen/Qwen3-32B", "mxfp8", "rtx5090", "10.x"),
        ("Qwen/Qwen3-32B", "nvfp4", "h100", "10.x or 12.x"),
        ("Qwen/Qwen3-32B", "nvfp4", "mi355x", "only CUDA"),
        ("openai/gpt-oss-20b", "nvfp4", "rtx5090", "no attention sinks"),
        ("deepseek-ai/DeepSeek-V3", "nvfp4", "b200", "no MLA backend"),
        ("deepseek-ai/DeepSeek-V3", "fp8_e4m3", "a100-80gb", "no attention backend of SGLang is known"),
        ("deepseek-ai/DeepSeek-V3.2", "fp8_e5m2", "b200", "allowed: native, fp8_e4m3"),
        ("moonshotai/Kimi-K3", "fp8_e5m2", "h100", "was not read"),
        ("Qwen/Qwen3-32B", "fp4_e2m1", "b200", "write nvfp4 or fp4_mx_block16"),
        ("Qwen/Qwen3-32B", "int8", "h100", "no int8 KV cache"),
        ("Qwen/Qwen3-32B", "f16", "h100", "auto with --dtype float16"),
        ("Qwen/Qwen3-32B", "q8_0", "h100", "allowed: bf16, fp8_e4m3"),
    ],
)
def test_what_sglang_would_stop_at_or_change(model: str, kv: str, device: str, says: str) -> None:
    """Types that the device, the model or the build turns into something else are refused in one line."""
    with pytest.raises(UserError) as caught:
        launch("sglang", model, kv, device=device)
    assert says in str(caught.value)


def test_lint_reads_the_command_as_it_was_meant() -> None:
    """lint finds SGLang in the command, with the type that was asked for."""
    found = launch("sglang", "Qwen/Qwen3-32B", "fp8_e4m3", device="h100")

    report = lint(found.candidate.text, Options(device="h100", engine_version="0.5.23"))

    assert report.engines == ("sglang",) and report.exit_code == 0
