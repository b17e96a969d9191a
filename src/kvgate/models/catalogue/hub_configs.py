"""Real configurations by hub id, for machines without a network: one JSON file a model in `configs/`.

A file holds the keys of the model's own `config.json` that say sizes, and where they were read. Weights are there only
where the model's safetensors index was seen.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_BOUND = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")


class CatalogueWeights(BaseModel):
    """Bytes of a model's tensors, and where that is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class CatalogueConfig(BaseModel):
    """One model.

    Attributes:
        name: the hub id. config: sizing keys of its `config.json`. source, version: where they were read.
        verified: False where a value is the default of the model's code, not read from its own file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, _BOUND]
    source: Annotated[str, Field(min_length=1)]
    version: str = ""
    verified: bool = True
    config: dict[str, Any]
    weights: CatalogueWeights | None = None


def hub_config(hub_id: str) -> CatalogueConfig | None:
    """The configuration of a model, None if it is not in the catalogue. Case does not count.

    Raises:
        ValueError: the file in this package is wrong (a mistake of ours).
    """
    name = _file_names().get(hub_id.casefold())
    if name is None:
        return None
    return parse_hub_config((files(__package__) / "configs" / name).read_text(encoding="utf-8"))


def hub_config_names() -> tuple[str, ...]:
    """Hub ids in the catalogue, in name order."""
    return tuple(sorted(name.removesuffix(".json").replace("--", "/", 1) for name in _file_names().values()))


def parse_hub_config(text: str) -> CatalogueConfig:
    """One file of the catalogue.

    Raises:
        ValueError: not JSON, an unknown key, a wrong value.
    """
    return CatalogueConfig.model_validate(json.loads(text))


@cache
def _file_names() -> dict[str, str]:
    """File names by hub id in lower case; "org--name.json" is the file of "org/name"."""
    folder = files(__package__) / "configs"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".json")]
    return {name.removesuffix(".json").replace("--", "/", 1).casefold(): name for name in sorted(names)}
