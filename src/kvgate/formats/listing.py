"""The table of codecs: one row each, computed. The command line, the docs and `--json` show the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.formats.describe import bits_per_element, row_dim, scales, value_range
from kvgate.formats.mla_rows import MlaRowSpec
from kvgate.formats.probe import Range
from kvgate.formats.spec import CodecSpec, codecs


@dataclass(frozen=True, slots=True)
class CodecRow:
    """One codec in the table.

    Attributes:
        bits: per element, scales included, of a row of `dim` elements.
        magnitudes: smallest and largest that come back; None without arithmetic.
        engines: engine -> its own word.
    """

    spec: CodecSpec
    bits: float
    dim: int
    magnitudes: Range | None
    scales: str
    engines: dict[str, str]

    @property
    def block(self) -> str:
        """Elements and bytes that belong together."""
        if isinstance(self.spec, MlaRowSpec):
            return ", ".join(f"{dim} in {size} B" for dim, size in self.spec.rows.items())
        extra = f" + {self.spec.row_extra_bytes} B a row" if self.spec.row_extra_bytes else ""
        return f"{self.spec.block} in {self.spec.block_bytes} B{extra}"

    @property
    def range(self) -> str:
        if self.magnitudes is None:
            return "?"
        return f"{magnitude(self.magnitudes.smallest)} to {magnitude(self.magnitudes.largest)}"

    @property
    def engine_words(self) -> str:
        """What each engine calls it, or why none stores it."""
        if self.spec.refused:
            return f"none: {self.spec.refused}"
        return ", ".join(f"{engine} {word}" for engine, word in self.engines.items())

    def document(self) -> dict[str, object]:
        """The row for `--json`."""
        s = self.spec
        found: dict[str, object] = {
            "name": s.name,
            "description": s.description,
            "bits_per_element": self.bits,
            "at_dim": self.dim,
            "block_elements": s.block,
            "block_bytes": s.block_bytes,
            "row_extra_bytes": s.row_extra_bytes,
            "smallest": None if self.magnitudes is None else self.magnitudes.smallest,
            "largest": None if self.magnitudes is None else self.magnitudes.largest,
            "scales": self.scales,
            "engines": {engine: list(words) for engine, words in s.spellings.items()},
            "refused": s.refused or None,
            "lossless_from": list(s.lossless_from),
            "source": str(s.source),
        }
        if isinstance(s, MlaRowSpec):
            found["row_bytes"] = {str(dim): size for dim, size in s.rows.items()}
        return found


def magnitude(x: float) -> str:
    """A value of a format: whole where it is short, else with four significant digits."""
    return f"{x:.0f}" if x == round(x) and abs(x) < 1e7 else f"{x:.4g}"


def codec_row(spec: CodecSpec) -> CodecRow:
    """One row, computed from the codec."""
    words = {} if spec.refused else {engine: spec.spelling(engine) for engine in sorted(spec.spellings)}
    return CodecRow(spec, float(bits_per_element(spec)), row_dim(spec), value_range(spec), scales(spec), words)


def codec_rows() -> tuple[CodecRow, ...]:
    """All registered codecs, most bits first."""
    return tuple(sorted((codec_row(c) for c in codecs()), key=lambda r: (-r.bits, r.spec.name)))
