"""What findings say of a missing value, of ranks and heads, and of flash attention is true where they say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.lint.rule import Finding
from kvgate.lint.run import Options, lint
from lint.lint_kit import DENSE


def found(text: str, rule: str, **options: str) -> Finding | None:
    report = lint(text, Options(**options))  # type: ignore[arg-type]
    return next((f for f in report.findings if f.id == rule), None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vllm serve M --kv-cache-dtype", "--kv-cache-dtype"),
        ("vllm serve M --kv-cache-dtype --port 80", "--kv-cache-dtype"),
        ("vllm serve M --kv-cache-dtype=", "--kv-cache-dtype"),
        ("vllm serve M --kv-cache-dtype ''", "--kv-cache-dtype"),
        ("llama-server -m x.gguf -ctk -fa on", "-ctk"),
        ("python -m sglang.launch_server --model-path M --kv-cache-dtype", "--kv-cache-dtype"),
    ],
)
def test_a_missing_value_is_said(text: str, name: str) -> None:
    """Nobody wrote 'on': the option has no value, and the fix lists the engine's words."""
    said = found(text, "kv-dtype-unknown")

    assert said is not None and said.severity == "error"
    assert said.message == f"{name} has no value"
    assert said.fix.startswith("write one of ")


def test_a_written_on_is_a_word() -> None:
    """'on' as a value is told as the word that it is, and a variable is no missing value."""
    said = found("vllm serve M --kv-cache-dtype on", "kv-dtype-unknown")

    assert said is not None and said.message == "'on' is no KV cache type of vllm"
    assert found("vllm serve M --kv-cache-dtype $KV", "kv-dtype-unknown") is None


@pytest.mark.parametrize(
    ("heads", "ranks", "severity"),
    [
        (8, "3", "error"),
        (8, "12", "error"),
        (2, "3", "error"),
        (8, "16", "warning"),
        (1, "3", "warning"),
        (8, "8", None),
        (8, "4", None),
        (8, "1", None),
        (8, "inf", None),
        (8, "nan", None),
    ],
)
def test_ranks_and_heads(tmp_path: Path, heads: int, ranks: str, severity: str | None) -> None:
    """Heads are replicated only where the ranks are a multiple of them; where neither divides, the engine stops."""
    config = {**DENSE, "num_attention_heads": heads * 4, "num_key_value_heads": heads}
    (tmp_path / "config.json").write_text(json.dumps(config))

    said = found(f"vllm serve {tmp_path} -tp {ranks}", "tp-replicates-heads")

    assert (said.severity if said else None) == severity
    if said is not None:
        assert ("replicated" in said.why) == (severity == "warning")
        assert ("stops" in said.why) == (severity == "error")


def test_the_fix_names_ranks_that_fit(tmp_path: Path) -> None:
    """Eight heads: the divisors of eight."""
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "num_attention_heads": 32, "num_key_value_heads": 8}))

    said = found(f"vllm serve {tmp_path} -tp 3", "tp-replicates-heads")

    assert said is not None and said.fix == "use a number of ranks that divides the heads: 1, 2, 4, 8"


def test_flash_attention_is_the_engines_own() -> None:
    """The reason quotes the engine and tells its option from the Python package of that name."""
    said = found("llama-server -m x.gguf -ctv q8_0 -fa off", "llama-v-needs-flash-attention")

    assert said is not None and "not the Python package flash-attn" in said.why


@pytest.mark.parametrize(
    ("words", "version", "severity"),
    [
        ("-fa -ctk q8_0", "b11434", "error"),
        ("-ctk q8_0 -fa", "b6327", "error"),
        ("-fa yes -ctk q8_0", "b11434", "error"),
        ("-fa -ctk q8_0", "", "warning"),
        ("-fa -ctk q8_0", "b6300", None),
        ("-fa on", "b11434", None),
        ("-fa 1", "b11434", None),
        ("-fa $FA", "b11434", None),
        ("-ctk q8_0", "b11434", None),
    ],
)
def test_flash_attention_wants_a_word_from_its_build_on(words: str, version: str, severity: str | None) -> None:
    """From b6327 on `-fa` takes the next word and ends the start; before, it was a switch, and stays unmarked."""
    said = found(f"llama-server -m x.gguf {words}", "llama-flash-attention-value", engine_version=version)

    assert (said.severity if said else None) == severity


def test_an_nvfp4_checkpoint_is_asked_for_only_where_it_would_help() -> None:
    """On a device that cannot hold the cache the checkpoint is no way on; on one that can, it is."""
    text, rule = "trtllm-serve Qwen/Qwen3-8B --kv_cache_dtype nvfp4", "trtllm-nvfp4-checkpoint"

    assert found(text, rule, device="h100") is None
    assert found(text, "trtllm-nvfp4-device", device="h100") is not None
    assert found(text, rule, device="b200") is not None
    assert found(text, rule) is not None


