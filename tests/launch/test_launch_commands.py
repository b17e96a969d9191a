"""Commands of launch: three that differ in the recipe alone, a rollback that rolls back, or the reason for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.launch.ask import launch
from kvgate.launch.commands import Serve
from kvgate.lint.run import Options, lint
from lint.lint_kit import folder
from models.tiny_gguf import tiny_model


def after(argv: tuple[str, ...], option: str) -> str:
    """The word behind an option; "" where it is not given."""
    return argv[argv.index(option) + 1] if option in argv else ""


def differences(a: Serve, b: Serve) -> set[str]:
    """Words that stand in one command only."""
    return set(a.argv) ^ set(b.argv)


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    return str(path)


def test_the_arms_differ_in_the_recipe_alone() -> None:
    """One backend that serves both is pinned on both, and the words of the KV type are all that differs."""
    found = launch(
        "vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.32.0", device="a100-80gb", context_tokens=32768, tp=2
    )

    assert found.baseline is not None and found.rollback == found.baseline
    assert differences(found.candidate, found.baseline) == {"fp8_e4m3", "bfloat16"}
    assert after(found.candidate.argv, "--attention-backend") == "FLASHINFER"


@pytest.mark.parametrize(
    ("device", "before", "now"),
    [
        ("a100-80gb", "FLASH_ATTN", "FLASHINFER"),
        ("rtx5090", "FLASH_ATTN", "FLASHINFER"),
        ("h100", "", ""),
        ("b200", "", ""),
    ],
)
def test_a_pin_that_hides_another_kernel_says_so(device: str, before: str, now: str) -> None:
    """On 8.x and 12.x vLLM itself would move FP8 to another kernel than 16 bits; on 9.0 and 10.x it would not."""
    found = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.32.0", device=device)

    assert len(set(found.backends.values())) == 1
    if before:
        assert f"bfloat16 with {before} on {device} and fp8_e4m3 with {now}" in found.loud[0]
    else:
        assert found.loud == ()


@pytest.mark.parametrize(("tokens", "shouted"), [(40_960, False), (40_961, True)])
def test_more_context_than_the_model_knows_is_shouted(tokens: int, shouted: bool) -> None:
    """An engine refuses a longer one, unless the config scales RoPE."""
    found = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.32.0", device="h100", context_tokens=tokens)

    assert any("trained for 40,960 tokens" in line for line in found.loud) is shouted


def test_a_kernel_that_serves_one_arm_only_is_shouted() -> None:
    """TurboQuant's backend reads no 16-bit cache, and in a dense model four layers keep one: it cannot be named."""
    dense = launch("vllm", "Qwen/Qwen3-32B", "turboquant_4bit_nc", version="0.32.0", device="h100")
    hybrid = launch("vllm", "Qwen/Qwen3.5-27B", "turboquant_4bit_nc", version="0.32.0", device="h100")
    kept = launch("vllm", "Qwen/Qwen3.5-27B", "turboquant_4bit_nc/keep=L3", version="0.32.0", device="h100")

    assert dense.backends == kept.backends == {"baseline": "FLASH_ATTN"}
    assert "--attention-backend" not in dense.candidate.argv
    assert hybrid.backends == {"candidate": "TURBOQUANT", "baseline": "FLASH_ATTN"}
    assert all("THE KERNEL CHANGES" in found.loud[0] for found in (dense, hybrid, kept))


def test_windows_that_are_kept_are_skipped() -> None:
    """keep=sliding_window and keep=L0-2 become words of the skip list; the baseline has none."""
    windows = launch("vllm", "openai/gpt-oss-20b", "fp8_e4m3/keep=sliding_window", device="h100")
    layers = launch("vllm", "openai/gpt-oss-20b", "fp8_e4m3/keep=L0-2,L4", device="h100")

    assert after(windows.candidate.argv, "--kv-cache-dtype-skip-layers") == "sliding_window"
    at = layers.candidate.argv.index("--kv-cache-dtype-skip-layers")
    assert layers.candidate.argv[at + 1 : at + 5] == ("0", "1", "2", "4")
    assert windows.baseline is not None and "--kv-cache-dtype-skip-layers" not in windows.baseline.argv


def test_a_checkpoint_that_starts_in_fp8_gets_a_real_baseline(tmp_path: Path) -> None:
    """Neither the baseline nor the rollback says auto, and lint agrees that they are 16 bits."""
    path = str(folder(tmp_path, "scheme"))

    found = launch("vllm", path, "fp8_e4m3@checkpoint", device="h100", version="0.32.0")

    assert found.rollback is not None and after(found.rollback.argv, "--kv-cache-dtype") == "bfloat16"
    assert any("auto would start" in n for n in found.notes)
    report = lint(found.rollback.text, Options(device="h100", engine_version="0.32.0"))
    assert not [f for f in report.findings if f.id == "vllm-auto-follows-checkpoint"]


def test_no_known_rollback_is_an_answer() -> None:
    """Sparse MLA on 12.x stores FP8 whatever is asked for: there is no baseline and no rollback, and why is said."""
    found = launch("vllm", "deepseek-ai/DeepSeek-V3.2", "fp8_e4m3", device="rtx5090")

    assert found.baseline is None and found.rollback is None
    assert found.why_no_rollback.startswith("no known rollback")


