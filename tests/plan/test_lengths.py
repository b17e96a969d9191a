"""Files of lengths: both spellings, everything that can be wrong with them, and the arithmetic of a mixture."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.plan.lengths import MAX_LINE_CHARS, Lengths, likely_count, read_lengths

HERE = Source("spec", "made for this test")


def read(tmp_path: Path, text: str | bytes) -> Lengths:
    path = tmp_path / "lengths.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_lengths(path)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1000\n2000\n1000\n", ((1000, 2), (2000, 1))),
        ("tokens,count\n1000,5\n2000,0\n4000,1\n", ((1000, 5), (4000, 1))),
        ("1000;5\r\n2000\t7\r\n", ((1000, 5), (2000, 7))),
        ("# from the gateway\n\n1000 5 # short ones\n", ((1000, 5),)),
        ("\ufeff1000\n", ((1000, 1),)),
    ],
)
def test_both_spellings(tmp_path: Path, text: str, counts: tuple[tuple[int, int], ...]) -> None:
    """One length a line or tokens,count; a heading, blank lines, comments and a byte order mark do not matter."""
    assert read(tmp_path, text).counts == counts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no lengths"),
        ("tokens,count\n", "holds no lengths"),
        ("1000,0\n", "holds no lengths"),
        ("-5\n", "line 1: '-5' is no length"),
        ("1000,-1\n", "is no length"),
        ("0\n", "a sequence of 0 tokens cannot be"),
        ("1000\nnan\n", "line 2: 'nan' is no length"),
        ("1.5\n", "is no length"),
        ("1000,2,3\n", "is no length"),
        ("9" * 16 + "\n", "is no length"),
        ("1" + "0" * 14 + "\n", "cannot be"),
        ("x" * (MAX_LINE_CHARS + 1), "line 1 is too long"),
        (b"\xff\xfe1\x000\x00", "is not a text file"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    """Empty, negative, NaN, huge, binary: one line that names the line and how to write it."""
    with pytest.raises(UserError) as error:
        read(tmp_path, text)

    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file and a folder are named."""
    for path in (tmp_path / "no.csv", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_lengths(path)


@given(st.dictionaries(st.integers(1, 10_000), st.integers(1, 50), min_size=1, max_size=20))
def test_mean_and_quantiles_are_those_of_the_list(counts: dict[int, int]) -> None:
    """The histogram says what the written-out list says."""
    found = Lengths(tuple(sorted(counts.items())), HERE)
    listed = sorted(t for t, n in counts.items() for _ in range(n))
    mean, deviation = found.mean_and_deviation(lambda tokens: tokens)

    assert found.total == len(listed)
    assert found.longest == listed[-1]
    assert found.mean == pytest.approx(sum(listed) / len(listed), rel=1e-12)
    assert mean == pytest.approx(found.mean, rel=1e-12)
    assert deviation**2 == pytest.approx(sum((t - mean) ** 2 for t in listed) / len(listed), rel=1e-9, abs=1e-9)
    for share in (0.01, 0.5, 0.95, 1.0):
        assert found.quantile(share) == listed[max(0, -(-int(share * 100) * len(listed) // 100) - 1)]


def test_nineteen_of_twenty_draws_fit() -> None:
    """As many sequences as `likely_count` says really fit about 95 % of the time, and a few more do not.

    Near this count one sequence more or less moves the share by 0.015; the tolerance is two of them, and eight more
    sequences fall outside it. Drawing noise is 0.002.
    """
    rng = random.Random(20260401)
    sizes, budget = (1_000, 30_000), 1_500_000
    mean = sum(sizes) / 2
    deviation = (sum((s - mean) ** 2 for s in sizes) / 2) ** 0.5
    count = likely_count(budget, mean, deviation)

    def share(n: int) -> float:
        return sum(sum(rng.choices(sizes, k=n)) <= budget for _ in range(10_000)) / 10_000

    assert share(count) == pytest.approx(0.95, abs=0.03)
    assert share(count + 8) < 0.85, "the tolerance tells a wrong count apart"
    assert count < budget // mean


def test_equal_lengths_have_no_spread() -> None:
    """Without a spread the likely count is the plain one."""
    assert likely_count(1000, 10.0, 0.0) == 100
    assert likely_count(0, 10.0, 1.0) == 0
    assert likely_count(10, 0.0, 0.0) == 0
