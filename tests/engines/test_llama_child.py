"""The child processes of the llama.cpp engine without the engine: logs, ends, messages, interpreters."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from llama_kit import WHEEL, files, launch

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import EngineDied, EngineTimeout, LaneUnavailable, UserError
from kvgate.core.recipe import parse
from kvgate.enginefacts.facts import load
from kvgate.engines import _llama_panel
from kvgate.engines._child import HEAD_LINES, TAIL_LINES, environment
from kvgate.engines._llama_child import Child, child_env
from kvgate.engines._llama_serving import serve
from kvgate.engines.llama_cpp import DRIVER

FACTS = load("llama_cpp")


@contextmanager
def child(code: str, **env: str) -> Iterator[Child]:
    made = Child((sys.executable, "-c", textwrap.dedent(code)), env)
    try:
        yield made
    finally:
        made.stop()


def wait_end(made: Child) -> str:
    made.process.wait(30)
    return made.ended() or ""


def test_a_long_log_is_kept_at_both_ends() -> None:
    """Memory is bounded: the load at the start and the end stay, the middle goes, and the child is never held up."""
    total = HEAD_LINES + 10 * TAIL_LINES
    with child(f"import sys\nfor i in range({total}): print('line', i, file=sys.stderr)") as made:
        wait_end(made)
        lines = made.log.lines()

    assert len(lines) == HEAD_LINES + TAIL_LINES
    assert (lines[0], lines[-1]) == ("line 0", f"line {total - 1}")


def test_a_line_without_an_end_does_not_grow() -> None:
    """A child that writes without line breaks fills no memory."""
    with child("import sys\nsys.stderr.write('x' * 100000)") as made:
        wait_end(made)

        assert max(map(len, made.log.lines())) <= 4000


def test_the_key_is_not_kept() -> None:
    """The engine prints the end of the key; that line is dropped."""
    with child(
        "import sys\nprint('init: api_keys: ****abcd', file=sys.stderr)\nprint('next', file=sys.stderr)"
    ) as made:
        wait_end(made)

        assert made.log.lines() == ["next"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "import sys\nprint('0.00.000.001 E llama_x: too big', file=sys.stderr)\nsys.exit(3)",
            "exit status 3: llama_x",
        ),
        ("import os\nos.kill(os.getpid(), 6)", "killed by signal 6"),
    ],
)
def test_how_it_ended_is_told(code: str, says: str) -> None:
    """Exit status or signal, and the line that says why."""
    with child(code) as made:
        wait_end(made)

        assert says in (made.ended() or "")


def test_a_child_that_ignores_the_polite_signal_is_killed() -> None:
    """`stop` returns only when the process is gone."""
    with child(
        "import signal, sys, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    ) as made:
        made.stdout.readline()
        made.stop()

        assert not psutil.pid_exists(made.pid)
        assert made.process.returncode == -9


def test_variables_that_steer_the_engine_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the shell must not change one arm's rotation; an arm's own is set."""
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    monkeypatch.setenv("GGML_X", "1")

    assert "LLAMA_ATTN_ROT_DISABLE" not in child_env({})
    assert "GGML_X" not in child_env({})
    assert child_env({"LLAMA_ATTN_ROT_DISABLE": "1"})["LLAMA_ATTN_ROT_DISABLE"] == "1"
    assert child_env({})["PATH"] == os.environ["PATH"]


def test_names_that_are_harmless_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of variables that begin as an engine's own do, those are inherited that have no part in numbers."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/a")
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "x")

    made = environment({"B": "2"}, without=("VLLM_",), but=("VLLM_CACHE_ROOT",))

    assert made["VLLM_CACHE_ROOT"] == "/a"
    assert "VLLM_ATTENTION_BACKEND" not in made
    assert made["B"] == "2"


async def opened(made: Launch) -> None:
    async with serve(made):
        pass


def by(python: Path) -> Launch:
    return DRIVER.resolve(Request(files(), parse("q8_0"), Settings(1024), "q8_0", python))


async def _open(python: Path) -> None:
    await opened(by(python))


def test_an_interpreter_that_is_not_there_is_the_user_s_error(tmp_path: Path) -> None:
    """One line with the fix."""
    with pytest.raises(UserError, match=r"cannot be started: .*--engine-python"):
        asyncio.run(_open(tmp_path / "python"))


def script(tmp_path: Path, body: str) -> Path:
    """An 'interpreter' that ignores the worker and does `body`."""
    path = tmp_path / "engine-python"
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(body))
    path.chmod(0o755)
    return path


def test_a_worker_that_says_nonsense_is_a_dead_engine(tmp_path: Path) -> None:
    """Nonsense for an answer is reported, cleaned and short."""
    with pytest.raises(EngineDied, match=r"worker said Q\[2J$"):
        asyncio.run(_open(script(tmp_path, "print('Q\\x1b[2J')")))


