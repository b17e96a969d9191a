"""What a device is: two memory sizes that people mix up, bandwidth, and which formats it computes in.

Facts are tables in `data/*.toml`, one device a table, each value with its source; what nobody has read is absent.
The marketing figure and what the device reports differ (H200: 141 GB and 143,771 MiB = 150.75 GB), and what a runtime
sees is a little less again, so they are three fields. Knows nothing about models or engines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvgate.core.errors import UserError

#: Words that people write before a device's name, and that do not tell two devices apart.
_MAKERS = re.compile(r"^(nvidia|amd|intel|apple|google|geforce|instinct|radeon|tesla|cloud)+")
_NOT_NAME = re.compile(r"[^a-z0-9]")


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(min_length=3)]
    #: Not seen in a log or a data sheet by whoever wrote it down.
    unverified: bool = False
    note: str = ""


class Memory(_Fact):
    """Bytes of memory, and where the number was read."""

    bytes: Annotated[int, Field(gt=0, le=2**44)]


class Bandwidth(_Fact):
    """Bytes a second between memory and compute."""

    bytes_per_s: Annotated[int, Field(gt=0, le=10**15)]


class Arithmetic(_Fact):
    """Whether the device multiplies in a format, or can only keep it and convert."""

    formats: tuple[str, ...]


class Device(BaseModel):
    """One device.

    Attributes:
        id: what people type. aliases: other spellings. name: in full.
        compute_capability: "9.0" (CUDA), "gfx942" (ROCm); empty where there is none.
        marketing: as sold. reported: what the driver's tool prints (nvidia-smi, rocm-smi).
        runtime: what an engine sees (cudaMemGetInfo), a little less.
        fp8, fp4: formats it multiplies in; an empty list is none, absent is unknown.
        shared_memory: the memory belongs to the whole machine, so only a part of it is the device's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    name: Annotated[str, Field(min_length=2)]
    aliases: tuple[Annotated[str, Field(min_length=2)], ...] = ()
    vendor: Literal["nvidia", "amd", "intel", "apple", "google", "cpu"]
    architecture: str = ""
    compute_capability: str = ""
    marketing: Memory | None = None
    reported: Memory | None = None
    runtime: Memory | None = None
    bandwidth: Bandwidth | None = None
    fp8: Arithmetic | None = None
    fp4: Arithmetic | None = None
    shared_memory: bool = False
    note: str = ""

    @model_validator(mode="after")
    def _plausible(self) -> Device:
        """A unit taken for another is the commonest mistake: GB read as GiB is 7.4 % off."""
        if self.marketing and self.reported and not self.shared_memory:
            ratio = self.reported.bytes / self.marketing.bytes
            if not 0.9 <= ratio <= 1.0738:
                raise ValueError(f"{self.id}: reported memory is {ratio:.3f} of the marketing figure")
        if self.runtime and self.reported and not 0.9 <= self.runtime.bytes / self.reported.bytes <= 1:
            raise ValueError(f"{self.id}: a runtime sees at most what the device reports")
        return self

    @property
    def memory(self) -> Memory | None:
        """What a plan starts from: the reported size, else the marketing figure; None if neither can be used."""
        if self.reported is not None:
            return self.reported
        return None if self.shared_memory else self.marketing


class _DeviceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    device: tuple[Device, ...]


def parse_devices(text: str) -> tuple[Device, ...]:
    """Devices of one TOML file.

    Raises:
        ValueError: not TOML, an unknown key, or a value that cannot be (pydantic's ValidationError is one).
    """
    return _DeviceFile.model_validate(tomllib.loads(text)).device


@cache
def devices() -> Mapping[str, Device]:
    """All devices by id, in id order.

    Raises:
        ValueError: a file of `data/` is wrong, or two devices share a spelling.
    """
    found: dict[str, Device] = {}
    spellings: dict[str, str] = {}
    for entry in sorted((files(__package__) / "data").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            for d in parse_devices(entry.read_text(encoding="utf-8")):
                for word in {_plain(w) for w in (d.id, *d.aliases, d.name)}:
                    if spellings.setdefault(word, d.id) != d.id:
                        raise ValueError(f"{d.id} and {spellings[word]} are both spelled {word!r}")
                found[d.id] = d
    return dict(sorted(found.items()))


def device(text: str, *, otherwise: str = "leave --device out") -> Device:
    """The device that a person means: "h200", "RTX 4090", "NVIDIA-H100-SXM".

    Args:
        otherwise: what helps a person whose device is in no table.

    Raises:
        UserError: there is none of that name; the message has the nearest ones.
    """
    spelled = {_plain(word): d for d in devices().values() for word in (d.id, *d.aliases, d.name)}
    word = _plain(text)
    if word in spelled:
        return spelled[word]
    near = dict.fromkeys(spelled[w].id for w in get_close_matches(word, spelled, n=6, cutoff=0.5))
    shown = tuple(near) or tuple(devices())
    raise UserError(
        f"unknown device {text[:60]!r}" + (f", did you mean {next(iter(near))}?" if near else ""),
        allowed=shown,
        fix=f"or {otherwise}",
    )


def _plain(text: str) -> str:
    word = _NOT_NAME.sub("", text.lower())
    return _MAKERS.sub("", word) or word
