"""What a codec stores: its size, its names per engine, and what it keeps exactly. Sizes only; no arithmetic on values.

The arithmetic hangs on `CodecSpec.numerics` (see `formats/numerics.py`) and is run by `formats/codec.py`. One file in
`formats/blocks/` holds one layout (attribute CODECS, a tuple). `row_bytes` is the only place where elements become
bytes: the planner, the report and the docs all go through it. Knows nothing about models or memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, cast

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source

if TYPE_CHECKING:
    from kvgate.formats.numerics import Numerics

KVSide = Literal["k", "v"]

#: Engines that name codecs by their canonical ids and store all of them.
CANONICAL_ENGINES = ("lab", "fake", "openai")


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """One way to store a row of numbers.

    Attributes:
        name: canonical id; names a layout, not a flag ("ggml_nvfp4" and "nvfp4" differ).
        block: elements per block, along head_dim. block_bytes: bytes of one block, scales included.
        lossless_from: codecs whose values this one stores unchanged.
        spellings: engine id -> the words that engine takes for it, its own word first.
        refused: why no engine can hold a cache in it; empty for a storable codec.
        row_extra_bytes: bytes that a row carries beside its blocks (a scale of the whole row).
        numerics: the arithmetic; None where only the size is known.
    """

    name: str
    block: int
    block_bytes: int
    description: str
    source: Source
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lossless_from: tuple[str, ...] = ()
    refused: str = ""
    row_extra_bytes: int = 0
    numerics: Numerics | None = field(default=None, compare=False, repr=False)

    @property
    def storable(self) -> bool:
        return not self.refused

    @property
    def bits(self) -> Fraction:
        """Bits per element of a whole block, scales included: q8_0 is 17/2."""
        return Fraction(8 * self.block_bytes, self.block)

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of `dim` elements (one head of one token); 0 for no elements.

        Raises:
            UserError: `dim` is negative or not a multiple of the block; the message names what fits.
        """
        if dim < 0:
            raise UserError(f"a row of {dim} elements does not exist")
        if dim % self.block:
            raise UserError(
                f"{self.name} stores blocks of {self.block} elements, and a head of {dim} is not a multiple of "
                f"{self.block} (nearest: {_any_of(_multiples(self.block, dim))})",
                fix="choose " + _any_of(_fitting(self, dim)),
            )
        return dim // self.block * self.block_bytes + (self.row_extra_bytes if dim else 0)

    def row_dim(self, row_bytes: int) -> int:
        """Elements of a row of so many bytes; the reverse of `row_bytes`.

        Raises:
            UserError: no row has so many bytes.
        """
        data = row_bytes - (self.row_extra_bytes if row_bytes else 0)
        if data < 0 or data % self.block_bytes:
            extra = f", plus {self.row_extra_bytes} a row" if self.row_extra_bytes else ""
            raise UserError(
                f"{self.name} stores {self.block} elements in {self.block_bytes} bytes{extra}; "
                f"no row takes {row_bytes} bytes",
                fix="give whole rows along the last dimension",
            )
        return data // self.block_bytes * self.block

    def bits_per_element(self, dim: int) -> Fraction:
        """Bits per element of a row of `dim` > 0 elements; differs from `bits` where a row carries more than blocks."""
        return Fraction(8 * self.row_bytes(dim), dim)

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        """Bytes that one token takes in one layer, for K or for V, all heads."""
        return layer.kv_heads * self.row_bytes(layer.k_dim if side == "k" else layer.v_dim)

    def fixed_bytes(self, layer: LayerGeometry) -> int:
        """Bytes per sequence and layer that do not grow with tokens; block codecs have none."""
        return 0

    def spelling(self, engine: str) -> str:
        """The engine's own word for this codec.

        Raises:
            UserError: the engine does not store it.
        """
        if engine in CANONICAL_ENGINES and self.storable:
            return self.name
        if self.refused or engine not in self.spellings:
            raise _not_stored(engine, self.name, self.refused)
        return self.spellings[engine][0]