def test_a_server_that_never_gets_ready_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience ends, and the child with it."""
    monkeypatch.setattr("kvgate.engines._llama_serving.load_timeout_s", lambda launch: 0.5)
    path = script(
        tmp_path, f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )

    with pytest.raises(EngineTimeout, match="not ready within"):
        asyncio.run(_open(path))
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text() or 0) or 2**22)


# -- panel ---------------------------------------------------------------------------------------------------

HERE: Mapping[str, Any] = {"platform": "linux", "words": 8, "version": WHEEL, "libraries": ["x.so"], "python": "3.11"}


def test_the_verified_wheel_has_a_layout() -> None:
    """The wheel that kvgate pins is in the table."""
    assert _llama_panel._layout(HERE, FACTS).version == WHEEL


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "2026.11.99999"}, "2026.11.99999: its C layout has not been verified .verified: 2026.10.11549"),
        ({"version": "0.2.14"}, "0.2.14: its C layout has not been verified"),
        ({"version": None}, "version of xllamacpp cannot be read"),
        ({"missing": "cffi"}, "package cffi is not there"),
        ({"platform": "sunos5"}, "not been verified on sunos5"),
        ({"words": 4}, "not been verified"),
        ({"libraries": []}, "its library is not where it was"),
    ],
)
def test_an_unknown_wheel_has_no_panel(change: dict[str, Any], says: str) -> None:
    """Nothing is called in a wheel, on a platform or in an interpreter that has not been verified."""
    with pytest.raises(LaneUnavailable, match=says):
        _llama_panel._layout({**HERE, **change}, FACTS)


def test_windows_has_no_panel() -> None:
    """The reason is the wheel's."""
    with pytest.raises(LaneUnavailable, match="exports only its Python entry point"):
        _llama_panel._refuse_platform("win32", FACTS)
    _llama_panel._refuse_platform("linux", FACTS)


def test_arms_of_one_panel_share_model_and_interpreter(tmp_path: Path) -> None:
    """Another model or another interpreter cannot join."""
    other = files()
    object.__setattr__(other, "digest", "e" * 64)

    for odd, says in ((launch("q8_0", other), "another model"), (by(tmp_path / "python"), "another interpreter")):
        with pytest.raises(LaneUnavailable, match=says), DRIVER.open_panel({"base": launch("native"), "odd": odd}):
            pass
    with pytest.raises(LaneUnavailable, match="without arms"), DRIVER.open_panel({}):
        pass


def worker(tmp_path: Path, after_hello: str) -> Launch:
    """A launch whose panel worker greets as the verified wheel, then does `after_hello`."""
    return by(
        script(
            tmp_path,
            f"""
            import json, os, struct, sys, time
            def hear():
                (n,) = struct.unpack("<I", os.read(0, 4))
                data = b""
                while len(data) < n:
                    data += os.read(0, n - len(data))
                return json.loads(data)
            def say(**m):
                data = json.dumps(m).encode()
                os.write(1, struct.pack("<I", len(data)) + data)
            hear()
            say(**{dict(HERE)!r})
            hear()
            {after_hello}
            """,
        )
    )


@pytest.mark.parametrize(
    ("after_hello", "error", "says"),
    [
        ("say(failed='layout', why='n_ctx reads 7', log=[])", LaneUnavailable, "n_ctx reads 7"),
        (
            "say(failed='load', why='no model', log=['0.00.000.001 E gguf_x: bad magic'])",
            EngineDied,
            "no model: .*bad magic",
        ),
        ("os.kill(os.getpid(), 6)", EngineDied, "worker ended: killed by signal 6"),
        ("sys.exit(4)", EngineDied, "exit status 4"),
        ("os.write(1, bytes([255, 255, 255, 255]))", EngineDied, "an answer of 4294967295 bytes"),
    ],
)
def test_a_panel_that_fails_to_load_says_why(
    tmp_path: Path, after_hello: str, error: type[Exception], says: str
) -> None:
    """A layout mismatch leaves the lane untested; anything else is a dead engine."""
    with pytest.raises(error, match=says), DRIVER.open_panel({"base": worker(tmp_path, after_hello)}):
        pass


def test_a_panel_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer within the stated time is a timeout, and the worker is gone."""
    monkeypatch.setattr(_llama_panel, "load_timeout_s", lambda launch: 0.2)
    made = worker(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n            time.sleep(60)")

    with pytest.raises(EngineTimeout, match="did not answer"), DRIVER.open_panel({"base": made}):
        pass
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_workers_import_nothing_of_ours() -> None:
    """A worker runs in an interpreter without kvgate: standard library at the top, engine packages inside functions."""
    folder = Path(_llama_panel.WORKER).parent
    ours = ("kvgate", "xllamacpp", "cffi", "numpy")
    code = "import sys; sys.path.insert(0, {!r}); import {}; print([m for m in sys.modules if m.startswith({!r})])"
    for name in ("llama_cpp_server", "llama_cpp_panel"):
        out = subprocess.run(
            [sys.executable, "-I", "-c", code.format(str(folder), name, ours)],
            capture_output=True,
            text=True,
            check=True,
        )

        assert out.stdout.strip() == "[]"
