"""Facts about vLLM, SGLang and TensorRT-LLM: sources, ranges, and agreement with the codecs' registry."""

from __future__ import annotations

import pytest

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.enginefacts.versions import Holds, holds, range_words, version_of
from kvgate.formats.spec import codec

ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp")


def rows(facts: EngineFacts) -> list:
    """All rows of one engine that carry a source."""
    kinds = ("dtype", "word", "refused", "flag", "backend", "selection", "default", "trouble", "epoch")
    return [row for kind in kinds for row in getattr(facts, kind)]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_fact_says_where_it_was_read(engine: str) -> None:
    """Each row has a reference, and its range is one that the engine's versions can be compared with."""
    for row in rows(load(engine)):
        assert row.source.ref
        for bound in (row.since, row.until):
            assert not bound or version_of(bound, engine)


@pytest.mark.parametrize("engine", ("vllm", "sglang", "trtllm"))
def test_words_are_those_of_the_codecs(engine: str) -> None:
    """An engine's word for a codec is the registry's, and its aliases are too."""
    for row in load(engine).dtype:
        assert {row.spelling, *row.aliases} == set(codec(row.codec).spellings[engine])


@pytest.mark.parametrize("engine", ENGINES)
def test_no_word_means_two_things(engine: str) -> None:
    """A word is accepted or refused, never both, and a flag has one meaning."""
    facts = load(engine)
    taken = [w for d in facts.dtype for w in (d.spelling, *d.aliases)] + [w.spelling for w in facts.word]
    flags = [n for f in facts.flag for n in (f.name, *f.aliases) if n]

    assert len(taken) == len(set(taken))
    assert not set(taken) & {r.spelling for r in facts.refused}
    assert len(flags) == len(set(flags))


def test_backends_of_an_order_are_described() -> None:
    """The order of choice names only backends that have a row, of the same kind of attention."""
    facts = load("vllm")
    kinds = {b.name: b.attention for b in facts.backend}

    assert all(kinds[name] == s.attention for s in facts.selection for name in s.order)


def test_exact_words_of_backends() -> None:
    """fp8 and fp8_e4m3 are one layout, but two words for FLASHMLA_SPARSE and HPC_ATTN."""
    words = {b.name: set(b.dtypes) for b in load("vllm").backend}

    assert "fp8" in words["FLASHMLA_SPARSE"] and "fp8_e4m3" not in words["FLASHMLA_SPARSE"]
    assert "fp8_e4m3" in words["HPC_ATTN"] and "fp8" not in words["HPC_ATTN"]
    assert "fp8_e5m2" not in words["FLASH_ATTN"]


@pytest.mark.parametrize(
    ("text", "engine", "key"),
    [
        ("0.32.0", "vllm", (0, 32, 0)),
        ("v0.10.2rc1", "vllm", (0, 10, 2)),
        ("0.32.0+cpu", "vllm", (0, 32, 0)),
        ("1.4.0rc4", "trtllm", (1, 4, 0)),
        ("b11549", "llama_cpp", (11549,)),
        ("2026.10.11549", "llama_cpp", (11549,)),
        ("0.2.14", "llama_cpp", (8612,)),
    ],
)
def test_versions_as_people_write_them(text: str, engine: str, key: tuple[int, ...]) -> None:
    """Release candidates and local builds count as their release; a wheel of llama.cpp as its build."""
    assert version_of(text, engine) == key


@pytest.mark.parametrize("text", ["", "latest", "1.2.3.4.5.6", "b", "9" * 5000, "-1"])
def test_what_is_no_version(text: str) -> None:
    """A word that is no version is a user's error, not a comparison."""
    with pytest.raises(UserError, match="no version"):
        version_of(text, "vllm")


def test_a_range_is_open_at_its_end_and_unknown_without_a_version() -> None:
    """`since` is inside, `until` outside; a bounded row does not hold for a version that nobody named."""
    assert holds((0, 32), "0.32.0", "", "vllm") is Holds.YES
    assert holds((0, 31, 9), "0.32", "", "vllm") is Holds.NO
    assert holds((0, 32, 0), "", "0.32", "vllm") is Holds.NO
    assert holds(None, "", "0.32", "vllm") is Holds.UNKNOWN
    assert holds(None, "", "", "vllm") is Holds.YES
    assert range_words("b9310", "b9334") == "b9310 to before b9334"
