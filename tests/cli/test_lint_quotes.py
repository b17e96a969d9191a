"""A serving command that is given without quotes: one line says what to do."""

from __future__ import annotations

import pytest

from kvgate.cli.main import main


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["vllm", "serve", "M", "--kv-cache-dtype", "fp8"], "vllm serve"),
        (["vllm", "serve", "M"], "vllm serve"),
        (["vllm", "serve", "M", "--store"], "vllm serve"),
        (["--device", "h200", "vllm", "serve", "M", "--kv-cache-dtype", "fp8"], "vllm serve"),
        (["llama-server", "-m", "x.gguf", "-ctk", "q4_0"], "llama-server"),
        (["python", "-m", "sglang.launch_server", "--kv-cache-dtype", "fp8_e4m3"], "python -m sglang.launch_server"),
        (["docker", "run", "--rm", "vllm/vllm-openai:v0.32.0", "--kv-cache-dtype", "fp8"], "docker run"),
    ],
)
def test_quotes_are_asked_for(words: list[str], start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words of the engine are no options of lint: the line tells of quotes, and repeats how the command begins."""
    assert main(["lint", *words]) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "No such option" not in said
    assert f'put the serving command in quotes: kvgate lint "{start} ..."' in said


@pytest.mark.parametrize(
    "words",
    [
        ["vllm serve M --kv-cache-dtype fp8_e4m3", "--devise", "h200"],
        ["recipe.sh", "--devise", "h200"],
        ["--devise", "h200"],
    ],
)
def test_a_wrong_option_of_lint_is_still_that(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A text in quotes or a file with an option that lint does not have is told of the option."""
    assert main(["lint", *words]) == 2

    said = capsys.readouterr().err
    assert "No such option: --devise" in said and "quotes" not in said
