"""Real configurations by hub id, for machines without a network: one JSON file a model in `catalogue/configs/`.

A file holds the keys of the model's own `config.json` that say sizes, and where they were read. Weights are there only
where the model's safetensors index was seen. Plain dataclasses: a plan starts without pydantic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS: Final = {"name": str, "source": str, "version": str, "verified": bool, "config": dict, "weights": dict}


@dataclass(frozen=True, slots=True)
class CatalogueConfig:
    """One model.

    Attributes:
        name: the hub id. config: sizing keys of its `config.json`. source, version: where they were read.
        verified: False where a value is the default of the model's code, not read from its own file.
        weights_bytes: bytes of the model's tensors, None where they were not seen. weights_source: where they are told.
    """

    name: str
    source: str
    config: Mapping[str, object]
    version: str = ""
    verified: bool = True
    weights_bytes: int | None = None
    weights_source: str = ""


def hub_config(hub_id: str) -> CatalogueConfig | None:
    """The configuration of a model, None if it is not in the catalogue. Case does not count.

    Raises:
        ValueError: the file in this package is wrong (a mistake of ours).
    """
    name = _file_names().get(hub_id.casefold())
    if name is None:
        return None
    return parse_hub_config(_folder().joinpath(name).read_text(encoding="utf-8"))


def hub_config_names() -> tuple[str, ...]:
    """Hub ids in the catalogue, in name order."""
    return tuple(sorted(name.removesuffix(".json").replace("--", "/", 1) for name in _file_names().values()))


def parse_hub_config(text: str) -> CatalogueConfig:
    """One file of the catalogue.

    Raises:
        ValueError: not JSON, an unknown key, a missing or wrong value.
    """
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("a catalogue file holds one object")
    for key, value in body.items():
        if key not in _KEYS or not isinstance(value, _KEYS[key]):
            raise ValueError(f"a catalogue file does not take {key!r} = {value!r}")
    name, source, config = body.get("name", ""), body.get("source", ""), body.get("config")
    if not _NAME.fullmatch(name) or not source or config is None:
        raise ValueError(f"a catalogue file needs a hub id, a source and a config, not {name!r}, {source!r}")
    size, told = _weights(body.get("weights", {}))
    return CatalogueConfig(name, source, config, body.get("version", ""), body.get("verified", True), size, told)


def _weights(body: Mapping[str, Any]) -> tuple[int | None, str]:
    """Bytes and source; both or neither."""
    if not body:
        return None, ""
    size, source = body.get("bytes"), body.get("source")
    if (
        set(body) != {"bytes", "source"}
        or type(size) is not int
        or size < 1
        or not isinstance(source, str)
        or not source
    ):
        raise ValueError(f"weights are bytes above zero with a source, not {body!r}")
    return size, source


@cache
def _file_names() -> dict[str, str]:
    """File names by hub id in lower case; "org--name.json" is the file of "org/name"."""
    names = [entry.name for entry in _folder().iterdir() if entry.name.endswith(".json")]
    return {name.removesuffix(".json").replace("--", "/", 1).casefold(): name for name in sorted(names)}


def _folder() -> Any:
    # Named by its parent package, which is not imported: the models of `kvgate models get` need pydantic.
    return files("kvgate.models") / "catalogue" / "configs"
