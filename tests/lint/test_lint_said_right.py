"""What findings say of a missing value, of ranks and heads, and of flash attention is true where they say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
