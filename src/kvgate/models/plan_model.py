"""What a person typed for MODEL of `kvgate plan` -> geometry and weights, from headers only.

Order: URL, existing path, catalogue name, hub id. Nothing is hashed and no tensor is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.models.foreign_file import HEAD_BYTES, describe
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.models.geometry_from_gguf import geometry_from_gguf
from kvgate.models.hub import HubModel, hub_model
from kvgate.models.read_config import CONFIG_NAME, config_path, read_config
from kvgate.models.read_gguf import GgufHeader, read_gguf
from kvgate.models.weights import Weights, gguf_weights, weights_bytes

_PART: Final = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<of>\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS: Final = 4096


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model as the planner needs it.

    Attributes:
        name: what reports call it.
        weights: bytes of the weights with how they were counted; None where nobody says. weights_missing: then, why.
        files: what was read; empty for the catalogue and the hub.
        origin: words for a person: which of folder, file, hub or shipped catalogue it was.
    """

    name: str
    geometry: ModelGeometry
    weights: Weights | None
    origin: str
    weights_missing: str = ""
    files: tuple[Path, ...] = ()

    @property
    def weights_bytes(self) -> int | None:
        return None if self.weights is None else self.weights.bytes


def plan_model_of_path(path: Path, *, name: str = "") -> PlanModel:
    """A folder, a `config.json` or a GGUF file.

    Args:
        name: what reports call it; by default the folder's or file's name.

    Raises:
        UserError: another kind of file, or one that cannot be read or sized.
    """
    if path.is_dir():
        return _of_config(path, name or path.resolve().name)
    if not path.is_file():
        raise UserError(f"{path} is not a regular file", fix="give a folder, a config.json or a GGUF file")
    kind = _kind(path)
    if kind == "gguf":
        return _of_gguf(path, name)
    if kind == "json":
        return _of_config(path, name or (path.resolve().parent.name if path.name == CONFIG_NAME else path.stem))
    if kind == "safetensors":
        raise UserError(f"{path} is one file of a model's weights", fix="give the folder that it lies in")
    raise UserError(f"{path} is no model file: it {kind}", allowed=("a folder", "a config.json", "a GGUF file"))


def plan_model_of_hub(hub_id: str) -> PlanModel:
    """A model of the hub, or of the shipped catalogue.

    Raises:
        UserError: no hub id, or nobody knows it, or it cannot be sized.
    """
    return _of_hub(hub_model(hub_id))


def _of_hub(found: HubModel) -> PlanModel:
    geometry = geometry_from_config(found.config, found.name, found.source)
    geometry = replace(geometry, notes=(*geometry.notes, *found.notes))
    missing = "" if found.weights else f"{found.origin} does not say how big the weights are"
    return PlanModel(found.name, geometry, found.weights, found.origin, missing)


def _kind(path: Path) -> str:
    """ "gguf", "json", "safetensors", or words for something else."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    if head[:4] == b"GGUF":
        return "gguf"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return "json"
    if head[8:9] == b"{" and path.suffix == ".safetensors":
        return "safetensors"
    if path.suffix.lower() == ".gguf":
        # Its own reader has the better words.
        return "gguf"
    if path.suffix.lower() == ".json":
        return "json"
    return describe(head)


def _of_config(path: Path, name: str) -> PlanModel:
    file = config_path(path)
    geometry = geometry_from_config(read_config(path), name, Source("file", str(file)))
    folder = file.parent if file.name == CONFIG_NAME else None
    weights = weights_bytes(folder) if folder is not None else None
    missing = "" if weights else f"no safetensors files lie beside {file.name}"
    origin = f"folder {path}" if path.is_dir() else f"file {path}"
    return PlanModel(name, geometry, weights, origin, missing, (file,))


def _of_gguf(path: Path, name: str) -> PlanModel:
    parts = gguf_parts(path)
    headers = [read_gguf(part) for part in parts]
    _check_parts(headers)
    geometry = geometry_from_gguf(headers[0], whole=True)
    weights, missing = _or_reason(lambda: gguf_weights(headers))
    origin = f"GGUF file {path}" if len(parts) == 1 else f"GGUF file in {len(parts)} parts, {parts[0]}"
    return PlanModel(name or parts[0].stem, geometry, weights, origin, missing, parts)


def _or_reason(count: Callable[[], Weights]) -> tuple[Weights | None, str]:
    """Weights, or why there are none: an unknown tensor type does not keep a plan from being made."""
    try:
        return count(), ""
    except UserError as e:
        return None, str(e)


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """The file, or all parts that its name says it is one of, in order.

    Raises:
        UserError: a part is missing; names it.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["of"])
    if not 1 <= count <= _MAX_PARTS or not 1 <= int(match["no"]) <= count:
        raise UserError(f"{path} says that it is part {int(match['no'])} of {count}", allowed=(f"1 to {_MAX_PARTS}",))
    suffix = path.name[-5:]
    parts = tuple(path.with_name(f"{match['prefix']}-{n:05d}-of-{count:05d}{suffix}") for n in range(1, count + 1))
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None:
        raise UserError(f"{path} is one of {count} parts, and {missing.name} is missing", fix="download all parts")
    return parts


def _check_parts(headers: list[GgufHeader]) -> None:
    """What the parts say of themselves must fit what their names say.

    Raises:
        UserError: another count, or another place.
    """
    for place, header in enumerate(headers):
        count = header.meta.get("split.count", 1)
        if count in (0, 1) and len(headers) == 1:
            continue
        if len(headers) == 1:
            raise UserError(
                f"{header.path} is one of {count} parts, and its name does not say which",
                fix="give the parts the names that they had, or join them: llama-gguf-split --merge",
            )
        if count != len(headers) or header.meta.get("split.no") != place:
            raise UserError(
                f"{header.path} says that it is part {header.meta.get('split.no')} (from 0) of {count}, its name says "
                f"part {place} of {len(headers)}",
                fix="give the parts the names that they had, or join them: llama-gguf-split --merge",
            )
