"""The command line under attack: streams that are gone, signals, inputs that are no files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvgate.cli.main import main

SLOW = ("--engine-env", 'KVGATE_FAKE_SCRIPT={"itl_ms": 20}')


def check_argv(model: Path, store: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "kvgate", "check", str(model), "--engine", "fake", "--kv", "q8_0"),
        *("--policy", "smoke", "--suite", "needle", "--threads", "1", "--store", str(store), *more),
    ]


def shell(argv: Sequence[str], redirections: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell's redirections; the exit code is the command's own, not that of a pipe's end."""
    line = f'set -o pipefail; "$@" {redirections}'
    return subprocess.run(["bash", "-c", line, "kvgate", *argv], capture_output=True, text=True, timeout=120)


def runs(store: Path) -> list[dict[str, str]]:
    out = subprocess.run(
        [sys.executable, "-m", "kvgate", "runs", "--json", "--store", str(store)], capture_output=True, text=True
    )
    return json.loads(out.stdout)["runs"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "redirections",
    ["| true", "2>&1 >/dev/null | true", ">&-", ">&- 2>&- <&-", "2>/dev/full", "2>&-"],
    ids=["reader gone", "stderr's reader gone", "stdout closed", "all closed", "stderr full", "stderr closed"],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_the_exit_code_is_the_verdict_whatever_happens_to_the_streams(
    tmp_path: Path, smollm2: Path, redirections: str, form: tuple[str, ...]
) -> None:
    """Only needles were run, so the verdict is INCONCLUSIVE (3): neither PASS nor FAIL for a lost terminal."""
    done = shell(check_argv(smollm2, tmp_path / "k.db", *form), redirections)

    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert [r["state"] for r in runs(tmp_path / "k.db")] == ["finished"]


@pytest.mark.parametrize("argv", [["where", "--json"], ["check", "--help"]])
def test_results_that_cannot_be_written_are_one_line_and_not_a_pass(argv: list[str]) -> None:
    """A full disk under stdout is exit 4, also when the whole output fits into a buffer."""
    done = shell([sys.executable, "-m", "kvgate", *argv], ">/dev/full")

    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) == 1
    assert "No space left" in done.stderr


def test_an_error_nobody_can_read_keeps_its_exit_code() -> None:
    """A usage error is 2 with stderr full, and its line never goes to stdout."""
    for redirections in ("2>/dev/full", "2>&-"):
        done = shell([sys.executable, "-m", "kvgate", "check", "no-such-model", "--kv", "q8_0"], redirections)

        assert (done.returncode, done.stdout) == (2, ""), redirections


