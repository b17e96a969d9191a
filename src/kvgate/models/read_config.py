"""Reads a Hugging Face configuration: a `config.json`, or the folder of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.models.read_json import read_json_object

CONFIG_NAME: Final = "config.json"
#: What ModelOpt writes beside the configuration; read into it under its own name.
QUANT_NAME: Final = "hf_quant_config.json"
QUANT_KEY: Final = "hf_quant_config"
_FIX: Final = "give the config.json that lies beside the model's weights"


def read_config(path: Path) -> dict[str, object]:
    """The configuration in a file, or in the folder of a model; ModelOpt's file beside it is added as one key.

    Raises:
        UserError: there is none, it cannot be read, or it is no JSON object.
    """
    file = config_path(path)
    values = read_json_object(file, fix=_FIX)
    beside = file.with_name(QUANT_NAME)
    if file.name == CONFIG_NAME and QUANT_KEY not in values and beside.is_file():
        values[QUANT_KEY] = read_json_object(beside, fix="get the file again, or take it away")
    return values


def config_path(path: Path) -> Path:
    """The configuration file that `path` means.

    Raises:
        UserError: a folder without one; says what lies there instead.
    """
    if not path.is_dir():
        return path
    file = path / CONFIG_NAME
    if file.is_file():
        return file
    try:
        names = sorted(entry.name for entry in path.iterdir())[:1000]
    except OSError as e:
        raise UserError(f"cannot read the folder {path}: {e.strerror or e}") from None
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    if gguf:
        raise UserError(f"{path} is a folder with GGUF files", allowed=gguf[:8], fix="give one of them")
    if "params.json" in names:
        raise UserError(f"{path} has params.json, an older format, and no {CONFIG_NAME}", fix=_FIX)
    raise UserError(f"{path} is a folder without {CONFIG_NAME}", fix="give the folder of a Hugging Face model")
