"""What tests of SGLang and TensorRT-LLM share: environments with a stand-in, a model folder, requests."""

from __future__ import annotations

import json
import shutil
import venv
from pathlib import Path
from typing import Any

from vllm_kit import files

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.registry import discover

HERE = Path(__file__).parent
#: Engine -> package, its version, place of the stand-in in it, console scripts.
ENGINES = {
    "sglang": ("sglang", "0.5.23", "sglang/launch_server.py", ""),
    "trtllm": (
        "tensorrt_llm",
        "1.2.0",
        "tensorrt_llm/commands/serve.py",
        "[console_scripts]\ntrtllm-serve = tensorrt_llm.commands.serve:main\n",
    ),
}


_TOKENIZERS = """
class Tokenizer:
    @classmethod
    def from_file(cls, path):
        if not open(path).read():
            raise ValueError("an empty file")
        return cls()
    def no_truncation(self): pass
    def no_padding(self): pass
    def encode(self, text, add_special_tokens):
        made = type(self)()
        made.ids = [0] * add_special_tokens + list(text.encode())
        return made
"""


def make_environment(folder: Path, engine: str, *, version: str = "") -> Path:
    """An interpreter that has a package of this engine, with the stand-in for its server."""
    name, usual, place, scripts = ENGINES[engine]
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    server = site / place
    server.parent.mkdir(parents=True)
    for package in server.parents:
        if package == site:
            break
        (package / "__init__.py").touch()
    shutil.copy(HERE / f"{engine}_stand_in.py", server)
    shutil.copy(HERE / "toy_server.py", site)
    # A tokenizer of bytes in the place of the package that the real engine has.
    (site / "tokenizers.py").write_text(_TOKENIZERS)
    info = site / f"{name}-{version or usual}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version or usual}\n")
    (info / "entry_points.txt").write_text(scripts)
    return folder / "bin" / "python"


def request(
    engine: str, python: Path, folder: Path, recipe: str = "native", *, shape: ModelGeometry | None = None, **own: Any
) -> Request:
    """A request of a recipe on a model that is only numbers."""
    settings = Settings(**{"context_tokens": 1024, "threads": 1, **own})
    return Request(files(folder, shape), parse(recipe), settings, recipe, python)


def launch(engine: str, python: Path, folder: Path, recipe: str = "native", **own: Any) -> Launch:
    """The same, resolved by the engine's driver."""
    made: Launch = discover("engine")[engine].resolve(request(engine, python, folder, recipe, **own))
    return made


def script(**fields: Any) -> dict[str, str]:
    """Environment for a stand-in."""
    return {"KVGATE_STAND_IN": json.dumps(fields)}
