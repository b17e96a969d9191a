"""Layouts, codes, ranges and scales as found by trying, against what the formats' owners state."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from kvgate.formats import describe, probe
from kvgate.formats.drawing import draw
from kvgate.formats.listing import codec_rows, magnitude
from kvgate.formats.mla_rows import MlaRowSpec
from kvgate.formats.spec import codec, codecs

WITH_CODES = [c.name for c in codecs() if c.name not in ("f32", "f16", "bf16", "int4_per_token_head")]


def drawn(name: str, dim: int) -> list[str]:
    return [f"{line.where}: {line.what}" for line in draw(probe.layout(codec(name), dim))]


@pytest.mark.parametrize(
    ("name", "dim", "lines"),
    [
        # ggml-common.h: block_q5_0 is d, qh[4], qs[16]; element j low and j + 16 high.
        (
            "q5_0",
            32,
            [
                "bytes 0..1: scale of elements 0..31",
                "bytes 2..5: elements 0..31, 1 bit each, low bits first",
                "bytes 6..21: bits 7..4 elements 16..31; bits 3..0 elements 0..15",
            ],
        ),
        ("q8_0", 32, ["bytes 0..1: scale of elements 0..31", "bytes 2..33: elements 0..31, 1 byte each"]),
        # q8_1 keeps a sum that only dot products read.
        (
            "q8_1",
            32,
            [
                "bytes 0..1: scale of elements 0..31",
                "bytes 2..3: not read when decoding",
                "bytes 4..35: elements 0..31, 1 byte each",
            ],
        ),
        # block_nvfp4: four scales of 7 bits, then groups of 8 bytes, j and j + 8.
        (
            "ggml_nvfp4",
            64,
            [
                "bytes 0..3: bit 7 not read when decoding; bits 6..0 scales of elements 0..63, one for every 16",
                "bytes 4..11: bits 7..4 elements 8..15; bits 3..0 elements 0..7",
                "bytes 12..19: bits 7..4 elements 24..31; bits 3..0 elements 16..23",
                "bytes 20..27: bits 7..4 elements 40..47; bits 3..0 elements 32..39",
                "bytes 28..35: bits 7..4 elements 56..63; bits 3..0 elements 48..55",
            ],
        ),
        # vLLM: data of a row, then its scales; neighbours share a byte.
        (
            "nvfp4",
            64,
            [
                "bytes 0..31: elements 0..63, 4 bits each, low bits first",
                "bytes 32..35: scales of elements 0..63, one for every 16",
            ],
        ),
        (
            "fp8_ds_mla",
            576,
            [
                "bytes 0..511: elements 0..511, 1 byte each",
                "bytes 512..527: scales of elements 0..511, 4 bytes for every 128",
                "bytes 528..655: elements 512..575, 2 bytes each",
            ],
        ),
        (
            "fp8_ds_mla",
            512,
            [
                "bytes 0..447: elements 0..447, 1 byte each",
                "bytes 448..575: elements 448..511, 2 bytes each",
                "bytes 576..582: scales of elements 0..447, one for every 64",
                "byte 583: not read when decoding",
            ],
        ),
        (
            "nvfp4_ds_mla",
            576,
            [
                "bytes 0..255: elements 0..511, 4 bits each, low bits first",
                "bytes 256..319: elements 512..575, 1 byte each",
                "bytes 320..327: scales of 16 elements each, those from element 0, 64, .. 448 on",
                "bytes 328..335: scales of 16 elements each, those from element 16, 80, .. 464 on",
                "bytes 336..343: scales of 16 elements each, those from element 32, 96, .. 480 on",
                "bytes 344..351: scales of 16 elements each, those from element 48, 112, .. 496 on",
            ],
        ),
        ("bf16", 1, ["bytes 0..1: element 0"]),
        (
            "int4_per_token_head",
            64,
            ["bytes 0..35: all elements together: the row is rotated, no byte is one element's"],
        ),
    ],
)
def test_layouts_are_their_owners(name: str, dim: int, lines: list[str]) -> None:
    """Byte for byte what the structures of ggml and the kernels of vLLM say."""
    assert drawn(name, dim) == lines


@pytest.mark.parametrize("name", WITH_CODES)
def test_every_byte_is_drawn_once(name: str) -> None:
    """Lines follow each other from byte 0 to the last, and every element has a code."""
    for dim in probe.shown_dims(codec(name)):
        found = probe.layout(codec(name), dim)
        lines = draw(found)
        assert [line.first for line in lines] == [0, *(line.last + 1 for line in lines[:-1])]
        assert lines[-1].last == codec(name).row_bytes(dim) - 1 == found.row_bytes - 1
        assert all(found.code_bits(element) for element in range(dim))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn),
        ("fp8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("fp8_e5m2", ml_dtypes.float8_e5m2),
        ("fp8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        ("fp8_per_token_head", ml_dtypes.float8_e4m3fn),
        ("mxfp8", ml_dtypes.float8_e4m3fn),
    ],
)
def test_all_256_codes_are_ml_dtypes(name: str, theirs: type) -> None:
    """In code order, NaN, infinities and signed zeros included; under a scale of one where there is a scale."""
    spec = codec(name)
    table = probe.code_table(spec, probe.shown_dims(spec)[0])
    want = np.arange(256, dtype=np.uint8).view(theirs).astype(np.float32)

    assert table is not None
    assert np.array_equal(np.float32(table.values), want, equal_nan=True)
    assert [math.copysign(1, v) for v in table.values if v == 0] == np.copysign(1, want[want == 0]).tolist()


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6", "mxfp4", "nvfp4_ds_mla", "ggml_mxfp4", "ggml_nvfp4"])
def test_all_16_codes_of_e2m1(name: str) -> None:
    """OCP's table, whatever the packing."""
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    spec = codec(name)
    table = probe.code_table(spec, probe.shown_dims(spec)[0])

    assert table is not None
    assert list(table.values) == half + [-v for v in half]
    assert table.scale == ("E8M0" if "mx" in name else "E4M3")


