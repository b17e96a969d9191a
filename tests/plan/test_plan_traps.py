"""What a person gives `kvgate plan` by mistake, each with the mistake that it is told apart from."""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path

import pytest

from kvgate.cli.main import main
from kvgate.core import files
from kvgate.core.errors import UserError
from kvgate.core.units import parse_bytes, parse_tokens
from kvgate.models.read_gguf import MAX_STRINGS, read_gguf
from kvgate.plan.lengths import read_lengths
from kvgate.plan.logs import read_log

MODEL = "Qwen/Qwen3-32B"


@pytest.mark.parametrize("text", ["141", "80", "65.52", "1", "143,771"])
def test_a_small_number_without_a_unit_is_no_size(text: str) -> None:
    """Nobody has a device of 141 bytes: the unit was forgotten."""
    with pytest.raises(UserError, match=f"no unit.*{text}GB"):
        parse_bytes(text, "--device-memory")


@pytest.mark.parametrize(("text", "n_bytes"), [("150754820096", 150_754_820_096), ("1048576", 2**20), ("12B", 12)])
def test_bytes_in_full_need_no_unit(text: str, n_bytes: int) -> None:
    """A count of bytes from a log stays a size."""
    assert parse_bytes(text, "--weights") == n_bytes


@pytest.mark.parametrize("text", ["141,5GB", "1,41GB", "1,0000MB", ",141GB", "141,GB"])
def test_a_comma_that_does_not_part_thousands_is_refused(text: str) -> None:
    """`141,5GB` is 141.5 GB to half of the world, and must not be 1415 GB."""
    with pytest.raises(UserError, match="is not a size"):
        parse_bytes(text, "--device-memory")
    assert parse_bytes("143,771MiB", "--device-memory") == 143_771 * 2**20


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and lengths through a pipe end in one line, not in a wait."""
    monkeypatch.setattr(files, "WAIT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(UserError, match="nobody has written"):
        read_log(pipe)
    with pytest.raises(UserError, match="nobody has written"):
        read_lengths(pipe)


def test_lengths_come_through_a_pipe(tmp_path: Path) -> None:
    """A writer that begins later is waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Timer(0.1, lambda: pipe.write_text("100,5\n200\n"))
    writer.start()

    assert read_lengths(pipe).counts == ((100, 5), (200, 1))
    writer.join()


def test_a_page_does_not_take_the_place_of_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming a file onto a pipe or a device would do away with it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert main(["plan", MODEL, "--kv", "bf16", "--html", str(pipe)]) == 2

    assert "not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo() and [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("target", ["self", "gone"])
def test_a_broken_link_is_no_hub_id(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    """A link in a circle, or to what was deleted, is said to be one; nobody is asked for it."""
    link = tmp_path / "self"
    link.symlink_to(target)

    assert main(["plan", str(link)]) == 2

    assert "a link that leads nowhere" in capsys.readouterr().err


def test_what_an_engine_stores_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The native dtype stands first and not again."""
    assert main(["plan", MODEL, "--kv", "kivi:bits=2", "--engine", "vllm", "--device", "h200", "--json"]) == 0

    allowed = json.loads(capsys.readouterr().out)["recipes"][0]["engine"]["why"].split("allowed: ")[1].split(", ")
    assert allowed[0] == "bf16" and allowed.count("bf16") == 1


def test_an_array_of_too_many_strings_is_not_walked_through(tmp_path: Path) -> None:
    """A hole in a file is full of empty strings: their number is bounded, not only their bytes."""
    path = tmp_path / "hole.gguf"
    key = b"tokenizer.ggml.tokens"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    with path.open("wb") as file:
        file.write(head + struct.pack("<IIQ", 9, 8, MAX_STRINGS + 1))
        file.truncate(MAX_STRINGS * 8 + 4096)

    with pytest.raises(UserError, match="strings"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("text", "tokens"), [("32768", 32_768), ("32,768", 32_768), ("32K", 32_768), ("1M", 2**20), ("2 K", 2048)]
)
def test_a_context_may_be_counted_in_1024s(text: str, tokens: int) -> None:
    """K and M are 1,024 and its square, as in the names of contexts."""
    assert parse_tokens(text, "--context") == tokens


@pytest.mark.parametrize(("text", "words"), [("32k", "32768, 32K for the same, or 32000"), ("1m", "1048576, 1M")])
def test_a_count_that_means_two_things_names_both(text: str, words: str) -> None:
    """vLLM reads 32k as 32,000: the answer has both numbers."""
    with pytest.raises(UserError, match=words):
        parse_tokens(text, "--context")


@pytest.mark.parametrize("text", ["0", "0K", "-5", "1.5K", "32KB", "3,2768", "", "9" * 16 + "M"])
def test_what_is_no_count_of_tokens_is_refused(text: str) -> None:
    """Nothing is rounded or guessed."""
    with pytest.raises(UserError, match="is not a count of tokens"):
        parse_tokens(text, "--context")


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("q8_0@checkpoint", "q8_0 makes its scales from the values that it stores"),
        ("k=q8_0,v=q4_0@unit", "q4_0 makes its scales"),
        ("mxfp8@calibrated#9f2c1a07", "mxfp8 makes its scales"),
        ("int8_per_token_head@checkpoint", "makes its scales"),
        ("fp8_ds_mla@checkpoint", "makes its scales"),
        ("bf16@unit", "bf16 has no scales"),
    ],
)
def test_scales_from_elsewhere_are_refused_for_types_that_take_none(
    recipe: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A price for scales that nobody would read is no price; one line says so."""
    assert main(["plan", "Qwen/Qwen3-32B", "--engine", "lab", "--kv", recipe]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and "\n" not in err


@pytest.mark.parametrize("recipe", ["fp8_e4m3@checkpoint", "fp8_e5m2@unit", "nvfp4@checkpoint", "q8_0@dynamic"])
def test_scales_from_elsewhere_are_priced_where_there_are_some(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """FP8 types and NVFP4 have a scale of the whole tensor; a scale that is made at run time is a block's own."""
    assert main(["plan", "Qwen/Qwen3-32B", "--engine", "lab", "--kv", recipe, "--json"]) == 0


def test_an_unknown_device_of_a_plan_may_be_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    """plan has --device-memory, and names it."""
    assert main(["plan", "Qwen/Qwen3-32B", "--device", "h999"]) == 2
    assert "or leave --device out and give --device-memory 24GB" in capsys.readouterr().err