def test_scales_that_nobody_could_read_are_said(tmp_path: Path) -> None:
    """The catalogue has sizes and no tensors: a quantized cache is then told to come with the model's folder."""
    (tmp_path / "config.json").write_text(json.dumps(DENSE))

    def unchecked(text: str) -> str:
        return " ".join(lint(text).unchecked)

    assert "give --model FOLDER" in unchecked("vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8")
    assert "--model FOLDER" not in unchecked("vllm serve Qwen/Qwen3-32B")
    assert "--model FOLDER" not in unchecked(f"vllm serve {tmp_path} --kv-cache-dtype fp8")


def test_an_unknown_device_is_answered_with_options_that_there_are() -> None:
    """lint has no --device-memory, and does not name it."""
    with pytest.raises(UserError, match="or leave --device out") as caught:
        lint("vllm serve x", Options(device="h999"))

    assert "--device-memory" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "tokens"), [("32k", 32_000), ("32K", 32_768), ("1.5k", 1_500), ("4096", 4_096), ("auto", None)]
)
def test_a_context_is_read_as_vllm_reads_it(word: str, tokens: int | None) -> None:
    """A small k is a thousand there, a capital one 1,024; what is no number leaves the model's own context."""
    from kvgate.lint.read.source import read
    from kvgate.lint.run import _subjects

    commands = read(f"vllm serve Qwen/Qwen3-32B --max-model-len {word}", "").commands
    (subject,) = _subjects(commands, Options(), "")

    assert subject.context_tokens == (tokens or 40_960)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("vllm serve M --gpu-memory-utilization 95", "write 0.95"),
        ("vllm serve M --gpu-memory-utilization 0", "write a share such as 0.9"),
        ("vllm serve M --gpu-memory-utilization nan", "write a share such as 0.9"),
        ("python -m sglang.launch_server --model-path M --mem-fraction-static 88", "write 0.88"),
        ("vllm serve M --gpu-memory-utilization 1", None),
        ("vllm serve M --gpu-memory-utilization 0.92", None),
        ("vllm serve M --gpu-memory-utilization $SHARE", None),
        ("vllm serve M", None),
    ],
)
def test_a_share_of_memory_is_a_share(text: str, fix: str | None) -> None:
    """A percentage, nothing and no number are told; what follows from a percentage is the fix."""
    said = found(text, "memory-share")

    assert (said.fix if said else None) == fix


def _scales(tmp_path: Path, ranks: dict[str, list[int]]) -> str:
    """A command with a file of scales: the layers of each rank."""
    body = {
        "model_type": "llama",
        "kv_cache": {
            "dtype": "float8_e4m3fn",
            "scaling_factor": {r: {str(i): 0.03 for i in n} for r, n in ranks.items()},
        },
    }
    path = tmp_path / "scales.json"
    path.write_text(json.dumps(body))
    model = "--model-path meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype fp8_e4m3"
    return f"python -m sglang.launch_server {model} --quantization-param-path {path}"


def test_layers_counted_from_one_are_told_as_that(tmp_path: Path) -> None:
    """The count is right and the numbers are not: both ranges are said."""
    said = found(_scales(tmp_path, {"0": list(range(1, 33))}), "sglang-scales-layers")

    assert said is not None and said.message == "layers 1 to 32 are given, and the model's are 0 to 31"
    assert found(_scales(tmp_path, {"0": list(range(32))}), "sglang-scales-layers") is None


def test_a_file_for_two_ranks_does_not_fit_a_server_of_one(tmp_path: Path) -> None:
    """SGLang wants as many ranks as it runs with; a file alone, or options that cannot be seen, say nothing of that."""
    text, rule = _scales(tmp_path, {"0": list(range(32)), "1": list(range(32))}), "sglang-scales-ranks"

    said = found(text, rule)
    assert said is not None and said.message == "there are 2 ranks, and the server runs with 1"
    assert found(text + " --tp 2", rule) is None
    assert found(text + " $EXTRA_ARGS", rule) is None
    assert found(str(tmp_path / "scales.json"), rule) is None


@pytest.mark.parametrize("before", ["", "\x1b[34m0.01\x1b[0m \x1b[32mI \x1b[0m", "[34m0.01[0m [32mI [0m"])
def test_a_coloured_log_is_held_against_the_command(tmp_path: Path, before: str) -> None:
    """The size line says f16 where q8_0 was asked for, in colours, without, and with what a page leaves of them."""
    log = tmp_path / "server.log"
    log.write_text(
        f"{before}llama_kv_cache: size =   64.00 MiB (  1024 cells,  32 layers,  1/1 seqs), K (f16):   32.00 MiB, "
        "V (f16):   32.00 MiB\n"
    )

    report = lint("llama-server -m x.gguf -ctk q8_0 -fa on", Options(log=log))

    assert "log-dtype-differs" in {f.id for f in report.findings}