@pytest.mark.parametrize(
    ("model", "kv", "device", "backend"),
    [
        ("deepseek-ai/DeepSeek-V3", "fp8_e4m3", "h100", "FLASHMLA"),
        ("deepseek-ai/DeepSeek-V3.2", "fp8_e4m3", "h100", "FLASHINFER_MLA_SPARSE_SM90"),
        ("deepseek-ai/DeepSeek-V3.2", "fp8_ds_mla", "b200", "FLASHMLA_SPARSE"),
        ("deepseek-ai/DeepSeek-V4-Flash", "fp8_e4m3", "b200", "FLASHINFER_MLA_SPARSE_DSV4"),
        ("openai/gpt-oss-20b", "fp8_e5m2", "h100", "FLASHINFER"),
        ("Qwen/Qwen3-32B", "int8_per_token_head", "h100", "TRITON_ATTN"),
        ("Qwen/Qwen3-32B", "nvfp4", "b200", "FLASHINFER"),
        ("microsoft/Phi-3-mini-4k-instruct", "fp8_e4m3", "h100", "FLASH_ATTN"),
    ],
)
def test_one_backend_serves_both_arms(model: str, kv: str, device: str, backend: str) -> None:
    """Each kind of cache is pinned to a backend that reads 16 bits and the type."""
    found = launch("vllm", model, kv, device=device)

    assert found.backends == {"candidate": backend, "baseline": backend}


@pytest.mark.parametrize("device", ["h100", "rtx5090", ""])
def test_deepseek_v4_has_no_way_back(device: str) -> None:
    """Its cache is packed FP8 but with one backend on 10.x: no baseline elsewhere, nor without a device."""
    found = launch("vllm", "deepseek-ai/DeepSeek-V4-Flash", "fp8_e4m3", device=device)

    assert found.baseline is None and found.rollback is None
    assert found.why_no_rollback.startswith("no known rollback: DeepSeek-V4 packs")
    assert after(found.candidate.argv, "--kv-cache-dtype") == "fp8"


def test_scales_for_each_head_move_the_kernel(tmp_path: Path) -> None:
    """attn_head is read by FlashAttention 3 and 4 alone: off FlashInfer on 10.x, and nowhere on 8.x."""
    path = str(folder(tmp_path, "per_head"))

    blackwell = launch("vllm", path, "fp8_e4m3:head@checkpoint", device="b200")

    assert set(blackwell.backends.values()) == {"FLASH_ATTN"} and "KERNEL" in blackwell.loud[0]
    with pytest.raises(UserError, match="no attention backend"):
        launch("vllm", path, "fp8_e4m3", device="a100-80gb")


def test_old_releases_are_not_taken_for_the_one_that_was_read() -> None:
    """A release outside the known range is unknown; one inside, but not read in full, is said to be that."""
    unread = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.40.0", device="h100")
    older = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.21.0", device="h100")
    newest = launch("vllm", "Qwen/Qwen3-32B", "fp8_e4m3", version="0.32.0", device="h100")

    assert any("has not been read" in n for n in unread.notes)
    assert any("read in full" in n for n in older.notes)
    assert not any("read" in n for n in newest.notes)


def test_one_accumulator_at_length_is_not_written() -> None:
    """0.10.2 on Hopper loses needles past 64K in FP8; shorter contexts and later releases are written."""
    with pytest.raises(UserError, match="one accumulator"):
        launch("vllm", "meta-llama/Llama-3.1-8B", "fp8_e4m3", version="0.10.2", device="h100")

    short = launch("vllm", "meta-llama/Llama-3.1-8B", "fp8_e4m3", version="0.10.2", device="h100", context_tokens=32768)

    assert short.backends["candidate"] == "FLASH_ATTN"


@pytest.mark.parametrize("tp", [3, 6, 16])
def test_heads_have_to_divide(tp: int) -> None:
    """gemma-4-26B-A4B has 8 and 2 KV heads and 16 query heads: 3 and 6 ranks do not fit, 16 do by replication."""
    if tp == 16:
        assert any(
            "each rank keeps one" in n for n in launch("vllm", "google/gemma-4-26B-A4B", "fp8_e4m3", tp=tp).notes
        )
        return
    with pytest.raises(UserError, match=f"do not divide by --tp {tp}; allowed: 1, 2, 4, 8"):
        launch("vllm", "google/gemma-4-26B-A4B", "fp8_e4m3", tp=tp)


def test_llama_cpp(gguf: str) -> None:
    """Both types and flash attention are spelled out; +none becomes the variable, on the candidate alone."""
    found = launch("llama.cpp", gguf, "k=q8_0+none,v=q8_0+none", context_tokens=4096)

    assert found.candidate.env == {"LLAMA_ATTN_ROT_DISABLE": "1"}
    assert found.baseline is not None and found.baseline.env == {}
    assert differences(found.candidate, found.baseline) == {"q8_0", "f16"}
    assert found.candidate.text.startswith("LLAMA_ATTN_ROT_DISABLE=1 llama-server -m ")


