"""Sizes and names of every codec; the gguf package is the oracle of ggml's layouts."""

from fractions import Fraction

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import by_spelling, codec, codecs, engines, storable_codecs

GGML = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "ggml_mxfp4", "ggml_nvfp4"]


@pytest.mark.parametrize("name", GGML)
def test_ggml_layouts_have_ggml_sizes(name):
    """Block and bytes per block are those of the format's owner."""
    one = codec(name)

    assert (one.block, one.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[name.removeprefix("ggml_").upper()]]


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f32", 32),
        ("f16", 16),
        ("bf16", 16),
        ("fp8_e4m3", 8),
        ("fp8_e4m3fnuz", 8),
        ("fp8_e5m2", 8),
        ("fp8_e5m2fnuz", 8),
        ("int8", 8),
        ("int8_per_token_head", 8),
        ("fp8_per_token_head", 8),
        ("int4_per_token_head", 4),
        ("mxfp8", Fraction(33, 4)),
        ("fp8_ds_mla", Fraction(656, 72)),
        ("nvfp4_ds_mla", Fraction(352, 72)),
        ("q8_0", Fraction(17, 2)),
        ("q8_1", 9),
        ("q5_1", 6),
        ("q5_0", Fraction(11, 2)),
        ("q4_1", 5),
        ("q4_0", Fraction(9, 2)),
        ("iq4_nl", Fraction(9, 2)),
        ("mxfp4", Fraction(17, 4)),
        ("ggml_mxfp4", Fraction(17, 4)),
        ("nvfp4", Fraction(9, 2)),
        ("nvfp4_4over6", Fraction(9, 2)),
        ("ggml_nvfp4", Fraction(9, 2)),
    ],
)
def test_bits_follow_from_the_block(name, bits):
    """Bits per element are exact and count the scales; a row's own bytes come on top."""
    one, dim = codec(name), 576

    assert one.bits == bits
    assert one.bits_per_element(dim) == bits + Fraction(8 * one.row_extra_bytes, dim)


def test_all_codecs_are_in_the_table_above():
    """A codec that is added gets a row in this file."""
    rows = test_bits_follow_from_the_block.pytestmark[0].args[1]

    assert {c.name for c in codecs()} == {name for name, _ in rows}


@pytest.mark.parametrize("one", codecs(), ids=lambda c: c.name)
def test_every_codec_states_what_it_is(one):
    """Each codec has a description, a source, and keeps only known codecs' values."""
    assert one.description and one.source.ref
    assert set(one.lossless_from) <= {c.name for c in codecs()}
    assert one.row_bytes(0) == 0
    assert one.row_bytes(one.block) == one.block_bytes + one.row_extra_bytes


def test_slot_bytes_count_heads_and_sides():
    """One token of one layer: heads times the row of that side."""
    layer = LayerGeometry(0, "full_attention", 3, 64, 128)

    assert codec("q8_0").slot_bytes(layer, "k") == 3 * 68
    assert codec("q8_0").slot_bytes(layer, "v") == 3 * 136
    assert codec("q8_0").fixed_bytes(layer) == 0


@pytest.mark.parametrize(
    ("name", "dim", "said"),
    [
        ("q8_0", 80, "q8_0 stores blocks of 32 elements, and a head of 80 .*choose f32, bf16 or f16"),
        ("ggml_nvfp4", 96, "ggml_nvfp4 stores blocks of 64 elements.*choose .*q4_0"),
        ("nvfp4", 40, "nvfp4 stores blocks of 16.*choose bf16, f16, .*fp8_e4m3.* or int4_per_token_head"),
        ("f16", -1, "does not exist"),
    ],
)
def test_a_row_that_does_not_fit_names_what_does(name, dim, said):
    """The refusal names the block and codecs of the same engines that fit."""
    with pytest.raises(UserError, match=said):
        codec(name).row_bytes(dim)


@pytest.mark.parametrize(
    ("engine", "text", "name"),
    [
        ("vllm", "fp8", "fp8_e4m3"),
        ("vllm", "float16", "f16"),
        ("llama_cpp", "float16", "f16"),
        ("llama_cpp", " Q8_0 ", "q8_0"),
        ("llama_cpp", "nvfp4", "ggml_nvfp4"),
        ("llama_cpp", "mxfp4", "ggml_mxfp4"),
        ("vllm", "nvfp4", "nvfp4"),
        ("vllm", "bf16", "bf16"),
        ("lab", "nvfp4", "nvfp4"),
        ("lab", "fp8", "fp8_e4m3"),
        ("fake", "q4_0", "q4_0"),
    ],
)
def test_spellings_mean_layouts(engine, text, name):
    """The same word may be another layout on another engine."""
    assert by_spelling(engine, text) == name


@pytest.mark.parametrize(
    ("engine", "text", "said"),
    [
        ("llama_cpp", "q8_1", "q8_1.*operand of dot products.*allowed: .*q8_0"),
        ("lab", "q8_1", "q8_1.*operand of dot products"),
        ("llama_cpp", "fp8", "llama_cpp does not store a KV cache in 'fp8'; allowed: .*q8_0"),
        ("vllm", "q8_0", "vllm does not store.*allowed: .*fp8_e4m3"),
        ("llama_cpp", "q8", "'q8'.*q8_0.*did you mean 'q8_0'"),
        ("vllm", "fp8_e4m", "'fp8_e4m'.*did you mean 'fp8_e4m3'"),
        ("ollama", "q8_0", "unknown engine 'ollama'.*llama_cpp"),
    ],
)
def test_unknown_words_are_refused_with_the_list(engine, text, said):
    """A refusal lists what this engine stores."""
    with pytest.raises(UserError, match=said):
        by_spelling(engine, text)


def test_spelling_is_the_engines_own_word():
    """Canonical ids map back to what the engine takes; engines that lack a codec refuse."""
    assert codec("ggml_nvfp4").spelling("llama_cpp") == "nvfp4"
    assert codec("f16").spelling("vllm") == "float16"
    assert codec("q8_0").spelling("lab") == "q8_0"
    with pytest.raises(UserError, match="does not store"):
        codec("q8_0").spelling("vllm")
    with pytest.raises(UserError, match="operand of dot products"):
        codec("q8_1").spelling("llama_cpp")


@pytest.mark.parametrize("engine", engines())
def test_spellings_of_one_engine_are_unambiguous(engine):
    """No word of an engine means two codecs, and each word leads back to its codec."""
    for name in storable_codecs(engine):
        one = codec(name)
        for word in one.spellings.get(engine, (name,)):
            assert by_spelling(engine, word) == name


def test_storable_codecs_start_with_the_most_bits():
    """The list that a person sees is ordered and has no codec that would abort the engine."""
    names = storable_codecs("llama_cpp")

    assert names[0] == "f32"
    assert "q8_1" not in names
    assert set(names) == set(GGML)


def test_f32_keeps_both_16_bit_formats():
    """f32 is lossless against f16 and bf16; no block format is lossless."""
    assert {"f16", "bf16"} <= set(codec("f32").lossless_from)
    assert codec("f16").lossless_from == ("f16",)
    assert codec("q8_0").lossless_from == ()


def test_an_unknown_codec_lists_the_known():
    """A wrong id is answered with the registry."""
    with pytest.raises(UserError, match=r"unknown codec 'q8'; allowed: .*q8_0"):
        codec("q8")
