"""`check_codec` passes what is registered and notices planted mistakes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch  # noqa: F401  the check compares the libraries only where torch is loaded

from kvgate.formats import packing
from kvgate.formats.spec import CodecSpec, codec, codecs
from kvgate.testing.codec import check_codec

Q4, Q8, FP8 = codec("q4_0"), codec("q8_0"), codec("fp8_e4m3")
INSIDE = {"q4_0": Q4.numerics, "q8_0": Q8.numerics, "fp8_e4m3": FP8.numerics}


@pytest.mark.parametrize("spec", [c for c in codecs() if c.numerics], ids=lambda c: c.name)
def test_every_registered_codec_conforms(spec):
    """Sizes, zeros, NaN, bound, tightness, second encoding, both libraries."""
    report = check_codec(spec, rows=60)

    assert "numpy and torch: the same bytes, the same values" in report.checks
    assert spec.name == "f32" or report.tightness >= 0.98


class Planted(type(INSIDE["q4_0"])):  # type: ignore[misc]
    """q4_0 to plant mistakes in."""

    def __init__(self) -> None:
        super().__init__(bits=4)


class ShiftedScale(Planted):
    """Reads the scale's exponent one quarter too high."""

    def decode_into(self, out, packed, xp):
        super().decode_into(out, xp.concat([packed[:, :1], packed[:, 1:2] + 1, packed[:, 2:]]), xp)


class SwappedNibble(Planted):
    """Reads the high half first."""

    def decode_into(self, out, packed, xp):
        turned = (packed[:, 2:] >> 4) | (packed[:, 2:] << 4)
        super().decode_into(out, xp.concat([packed[:, :2], turned]), xp)


class Truncates(Planted):
    """Forgets to round: drops the half."""

    def encode_blocks(self, x, xp):
        d, reciprocal = self._scale(x, xp)
        codes = xp.cast(xp.clip(x * reciprocal + 8.0, 0.0, 15.0), "u8")
        return xp.concat([xp.bytes_f16(d), packing.pack_halves(codes)])


class WideBound(Planted):
    """Promises a tenth too little."""

    def error_bound(self, x, xp):
        return super().error_bound(x, xp) * 1.1


class NoSubnormalTerm(Planted):
    """Forgets that float16 scales lose places below 2**-14."""

    def error_bound(self, x, xp):
        d, _ = self._scale(x, xp)
        return xp.abs(d) * 1.01


class BoundIsNan(Planted):
    def error_bound(self, x, xp):
        return super().error_bound(x, xp) * float("nan")


class NeighbourScale(Planted):
    """One scale for all blocks that come together."""

    def _scale(self, x, xp):
        d, _ = super()._scale(x, xp)
        d = xp.where(xp.abs(d) > 0, -xp.abs(d).max(), d)
        return d, xp.reciprocal_or_zero(d)


class OnlyOneLibrary(Planted):
    """Rounds another way in torch."""

    def encode_blocks(self, x, xp):
        return super().encode_blocks(x * 1.001 if xp.name == "torch" else x, xp)


class Silent(Planted):
    nonfinite = ""


class ZeroIsOne(Planted):
    """Codes start at one."""

    def decode_into(self, out, packed, xp):
        super().decode_into(out, packed, xp)
        out += 1e-3


MUTANTS = [
    (ShiftedScale(), r"q4_0: .* is off by .*, more than its bound"),
    (SwappedNibble(), "more than its bound"),
    (Truncates(), "more than its bound"),
    (WideBound(), r"errors reach 0\.9\d\d of their bound, less than 0.98"),
    (NoSubnormalTerm(), "more than its bound"),
    (BoundIsNan(), "the error bound of a finite value is NaN"),
    (NeighbourScale(), "the bytes of a row depend on the rows beside it"),
    (OnlyOneLibrary(), "numpy and torch give different bytes"),
    (Silent(), "does not say what NaN and infinity become"),
    (ZeroIsOne(), "zeros decode to 0.001"),
]


@pytest.mark.parametrize(("mutant", "said"), MUTANTS, ids=lambda m: type(m).__name__ if not isinstance(m, str) else "")
def test_a_planted_mistake_is_noticed(mutant, said):
    """Each mistake is found, and named."""
    with pytest.raises(AssertionError, match=said):
        check_codec(replace(Q4, numerics=mutant), rows=60)


def test_the_unspoiled_base_passes():
    """The mutants fail for what was planted, not for how they are made."""
    check_codec(replace(Q4, numerics=Planted()), rows=60)


def test_a_wrong_size_is_noticed():
    """row_bytes and the arithmetic disagree."""
    with pytest.raises(AssertionError, match="q4_0: encode_blocks does not give block_bytes"):
        check_codec(replace(Q4, block_bytes=19), rows=60)


def test_a_false_promise_of_idempotence_is_noticed():
    """int4_per_token_head changes bytes at a second encoding; saying otherwise is found."""
    honest = codec("int4_per_token_head")
    false = type("False", (type(honest.numerics),), {"idempotent": True})()

    with pytest.raises(AssertionError, match=r"says it is idempotent; a second encoding changes \d+"):
        check_codec(replace(honest, numerics=false), rows=60)


class WrongHead(type(INSIDE["fp8_e4m3"])):  # type: ignore[misc]
    """Takes the scale of the row before."""

    def decode_blocks(self, packed, xp, scale):
        moved = scale if scale.shape[0] == 1 else xp.concat([scale[-1:].T, scale[:-1].T]).T
        return super().decode_blocks(packed, xp, moved)


class Wraps(type(INSIDE["fp8_e4m3"])):  # type: ignore[misc]
    """Lets the largest values through to NaN although asked to saturate."""

    def encode_blocks(self, x, xp, scale, overflow):
        return super().encode_blocks(x, xp, scale, "nan")


@pytest.mark.parametrize(
    ("mutant", "said"),
    [(WrongHead, "one scale a head gives other values"), (Wraps, "under 'saturate' is nan|more than its bound|NaN")],
)
def test_mistakes_with_outer_scales_are_noticed(mutant, said):
    """The scale of another head, and an overflow policy that is not followed."""
    planted = mutant(FP8.numerics.number)

    with pytest.raises(AssertionError, match=said):
        check_codec(replace(FP8, numerics=planted), rows=60)


def test_the_report_says_what_was_held():
    """Tightness, changed bytes and the list of checks are there for a codec's own tests."""
    report = check_codec(Q8, rows=60)

    assert 0.98 <= report.tightness <= 1
    assert report.changed_bytes == 0
    assert len(report.checks) >= 8


def test_a_codec_without_arithmetic_fails():
    """Nothing to check is no pass."""
    bare = CodecSpec(name="bare", block=1, block_bytes=1, description="", source=Q4.source)

    with pytest.raises(AssertionError, match="bare has no arithmetic"):
        check_codec(bare)


def test_the_data_reaches_what_it_is_for():
    """Sample rows hold subnormal scales, overflowing scales, ties, equal and one-signed rows."""
    from kvgate.testing.codec import sample_rows

    rows = np.concatenate(list(sample_rows(32, np.random.default_rng(0), 50)))
    size = np.abs(rows).max(axis=1)

    assert (size / 8 < 2.0**-25).any()
    assert (size / 127 > 1e3).any()
    assert (rows.min(axis=1) >= 0).any()
    assert (np.ptp(rows, axis=1) == 0).any()