def codec(name: str) -> CodecSpec:
    """The codec with this canonical id.

    Raises:
        UnknownCodec: there is none; the message lists what there is and names the nearest.
    """
    found = registry.discover("codec")
    if name not in found:
        near = get_close_matches(str(name).lower(), list(found) + list(_ALIASES), n=1)
        meant = _ALIASES.get(near[0], near[0]) if near else ""
        raise UnknownCodec(f"unknown codec {name!r}", allowed=found, fix=f"did you mean {meant!r}?" if meant else "")
    return cast(CodecSpec, found[name])


class UnknownCodec(UserError, KeyError):
    """No codec of this name; a KeyError too, because `kvgate.codecs` is a mapping."""

    def __str__(self) -> str:
        return Exception.__str__(self)


def codecs() -> tuple[CodecSpec, ...]:
    """All registered codecs in name order, also those that are listed only to be refused."""
    return tuple(registry.discover("codec").values())


def storable_codecs(engine: str) -> tuple[str, ...]:
    """Canonical ids that `engine` can hold a cache in, most bits first.

    Raises:
        UserError: no codec knows this engine.
    """
    if engine not in engines():
        raise UserError(f"unknown engine {engine!r}", allowed=engines())
    found = [c for c in codecs() if c.storable and (engine in CANONICAL_ENGINES or engine in c.spellings)]
    return tuple(c.name for c in sorted(found, key=lambda c: (-c.bits, c.name)))


def engines() -> tuple[str, ...]:
    """Engine ids for which codecs have spellings."""
    return tuple(sorted({e for c in codecs() for e in c.spellings} | set(CANONICAL_ENGINES)))


def by_spelling(engine: str, text: str) -> str:
    """The canonical id behind a word that a person or an engine uses ("fp8", "float16", "nvfp4").

    The engine's own words win over canonical ids, so "nvfp4" on llama_cpp is ggml_nvfp4.

    Raises:
        UserError: the engine does not store it; the message lists what it does.
    """
    word = text.strip().lower()
    stored = storable_codecs(engine)
    known = {c.name: c for c in codecs()}
    for c in known.values():
        if engine in c.spellings and word in c.spellings[engine]:
            if c.refused:
                raise _not_stored(engine, word, c.refused)
            return c.name
    name = word if word in known else _ALIASES.get(word, word)
    if name in stored:
        return name
    raise _not_stored(engine, word, known[name].refused if name in known else "")


#: Words that mean the same codec everywhere. An engine's own spelling table is asked first.
_ALIASES: Mapping[str, str] = {
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
}


def _not_stored(engine: str, word: str, why: str) -> UserError:
    reason = f": {why}" if why else ""
    allowed = storable_codecs(engine)
    # A known codec is no slip of the fingers: only a word that nobody knows has a nearest one.
    near = [] if why or word in registry.discover("codec") else get_close_matches(str(word).lower(), allowed, n=1)
    fix = f"did you mean {near[0]!r}?" if near else ""
    return UserError(f"{engine} does not store a KV cache in {word!r}{reason}", allowed=allowed, fix=fix)


def _fitting(refused: CodecSpec, dim: int) -> tuple[str, ...]:
    """Codecs for `dim` on an engine that also has `refused`, most bits first."""
    fits = [
        c
        for c in codecs()
        if c.storable and dim % c.block == 0 and (not refused.spellings or set(c.spellings) & set(refused.spellings))
    ]
    return tuple(c.name for c in sorted(fits, key=lambda c: (-c.bits, c.name)))


def _multiples(block: int, dim: int) -> tuple[str, ...]:
    """The legal row lengths on both sides of `dim`."""
    below = dim // block * block
    return tuple(str(n) for n in (below, below + block) if n)


def _any_of(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else "".join(names)
