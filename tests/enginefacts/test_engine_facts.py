"""Facts about engines: every row has a source and a range, and agrees with the codecs' registry."""

from __future__ import annotations

import itertools
import re

import pytest

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import DtypeRow, LogRow, SourceRow, load, version_key
from kvgate.formats.spec import codec, storable_codecs

LLAMA = load("llama_cpp")
SOURCE = SourceRow(kind="assumed", ref="test")


def test_every_kv_type_is_a_codec_under_the_same_spelling() -> None:
    """The types of the facts are the codecs that the registry stores for this engine, spelled alike."""
    assert {d.codec for d in LLAMA.dtype} == set(storable_codecs("llama_cpp"))
    assert all(codec(d.codec).spelling("llama_cpp") == d.spelling for d in LLAMA.dtype)


def test_numbers_are_ggml_s() -> None:
    """The numbers are those of ggml_type in the wheel."""
    x = pytest.importorskip("xllamacpp")
    names = {n.removeprefix("GGML_TYPE_").lower(): int(v) for n, v in x.ggml_type.__members__.items()}

    assert {d.spelling: d.number for d in LLAMA.dtype} == {d.spelling: names[d.spelling] for d in LLAMA.dtype}


def test_every_row_says_where_it_comes_from() -> None:
    """No row is without a reference."""
    rows = [*LLAMA.dtype, *LLAMA.refused, *LLAMA.log, *LLAMA.epoch, *LLAMA.layout, *LLAMA.platform]

    assert all(r.source.ref for r in rows)


@pytest.mark.parametrize(
    ("version", "holds"),
    [("2026.4.8671", False), ("2026.4.8672", True), ("2026.10.1", True), ("2026.11.0", False), ("0.2.14", False)],
)
def test_a_range_holds_its_first_version_and_not_its_last(version: str, holds: bool) -> None:
    """`since` is inside, `until` outside; versions compare as numbers, not as text."""
    row = DtypeRow(codec="f16", spelling="f16", since="2026.4.8672", until="2026.11.0", source=SOURCE)

    assert row.holds(version) is holds


def test_versions_compare_as_numbers() -> None:
    """2026.10 comes after 2026.4."""
    assert version_key("2026.10.11549") > version_key("2026.4.8672") > version_key("0.2.14")
    assert version_key("9" * 5000) > version_key("1")


def test_epochs_name_the_side_of_a_change() -> None:
    """The wheel before rotation and the first one with it are on different sides; an unknown version is on none."""
    assert LLAMA.epoch_name("0.2.14") == "rotation<2026-04-01"
    assert LLAMA.epoch_name("2026.4.8672") == LLAMA.epoch_name("2026.10.11549") == "rotation>=2026-04-01"
    assert LLAMA.epoch_name(None) is None


def test_old_logs_are_read_without_rotation() -> None:
    """A version before rotation has no pattern for it; an unknown one is read with the newest."""
    assert "rotation" not in LLAMA.patterns("0.2.14")
    assert LLAMA.patterns(None) == LLAMA.patterns("2026.10.11549")


def test_fields_lie_inside_their_structs() -> None:
    """Offsets are inside the struct, and integers do not overlap."""
    for row in LLAMA.layout:
        for struct_name, offsets in row.offsets.items():
            ends = sorted(
                (at, at + (4 if at % 4 == 0 and name not in ("swa_full",) else 1)) for name, at in offsets.items()
            )
            assert ends[-1][1] <= row.sizes[struct_name]
            assert all(a_end <= b for (_, a_end), (b, _) in itertools.pairwise(ends))
            assert set(row.defaults.get(struct_name, {})) <= set(offsets)


def test_an_engine_without_facts_is_named() -> None:
    """An unknown engine is a user's error that lists what there is."""
    with pytest.raises(UserError, match=r"no facts about engine 'nope'.*llama_cpp"):
        load("nope")


def test_a_broken_pattern_does_not_load() -> None:
    """A pattern that is no regular expression is refused when the file is read."""
    with pytest.raises(ValueError, match="log pattern 'size'"):
        LogRow(patterns={"size": "("}, source=SOURCE)
    assert all(re.compile(p) for row in LLAMA.log for p in row.patterns.values())
