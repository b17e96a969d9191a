"""The script that builds vLLM's environment: what it refuses, and that it leaves a ready one alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "vllm-env.sh"
pytestmark = pytest.mark.vllm


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", str(SCRIPT), *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=os.environ | env)


def test_without_avx512_nothing_is_built(tmp_path: Path) -> None:
    """A processor without AVX-512 is refused at once, with the reason."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu sse4_2 avx2 avx512\n")

    done = run(str(tmp_path / "env"), KVGATE_CPUINFO=str(cpuinfo))

    assert done.returncode == 1
    assert "no AVX-512" in done.stderr
    assert not (tmp_path / "env").exists()


def test_a_folder_must_be_named() -> None:
    """No folder is a usage error."""
    done = run()

    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_a_ready_environment_is_left_alone(vllm_python: str) -> None:
    """A second run changes nothing and installs nothing."""
    folder = Path(vllm_python).parent.parent
    before = (folder / "pyvenv.cfg").stat().st_mtime_ns

    done = run(str(folder))

    assert done.returncode == 0, done.stderr
    assert "is ready" in done.stdout
    assert "installing" not in done.stdout
    assert (folder / "pyvenv.cfg").stat().st_mtime_ns == before
