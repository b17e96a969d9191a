"""The command line: one line per error, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["chek"], "chek"),
        (["check"], "MODEL"),
        (["check", "/no/such.gguf", "--kv", "q8_0"], "no/such"),
        (["check", "smollm2", "--kv", "q8_0", "--context", "3"], "256"),
        (["check", "smollm2", "--kv", "q8_1"], "q8_1"),  # aborts the engine: refused before it starts
        (["check", "smollm2", "--kv", "q8_0", "--context", "1000000"], "8192"),
        (["check", "smollm2", "--kv", "nonsense"], "q8_0"),
        (["check", "smollm2"], "--kv"),
        (["check", "smollm2", "--kv", "q8_0", "--engine-env", "x"], "KEY=VALUE"),
        (["models", "get", "gpt5"], "smollm2"),
        (["show", "zzz"], "run"),
        (["check", __file__, "--kv", "q8_0"], "GGUF"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    smollm2: Path,
    argv: list[str],
    word: str,
) -> None:
    """The line names the thing and what would be right; nothing is on stdout."""
    monkeypatch.setenv("KVGATE_STORE", str(tmp_path / "kvgate.db"))

    code, out, err = run(capsys, *argv)

    assert code == 2, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert word in err


def test_an_internal_error_is_invalid_never_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours must not look like a candidate's FAIL (1)."""
    monkeypatch.setattr("kvgate.models.fetch.list_models", lambda: 1 / 0)

    code, _, err = run(capsys, "models", "list")

    assert code == 4
    assert "internal error" in err
    assert len(err.strip().splitlines()) == 1
    trace = Path(err.strip().rsplit(" ", 1)[1])
    assert "ZeroDivisionError" in trace.read_text()
    trace.unlink()


@pytest.mark.parametrize("argv", [["where"], ["runs"], ["models", "list"], ["version"]])
def test_json_is_one_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str]
) -> None:
    """`--json` puts exactly one versioned document on stdout."""
    monkeypatch.setenv("KVGATE_STORE", str(tmp_path / "kvgate.db"))

    code, out, _ = run(capsys, *argv, "--json")

    assert code == 0
    assert json.loads(out)["schema"].startswith("kvgate.")


def test_a_check_is_shown_again_and_reused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2: Path
) -> None:
    """`check --json` keeps its contract; `runs`, `show` and `--reuse` find the run."""
    monkeypatch.setenv("KVGATE_STORE", str(tmp_path / "kvgate.db"))
    argv = ["check", str(smollm2), "--kv", "q4_0", "--engine", "fake", "--policy", "smoke", "--threads", "1", "--json"]

    code, out, err = run(capsys, *argv)

    document = json.loads(out)
    assert (code, document["exit_code"], document["schema"]) == (1, 1, "kvgate.check/1")
    assert Path(document["report"]).is_file()
    assert "left" in err or "fidelity" in err
    _, out, _ = run(capsys, "runs", "--json")
    assert [r["run"] for r in json.loads(out)["runs"]] == [document["run"]]
    code, out, _ = run(capsys, "show", "last")
    assert code == 1
    assert "q4_0: FAIL" in out
    code, out, _ = run(capsys, *argv, "--reuse")
    assert code == 1
    assert json.loads(out)["run"] == document["run"]
    laxer = tmp_path / "lax.toml"
    laxer.write_text(
        'schema = "kvgate.policy/1"\nname = "lax"\nalpha = 0.05\n[floor]\narms = ["restart", "twin", "ubatch32"]\n'
        '[[rule]]\nid = "kl"\nuse = "ceiling"\nmetric = "prefill.kl_mean"\nexcess_max = 1.0\n'
    )
    code, out, _ = run(capsys, *argv, "--policy", str(laxer), "--preset", "smoke", "--reuse")
    assert code == 0  # judged by the policy asked for, never by the old one
    assert json.loads(out)["run"] != document["run"]


def test_a_closed_pipe_is_quiet() -> None:
    """`kvgate models list | head -0` ends without a traceback."""
    command = f"{sys.executable} -m kvgate models list | true"
    out = subprocess.run(command, shell=True, capture_output=True, text=True)

    assert "Traceback" not in out.stderr