def test_json_is_valid_in_any_locale(tmp_path: Path, smollm2: Path) -> None:
    """Names outside ASCII come out as escapes of JSON, and a table shows what it can."""
    model = tmp_path / "\u202eéx😀.gguf"
    model.symlink_to(smollm2)
    done = subprocess.run(
        check_argv(model, tmp_path / "k.db", "--json", "--out", str(tmp_path / "ü😀")),
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )

    assert done.returncode == 3, done.stderr
    assert Path(json.loads(done.stdout)["report"]).is_file()
    listed = subprocess.run(
        [sys.executable, "-m", "kvgate", "runs", "--store", str(tmp_path / "k.db")],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert listed.returncode == 0, listed.stderr


@pytest.mark.parametrize("columns", ["0", "1", "20", "40"])
def test_a_narrow_terminal_breaks_no_number(tmp_path: Path, smollm2: Path, columns: str) -> None:
    """Lines are broken between words, nothing is cut off with an ellipsis, and never is nothing printed."""
    done = subprocess.run(
        check_argv(smollm2, tmp_path / "k.db"), capture_output=True, text=True, env=os.environ | {"COLUMNS": columns}
    )

    words = done.stdout.split()
    assert "INCONCLUSIVE" in words
    assert "…" not in done.stdout
    assert {"23,040", "12,240", "1.88", "22.50"} <= set(words)


def ended(pid: int) -> bool:
    """Whether a process is gone within five seconds; one that only waits for init to take note of it has ended.

    On a busy machine init takes its time, and so does this test: the last look is after the deadline, not before.
    """
    until = time.monotonic() + 5.0
    while True:
        late = time.monotonic() > until
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX" or late:
            return state in "ZX"
        time.sleep(0.02)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_end_a_check_in_good_order(tmp_path: Path, smollm2: Path, signum: int) -> None:
    """Sent three times: exit 130, one line, the run is marked, the engine gone, and the same command goes on."""
    store = tmp_path / "k.db"
    started = subprocess.Popen(
        check_argv(smollm2, store, *SLOW),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup SIGHUP is ignored, in every child too, and kvgate leaves it so.
        preexec_fn=lambda: signal.signal(signum, signal.SIG_DFL),
    )
    assert started.stderr is not None
    seen = ""
    while "needle: 4 cases" not in seen:  # the engine is up and has tokenized
        line = started.stderr.readline()
        assert line, seen
        seen += line
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    for _ in range(3):
        started.send_signal(signum)
    out, err = started.communicate(timeout=30)

    assert children
    assert (started.returncode, out) == (130, "")
    assert err.strip().splitlines()[-1].startswith("kvgate: interrupted")
    assert "Traceback" not in err
    assert all(ended(int(pid)) for pid in children)
    assert [r["state"] for r in runs(store)] == ["interrupted"]
    again = subprocess.run(check_argv(smollm2, store, *SLOW), capture_output=True, text=True)
    assert again.returncode == 3
    assert "resuming run" in again.stderr
    assert [r["state"] for r in runs(store)] == ["finished"]


def test_an_interrupt_that_was_caught_does_not_come_back(tmp_path: Path) -> None:
    """CPython under -m exits by SIGINT after an interrupt in a text that it executed, unless that is undone."""
    (tmp_path / "caught.py").write_text(
        "import sys\nfrom kvgate.cli._process import ignore_signals\n"
        "try:\n    exec('raise KeyboardInterrupt')\nexcept KeyboardInterrupt:\n    pass\n"
        "ignore_signals()\nsys.exit(130)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])

    assert subprocess.run([sys.executable, "-m", "caught"], env=os.environ | {"PYTHONPATH": path}).returncode == 130


def test_twenty_candidates_stay_readable(tmp_path: Path, smollm2: Path) -> None:
    """More candidates than the terminal has room for go into several tables; no number is broken over lines."""
    sides = ("f16", "q8_0", "q5_1", "q4_0")
    more = [a for k in sides for v in sides if (k, v) not in {("f16", "f16"), ("q8_0", "q8_0")} for a in _kv(k, v)]
    argv, env = check_argv(smollm2, tmp_path / "k.db", *more), os.environ | {"COLUMNS": "80"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env)

    results = done.stdout.partition("Results")[2].partition("floor: the base")[0]
    assert done.returncode == 3, done.stderr
    assert results.count("needle.accuracy") > 1
    assert results.count("[0.6, 1]") == 15


def _kv(k: str, v: str) -> tuple[str, str]:
    return "--kv", f"k={k},v={v}"


def test_a_killed_run_is_not_called_running(tmp_path: Path, smollm2: Path) -> None:
    """After SIGKILL nobody can write the state; whoever reads it sees that the owner is gone."""
    store = tmp_path / "k.db"
    started = subprocess.Popen(check_argv(smollm2, store, *SLOW), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert started.stderr is not None
    while b"needle: 4 cases" not in started.stderr.readline():
        assert started.poll() is None
    assert [r["state"] for r in runs(store)] == ["running"]
    started.kill()
    started.communicate()

    assert [r["state"] for r in runs(store)] == ["interrupted"]


def refused(capsys: pytest.CaptureFixture[str], store: Path, model: Path, *more: str) -> str:
    """The one line of a check that is refused before anything starts; no run is recorded."""
    argv = ["check", str(model), "--engine", "fake", "--kv", "q8_0", "--policy", "smoke", "--store", str(store), *more]
    begun = time.monotonic()
    code = main(argv)
    out, err = capsys.readouterr()

    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1
    assert time.monotonic() - begun < 60  # not waiting for a pipe
    assert len(store.name) > 255 or not store.exists() or runs(store) == []
    return err


def test_files_that_are_no_files_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, smollm2: Path) -> None:
    """A pipe would be waited for and a device read without end; a name may be longer than the file system takes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    store, long = tmp_path / "k.db", "x" * 5000
    for golden in (pipe, Path("/dev/zero"), tmp_path):
        assert "regular file" in refused(capsys, store, smollm2, "--golden", str(golden))
    for option in ("--golden", "--corpus"):
        assert "does not exist" in refused(capsys, store, smollm2, option, long)
    assert "too long" in refused(capsys, store, smollm2, "--policy", long)
    assert "too long" in refused(capsys, tmp_path / long, smollm2)


def test_a_report_that_could_not_be_written_is_known_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, smollm2: Path
) -> None:
    """`--out` at a file or below one, or with a name that a document could only misspell."""
    (tmp_path / "file").write_text("")
    for out in ("file", "file/below", os.fsdecode(b"\xff")):
        assert "--out" in refused(capsys, tmp_path / "k.db", smollm2, "--out", str(tmp_path / out))


def test_numbers_beyond_what_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, smollm2: Path) -> None:
    """A seed wider than an engine's, more threads than CPUs, and a policy with more digits than Python reads."""
    policy = tmp_path / "p.toml"
    policy.write_text('schema = "kvgate.policy/1"\nname = "p"\nalpha = ' + "9" * 5000)

    assert "2147483647" in refused(capsys, tmp_path / "k.db", smollm2, "--seed", str(2**31))
    assert "--threads" in refused(capsys, tmp_path / "k.db", smollm2, "--threads", "100000")
    assert "not TOML" in refused(capsys, tmp_path / "k.db", smollm2, "--policy", str(policy))


def test_an_odd_corpus_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2: Path
) -> None:
    """Names that are not UTF-8, texts that are all too big, and folders that are a whole disk."""
    store, text = tmp_path / "k.db", "words and words " * 100

    def corpus(name: str, files: dict[bytes, str]) -> str:
        for file, content in files.items():
            path = Path(os.fsdecode(os.fsencode(tmp_path / name) + b"/c/" + file))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return str(tmp_path / name)

    odd = corpus("odd", {b"\xff.txt": text})
    big = corpus("big", {b"a.txt": "x" * (8 * 2**20 + 1)})
    disk = corpus("disk", {b"%d.txt" % i: text for i in range(3)})

    assert "not valid UTF-8" in refused(capsys, store, smollm2, "--corpus", odd)
    assert "split it" in refused(capsys, store, smollm2, "--corpus", big)
    monkeypatch.setattr("kvgate.suites._fidelity_corpus.MAX_DOCUMENTS", 2)
    assert "over 2 texts" in refused(capsys, store, smollm2, "--corpus", disk)
    monkeypatch.undo()
    monkeypatch.setattr("kvgate.suites._fidelity_corpus.MAX_CORPUS_BYTES", 100)
    assert "MiB" in refused(capsys, store, smollm2, "--corpus", disk)
