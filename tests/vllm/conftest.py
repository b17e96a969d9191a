"""Tests that start real vLLM on the CPU, in the environment that `make vllm-env` builds.

They are collected with `-m vllm`, or where this folder or a file of it is named, and then a missing environment is a
failure, not a skip.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvgate.models.file_digest import cache_root

HERE = Path(__file__).parent
SCRIPTS = HERE.parent.parent / "scripts"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: starts real vLLM on the CPU (make vllm-env, then make test-vllm)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder alone unless it was asked for: each test here takes half a minute and 4 GB."""
    if "vllm" in (config.getoption("markexpr") or ""):
        return None
    named = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of vLLM's environment."""
    python = os.environ.get("KVGATE_VLLM_PYTHON", "")
    if not python or not Path(python).exists():
        pytest.fail(
            f"no vLLM: KVGATE_VLLM_PYTHON is {python or 'not set'}; `make vllm-env` builds the environment, then "
            "export KVGATE_VLLM_PYTHON=DIR/bin/python",
            pytrace=False,
        )
    return python


@pytest.fixture(scope="session")
def probe() -> ModuleType:
    """`scripts/vllm_capacity_probe.py` as a module."""
    spec = importlib.util.spec_from_file_location("vllm_capacity_probe", SCRIPTS / "vllm_capacity_probe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def smollm2_folder(smollm2: Path, vllm_python: str) -> Path:
    """SmolLM2 as a Hugging Face folder in bfloat16, made once and kept in kvgate's own cache."""
    folder = cache_root() / "smollm2-bf16-folder"
    folder.parent.mkdir(parents=True, exist_ok=True)
    argv = [vllm_python, str(SCRIPTS / "smollm2_folder.py"), str(smollm2), str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="session")
def kv_scheme_folder(smollm2_folder: Path, vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with KV scales and a KV scheme, so that `auto` starts in FP8."""
    folder = tmp_path_factory.mktemp("kv-scheme") / "smollm2-kv-scheme"
    argv = [vllm_python, str(HERE / "kv_scheme_checkpoint.py"), str(smollm2_folder), str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="session")
def starts() -> Callable[..., Any]:
    """Starts of one session by their settings: a test that needs the same start takes it from here."""
    kept: dict[tuple[object, ...], object] = {}

    def start(probe: ModuleType, python: str, model: Path, **settings: object) -> object:
        key = (model, *sorted(settings.items()))
        if key not in kept:
            kept[key] = probe.start(python, model, **settings)
        return kept[key]

    return start
