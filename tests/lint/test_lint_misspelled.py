"""A slip in the name of a cache option stops the engine itself; a wrapper may drop it, so there it is a warning."""

from __future__ import annotations

import pytest

from kvgate.lint.run import Options, lint

SLIP = "--kv-cache-dtpye fp8"


def severity(text: str, version: str = "") -> str | None:
    found = lint(text, Options(engine_version=version)).findings
    return next((f.severity for f in found if f.id == "flag-misspelled"), None)


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve M {SLIP}",
        f"/opt/venv/bin/vllm serve M {SLIP}",
        f"VLLM_LOGGING_LEVEL=INFO vllm serve M {SLIP}",
        f"exec vllm serve M {SLIP}",
        f"sudo env A=b nohup vllm serve M {SLIP} &",
        f"bash -c 'vllm serve M {SLIP}'",
        f"python3.12 -m vllm.entrypoints.openai.api_server --model M {SLIP}",
        f"python -u -m sglang.launch_server --model-path M {SLIP}",
        "llama-server -m x.gguf --cache-tpye-k q8_0",
        "./build/bin/llama-server -m x.gguf --cache-typ-k q8_0",
        "trtllm-serve M --kv_cache_dtpye fp8",
    ],
)
def test_the_engine_itself_stops(text: str) -> None:
    """Nothing stands before the engine that could take the option away."""
    assert severity(text) == "error"
    assert lint(text).exit_code == 1


@pytest.mark.parametrize(
    "text",
    [
        f"srun --gres=gpu:1 vllm serve M {SLIP}",
        f"./start.sh vllm serve M {SLIP}",
        f"docker run my/vllm:v0.32.0 --model M {SLIP}",
        "llama-swap -m x.gguf --cache-tpye-k q8_0",
    ],
)
def test_behind_a_wrapper_it_may_be_dropped(text: str) -> None:
    """What is between the person and the engine may know the option."""
    assert severity(text) == "warning"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --kv-cache-dtype fp8",
        "vllm serve M --kv_cache_dtype fp8",
        "vllm serve M --kv-events-config {}",
        "sglang serve M --mm-attention-backend fa3",
        "llama-server -m x.gguf --cache-type-k-draft q8_0",
    ],
)
def test_another_option_is_no_slip(text: str) -> None:
    """An option of its own, a word longer than one of the cache, is nobody's misspelling."""
    assert severity(text) is None


def test_more_than_a_slip_stays_a_warning() -> None:
    """Three characters away may be an option of a release that nobody read, as is an unread version."""
    assert severity("vllm serve M --kv-cache-dt fp8") == "warning"
    assert severity("vllm serve M --kv-cache-datatype fp8") == "warning"
    assert severity(f"vllm serve M {SLIP}", "0.99.0") == "warning"