@pytest.mark.parametrize(
    ("name", "values", "scale"),
    [
        ("q4_0", range(-8, 8), "f16"),
        ("q5_0", range(-16, 16), "f16"),
        ("q4_1", range(16), "f16 + f16 offset"),
        ("q5_1", range(32), "f16 + f16 offset"),
        ("q8_0", [*range(128), *range(-128, 0)], "f16"),
        ("int8", [*range(128), *range(-128, 0)], ""),
        ("int8_per_token_head", [*range(128), *range(-128, 0)], "f32"),
        ("iq4_nl", [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "f16"),
    ],
)
def test_integer_codes(name: str, values: list[int], scale: str) -> None:
    """Steps of the scale, in code order (ggml's kvalues for iq4_nl); and what kind of number the scale is."""
    table = probe.code_table(codec(name), probe.shown_dims(codec(name))[0])

    assert table is not None
    assert list(table.values) == list(values)
    assert table.scale == scale


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("fp8_e4m3", 2.0**-9, 448),
        ("fp8_e4m3fnuz", 2.0**-10, 240),
        ("fp8_e5m2", 2.0**-16, 57344),
        ("fp8_e5m2fnuz", 2.0**-17, 57344),
        ("f16", 2.0**-24, 65504),
        ("bf16", 2.0**-133, (2 - 2.0**-7) * 2.0**127),
        ("int8", 1, 127),
        # 127 steps of the largest finite float16, and of the smallest.
        ("q8_0", 127 * 2.0**-24, 127 * 65504),
        ("q4_0", 8 * 2.0**-24, 8 * 65504),
        ("q5_0", 16 * 2.0**-24, 16 * 65504),
        ("q4_1", 15 * 2.0**-24, 15 * 65504),
        # 6 times E4M3: its largest, and its smallest, 2**-9, below which amax / 6 rounds to half of it.
        ("nvfp4", 3 * 2.0**-9, 6 * 448),
        ("ggml_nvfp4", 3 * 2.0**-9, 6 * 448),
        ("mxfp4", 0.5 * 2.0**-127 * 1, 6 * 2.0**125),
    ],
)
def test_ranges(name: str, smallest: float, largest: float) -> None:
    """One value alone in its block: the smallest that is not lost, and the largest that is finite."""
    found = probe.value_range(codec(name))

    assert found.largest == largest
    assert found.smallest == pytest.approx(smallest, rel=1e-3)


def test_the_table_of_codecs_is_whole() -> None:
    """A row for every codec, most bits first; scales and blocks in words; engines by their own word."""
    rows = {r.spec.name: r for r in codec_rows()}

    assert set(rows) == {c.name for c in codecs()}
    bits = [r.bits for r in codec_rows()]
    assert bits == sorted(bits, reverse=True)
    assert rows["fp8_per_token_head"].bits == 8 * (128 + 4) / 128
    assert rows["nvfp4"].scales == "E4M3 for 16, one outside (tensor or head)"
    assert rows["fp8_ds_mla"].scales == "f32 for 128 or E8M0 for 64"
    assert rows["int4_per_token_head"].scales == "4 bytes for a row"
    assert rows["q5_1"].scales == "f16 + f16 offset for 32"
    assert rows["f32"].scales == "none"
    assert rows["ggml_nvfp4"].engine_words == "llama_cpp nvfp4"
    assert "aborts" in rows["q8_1"].engine_words
    assert rows["fp8_ds_mla"].block == "576 in 656 B, 512 in 584 B"
    for row in rows.values():
        assert isinstance(row.spec, MlaRowSpec) or row.dim == 128


@pytest.mark.parametrize("name", [c.name for c in codecs()])
def test_the_words_are_those_of_the_defining_file(name: str) -> None:
    """Every codec's file says what it is, and names it or what it belongs to."""
    words = describe.words(codec(name))

    assert words
    assert name.split("_")[0].removesuffix("nuz") in words[0]


@pytest.mark.parametrize(
    ("x", "said"), [(448.0, "448"), (8319008.0, "8319008"), (0.001953125, "0.001953"), (1e8, "1e+08")]
)
def test_magnitudes_in_words(x: float, said: str) -> None:
    """Whole where that is short."""
    assert magnitude(x) == said
