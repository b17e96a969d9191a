"""Which models are related, read from a model's name, its configuration's type, or both; no file is needed.

A name carries far: "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8" is family qwen3_moe, size 30b-a3b, weights in FP8.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.core.geometry import ModelGeometry

Trait = Literal["mla", "windows", "hybrid", "moe", "shared"]

#: What a name says of its weights; the KV cache's claims are about the model below.
_WEIGHTS = re.compile(
    r"[-_.](?:gguf|gptq(?:-int\d)?|awq|int[48]|fp8(?:-(?:dynamic|static|per-?tensor))*|nvfp4|mxfp4|bf16|bfloat16|fp16|f16|"
    r"w\d+a\d+|(?:ud-)?i?q\d(?:[-_](?:k|nl|xs|xxs|0|1)(?:[-_](?:xl|l|m|s))?)?|hf)$"
)
_SIZE = re.compile(r"(?<![a-z0-9.])(?:e?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?|\d+x\d+b)(?![a-z0-9])")


class Family(BaseModel):
    """Models that share an architecture and a maker.

    Attributes:
        names: patterns of a model's name in lower case, with * and ?. model_types: of config.json or GGUF.
        traits: "mla" (one latent vector), "windows" (sliding or chunked layers), "hybrid" (layers with a state),
            "moe", "shared" (layers that reuse another's cache).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    title: str
    names: Annotated[tuple[str, ...], Field(min_length=1)]
    model_types: tuple[str, ...] = ()
    traits: tuple[Trait, ...] = ()


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    family: tuple[Family, ...]


@cache
def families() -> dict[str, Family]:
    """All families by id; a name belongs to the first that takes it.

    Raises:
        ValueError: the file of this package is wrong (a mistake of ours).
    """
    text = files(__package__).joinpath("families.toml").read_text(encoding="utf-8")
    rows = _File.model_validate(tomllib.loads(text)).family
    if len({f.id for f in rows}) < len(rows):
        raise ValueError("two families share an id")
    return {f.id: f for f in rows}


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is asked about, as far as it is known.

    Attributes:
        name: as given. family: id; empty where nobody we know of published on one like it. size: "30b-a3b", or "".
        traits: of its layers where they were read, else of its family; `traits_read` tells which.
    """

    name: str
    family: str = ""
    size: str = ""
    traits: tuple[str, ...] = ()
    traits_read: bool = False


def plain_name(name: str) -> str:
    """A model's name without owner, file ending and what it says of its weights, in lower case."""
    text = name.strip().rsplit("/", 1)[-1].casefold().removesuffix(".gguf").replace("_", "-")
    while shorter := _WEIGHTS.sub("", text):
        if shorter == text:
            break
        text = shorter
    return text


def size_of(name: str) -> str:
    """The size in a name: "30b-a3b", "e2b", "8x7b"; empty where it has none."""
    found = _SIZE.search(plain_name(name))
    return found[0] if found else ""


def family_of(name: str, model_type: str = "") -> Family | None:
    """By the name first, since makers name better than types do (Llama, Mistral and SmolLM2 are all "llama")."""
    plain = plain_name(name)
    for family in families().values():
        if any(fnmatchcase(plain, pattern) for pattern in family.names):
            return family
    kind = model_type.casefold().replace("-", "_")
    claiming = [f for f in families().values() if kind and kind in f.model_types]
    return claiming[0] if len(claiming) == 1 else None


def subject_of(name: str, geometry: ModelGeometry | None = None) -> Subject:
    """What is known of a model by its name and, where they were read, its layers."""
    family = family_of(name, geometry.architecture if geometry is not None else "")
    traits = family.traits if family else ()
    read = geometry is not None and bool(geometry.layers)
    if geometry is not None and read:
        traits = (*_traits(geometry), *(t for t in traits if t in ("moe", "shared")))
    return Subject(name, family.id if family else "", size_of(name), tuple(traits), read)


def _traits(geometry: ModelGeometry) -> tuple[Trait, ...]:
    found: list[Trait] = []
    if any(layer.is_latent for layer in geometry.layers):
        found.append("mla")
    if any(layer.window_tokens is not None for layer in geometry.layers):
        found.append("windows")
    if any(layer.state for layer in geometry.layers):
        found.append("hybrid")
    return tuple(found)
