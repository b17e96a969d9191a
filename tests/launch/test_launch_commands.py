"""Commands of launch: three that differ in the recipe alone, a rollback that rolls back, or the reason for none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.cli.main import main
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
    assert found.loud == ()


def test_a_kernel_that_serves_one_arm_only_is_shouted() -> None:
    """TurboQuant's backend reads no 16-bit cache: each arm has its own, loudly."""
    found = launch("vllm", "Qwen/Qwen3-32B", "turboquant_4bit_nc", version="0.32.0", device="h100")

    assert found.backends == {"candidate": "TURBOQUANT", "baseline": "FLASH_ATTN"}
    assert "THE KERNEL CHANGES" in found.loud[0]


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
    "model", ["Qwen/Qwen3-32B", "openai/gpt-oss-20b", "google/gemma-4-E2B", "deepseek-ai/DeepSeek-V3"]
)
@pytest.mark.parametrize("device", ["a100-80gb", "h100", "b200", "rtx5090"])
@pytest.mark.parametrize("kv", ["fp8_e4m3", "fp8_e5m2"])
def test_lint_finds_no_error_in_what_launch_writes(model: str, device: str, kv: str) -> None:
    """Each command that is written is one that lint lets pass, on each device."""
    try:
        found = launch("vllm", model, kv, device=device, version="0.32.0")
    except UserError as e:
        assert "no attention backend" in str(e) or "Triton" in str(e)
        return

    for serve in (found.candidate, found.baseline, found.rollback):
        if serve is not None:
            report = lint(serve.text, Options(device=device, engine_version="0.32.0"))
            assert [f.id for f in report.findings if f.severity == "error"] == []


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
        ("vllm", "Qwen/Qwen3-32B", "q8_0", "q8_0"),
        ("llama_cpp", "Qwen/Qwen3-32B", "q8_0", "needs one"),
    ],
)
def test_what_cannot_be_served_is_said(engine: str, model: str, kv: str, says: str) -> None:
    """One line that names the part and the way on."""
    with pytest.raises(UserError) as caught:
        launch(engine, model, kv)
    assert says in str(caught.value)


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


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """Text has the three commands; JSON has them as lists of words; an unknown device is usage."""
    argv = ["launch", "--engine", "vllm", "--model", "Qwen/Qwen3-32B", "--kv", "fp8_e4m3", "--device", "h100"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert main([*argv, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)

    assert text.count("vllm serve Qwen/Qwen3-32B") == 3
    assert body["schema"] == "kvgate.launch/1" and body["candidate"]["argv"][:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert main([*argv[:-1], "h1000"]) == 2


def test_words_are_quoted_for_a_shell(tmp_path: Path) -> None:
    """A path with blanks and quotes is one word again when the text is read back."""
    import shlex

    serve = Serve(("vllm", "serve", "/a b/it's; rm -rf $HOME"), {"A": "x y"})

    assert shlex.split(serve.text) == ["A=x y", *serve.argv]