@pytest.mark.parametrize(
    ("engine", "model", "kv", "says"),
    [
        ("caffe", "Qwen/Qwen3-32B", "fp8_e4m3", "yet; allowed"),
        ("vllm", "Qwen/Qwen3-32B", "k=fp8_e4m3,v=bf16", "one type for K and V"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3/keep=L64", "layers 0 to 63"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3/keep=sliding_window", "no layers that it would skip"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3/keep=linear_attention", "by number and sliding_window"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3/residual=128", "no residual"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3@checkpoint", "no KV scheme"),
        ("vllm", "Qwen/Qwen3-32B", "q8_0", "int8_per_token_head, int4_per_token_head or fp8_e4m3"),
        ("vllm", "Qwen/Qwen3-32B", "int8", "write int8_per_token_head"),
        ("vllm", "Qwen/Qwen3-32B", "auto", "names no type"),
        ("vllm", "Qwen/Qwen3-32B", "native/keep=L0", "in a native cache"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3/keep=L0-63", "every layer"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3@dynamic", "while it serves"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3:head", "attn_head"),
        ("vllm", "Qwen/Qwen3-32B", "fp8_e4m3:channel", "'channel'"),
        ("vllm", "Qwen/Qwen3-32B", "bf16@unit", "has no scales"),
        ("vllm", "Qwen/Qwen3-32B", "nvfp4_ds_mla", "no attention backend"),
        ("vllm", "Qwen/Qwen3-32B-FP8-Static-PerTensor", "fp8_e4m3@unit", "no option to leave them out"),
        ("vllm", "deepseek-ai/DeepSeek-V3", "nvfp4", "nvfp4 on MLA"),
        ("vllm", "deepseek-ai/DeepSeek-V3", "fp8_e4m3/keep=sliding_window", "no layers that it would skip"),
        ("vllm", "openai/gpt-oss-20b", "turboquant_k8v4", "sliding windows"),
        ("vllm", "XiaomiMiMo/MiMo-V2-Flash", "nvfp4", "one size"),
        ("sglang", "Qwen/Qwen3-32B", "fp8_e4m3/keep=L0", "one KV type for all layers"),
        ("sglang", "Qwen/Qwen3-32B", "fp8_e4m3:head", "attn_head"),
        ("trtllm", "Qwen/Qwen3-32B", "fp8_e5m2", "E4M3 only"),
        ("trtllm", "Qwen/Qwen3-32B", "int8", "allowed: fp8_e4m3, nvfp4"),
        ("trtllm", "Qwen/Qwen3-32B", "bf16", ""),
        ("llama_cpp", "Qwen/Qwen3-32B", "q8_0", "needs one"),
    ],
)
def test_what_cannot_be_served_is_said(engine: str, model: str, kv: str, says: str) -> None:
    """One line that names the part and the way on."""
    if not says:
        assert launch(engine, model, kv).candidate.argv == launch(engine, model, "native").candidate.argv
        return
    with pytest.raises(UserError) as caught:
        launch(engine, model, kv)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kv", "says"),
    [
        ("q8_1", "aborts"),
        ("nvfp4", "do not list"),
        ("q8_0@unit", "no scales"),
        ("q8_0/keep=L0", "all layers"),
        ("q8_0+smooth_k", "own rotation"),
    ],
)
def test_what_llama_cpp_cannot_serve(gguf: str, kv: str, says: str) -> None:
    """Words that must not reach llama-server stop before it."""
    with pytest.raises(UserError, match=says):
        launch("llama_cpp", gguf, kv)


@pytest.mark.parametrize(
    ("engine", "name", "kv", "says"),
    [
        ("vllm", "scheme_int", "native", "type is left out"),
        ("vllm", "scheme_group", "fp8_e4m3", "strategy is group"),
        ("vllm", "modelopt_kv_only", "native", "quant_algo is null"),
        ("vllm", "affine", "nvfp4", "NVFP4_AFFINE"),
        ("vllm", "modelopt_fp8", "fp8_e5m2", "method modelopt"),
        ("sglang", "affine", "fp8_e4m3", "NVFP4_AFFINE"),
        ("sglang", "per_head", "native", "one for each head"),
    ],
)
def test_checkpoints_that_do_not_load(engine: str, name: str, kv: str, says: str, tmp_path: Path) -> None:
    """What config.json alone shows to be refused by the engine is refused here, for a native cache too."""
    with pytest.raises(UserError) as caught:
        launch(engine, str(folder(tmp_path, name)), kv, device="h100")
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["dense", "scheme", "per_head", "modelopt_fp8", "modelopt_nvfp4", "head80", "gptq"])
def test_sound_checkpoints_are_served(name: str, tmp_path: Path) -> None:
    """A near miss of each refusal: the same kind of checkpoint as it should be."""
    found = launch("vllm", str(folder(tmp_path, name)), "fp8_e4m3", device="h100")

    assert found.rollback is not None and after(found.rollback.argv, "--kv-cache-dtype") == "bfloat16"
