"""The verb: text, JSON, files on disk, words that survive a shell, one-line errors."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from kvgate.cli.main import main
from kvgate.launch.ask import launch, writers
from kvgate.launch.commands import Serve, Writer
from lint.lint_kit import folder

VLLM = ["launch", "--engine", "vllm", "--model", "Qwen/Qwen3-32B", "--kv", "fp8_e4m3", "--device", "h100"]
TRT = ["launch", "--engine", "trtllm", "--model", "Qwen/Qwen3-32B", "--kv", "fp8_e4m3", "--device", "h100"]
ODD = 'it\'s; $(touch pwned) `id` "x"  two * ~ #&|<>\\ é'


def through_sh(text: str, cwd: Path) -> list[str]:
    """The words that a POSIX shell makes of a command's text; nothing but printf is started."""
    script = f"set -- {text}; printf '%s\\0' \"$@\""
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True, cwd=cwd)
    return out.stdout.decode().split("\0")[:-1]


def test_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Text has the three commands; JSON has them as lists of words, and every key of the first version."""
    assert main(VLLM) == 0
    text = capsys.readouterr().out
    assert main([*VLLM, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)

    assert text.count("vllm serve Qwen/Qwen3-32B") == 3
    assert body["schema"] == "kvgate.launch/1" and body["candidate"]["argv"][:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert {
        "engine",
        "candidate",
        "baseline",
        "why_no_baseline",
        "rollback",
        "why_no_rollback",
        "backends",
        "loud",
        "notes",
    } <= set(body)
    assert body["files"] == {} and body["calibrate"] == []


def test_the_text_is_a_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Files are here documents, and what is no command is a comment: a shell makes the files that JSON has."""
    assert main(TRT) == 0
    text = capsys.readouterr().out
    assert main([*TRT, "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]

    script = "trtllm-serve() { printf '%s ' \"$@\"; }\n" + text
    subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, check=True, capture_output=True)

    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == files


def test_files_are_written_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--write makes the folder; without --force a file that is there is left alone, and nothing is written."""
    into = tmp_path / "a" / "b"
    assert main([*TRT, "--write", str(into)]) == 0
    assert "cat >" not in capsys.readouterr().out
    (into / "candidate.yaml").write_text("mine")
    (into / "baseline.yaml").unlink()

    assert main([*TRT, "--write", str(into)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (into / "candidate.yaml").read_text() == "mine" and not (into / "baseline.yaml").exists()

    assert main([*TRT, "--write", str(into), "--force", "--json"]) == 0
    assert (into / "candidate.yaml").read_text().startswith("backend: pytorch")
    assert json.loads(capsys.readouterr().out)["written"] == [
        str(into / n) for n in ("candidate.yaml", "baseline.yaml")
    ]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """--force does not write through a link into somebody else's file."""
    other = tmp_path / "other"
    other.write_text("keep")
    (tmp_path / "candidate.yaml").symlink_to(other)

    assert main([*TRT, "--write", str(tmp_path), "--force"]) == 0
    assert other.read_text() == "keep" and not (tmp_path / "candidate.yaml").is_symlink()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_model_with_shell_characters_is_one_word(engine: str, tmp_path: Path) -> None:
    """`sh` gives back exactly the words that were meant, and runs nothing of the name."""
    path = folder(tmp_path, "dense")
    odd = path.with_name(ODD)
    path.rename(odd)
    found = launch(engine, str(odd), "fp8_e4m3", device="h100")

    for serve in (found.candidate, found.baseline, found.rollback):
        assert serve is not None
        assert through_sh(serve.text, tmp_path) == list(serve.argv)
        assert str(odd) in serve.argv
    assert sorted(p.name for p in tmp_path.iterdir()) == [ODD]


def test_the_shown_command_is_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Blanks in a name are not folded on the way to the terminal."""
    path = folder(tmp_path, "dense")
    odd = path.with_name("two  blanks")
    path.rename(odd)

    assert main(["launch", "--engine", "vllm", "--model", str(odd), "--kv", "fp8_e4m3"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("vllm serve"))

    assert str(odd) in shlex.split(line)


def test_variables_are_quoted_too() -> None:
    """A value with blanks is one word behind its name."""
    serve = Serve(("vllm", "serve", "/a b/it's; rm -rf $HOME"), {"A": "x y"})

    assert shlex.split(serve.text) == ["A=x y", *serve.argv]


def test_a_folder_called_like_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model named "--port" does not become an option."""
    folder(tmp_path, "dense").rename(tmp_path / "--port")
    monkeypatch.chdir(tmp_path)

    assert launch("vllm", "--port", "fp8_e4m3").candidate.argv[2] == "./--port"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--engine", "caffe"], "allowed: llama_cpp, sglang, trtllm, vllm"),
        (["--device", "h1000"], "did you mean"),
        (["--engine-version", "latest"], "is no version of vllm"),
        (["--model", "Qwen/Qwen99-1T"], "Qwen99"),
        (["--model", "no-such-folder/"], "no-such-folder"),
        (["--kv", "fp8_e4m3/keep=L9-3"], "runs backwards"),
        (["--kv", "q4_0"], "type of llama.cpp"),
        (["--tp", "5"], "do not divide"),
        (["--context", "-1"], "--context is -1"),
        (["--calibrate", "magic"], "unknown calibrator"),
        (["--cold-pages", "nvfp4"], "TensorRT-LLM"),
        (["--host-cache", "64G"], "is not a size"),
        (["--write", "here"], "needs no files"),
        (["--force"], "add --write"),
        (["--model", "a\x1b[31mb"], "control character"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The thing, what is allowed, the way on; usage, and nothing on stdout."""
    given = {**dict(zip(VLLM[1::2], VLLM[2::2], strict=True)), **({argv[0]: argv[1]} if len(argv) > 1 else {})}
    words = [w for pair in given.items() for w in pair]

    assert main(["launch", *words, *(argv if len(argv) == 1 else [])]) == 2
    out = capsys.readouterr()
    assert out.out == "" and says in out.err and len(out.err.strip().splitlines()) == 1


def test_a_folder_without_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The missing file is named."""
    assert main(["launch", "--engine", "sglang", "--model", str(tmp_path), "--kv", "fp8_e4m3"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_every_engine_is_found_by_its_file() -> None:
    """Writers are discovered: each has a module of its own name, and an alias belongs to one engine."""
    found = writers()

    assert list(found) == ["llama_cpp", "sglang", "trtllm", "vllm"]
    assert all(isinstance(w, Writer) and w.write.__module__.endswith(f".{name}") for name, w in found.items())
    aliases = [a for w in found.values() for a in (w.name, *w.aliases)]
    assert len(aliases) == len(set(aliases))
