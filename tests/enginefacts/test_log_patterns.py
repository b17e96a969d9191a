"""Rows of engines' log lines: what they may look like, and that no line can make them slow."""

from __future__ import annotations

import re
from re import _constants, _parser

import pytest

from kvgate.core.errors import UserError
from kvgate.enginefacts.log_patterns import FACTS, LineRow, LogLines, engines, fact_name, load

ROWS = [(name, row) for name in engines() for row in load(name).line]
IDS = [f"{name}-{row.id}-{row.since or 'first'}" for name, row in ROWS]


def unbounded_within_repeat(pattern: str) -> bool:
    """Whether a repeat without a bound stands in a pattern, or any repeat inside another that is long."""

    def walk(tree: object, longest: int) -> bool:
        for op, arg in tree:  # type: ignore[attr-defined]
            if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
                _, most, inner = arg
                if most == _constants.MAXREPEAT or (most > 8 and longest > 8):
                    return True
                if walk(inner, max(longest, int(most) if most > 1 else longest)):
                    return True
            elif op in (_constants.SUBPATTERN, _constants.BRANCH):
                inner_trees = [arg[-1]] if op is _constants.SUBPATTERN else arg[1]
                if any(walk(part, longest) for part in inner_trees):
                    return True
        return False

    return walk(_parser.parse(pattern), 1)


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=IDS)
def test_every_row_is_bounded_and_sourced(engine: str, row: LineRow) -> None:
    """No repeat is open, so that a window of fixed width bounds the cost; each row names its meaning and its source."""
    # `\s?` and the like are bounded; the digits of a version are `{0,40}`.
    assert not unbounded_within_repeat(row.pattern), row.pattern
    assert row.source.ref
    assert row.source.version
    assert len(row.means) > 5


@pytest.mark.parametrize("pattern", ["a+", "(?:ab*)?", "(a{1,50}){1,50}", "x|(?:y|z.*)"])
def test_an_open_repeat_is_noticed(pattern: str) -> None:
    """The check above sees a repeat without a bound wherever it stands, and one long repeat inside another."""
    assert unbounded_within_repeat(pattern)


def test_versions_of_one_line_do_not_overlap() -> None:
    """Rows of one id divide the versions: a line has one meaning in each."""
    for name in engines():
        by_id: dict[str, list[LineRow]] = {}
        for row in load(name).line:
            by_id.setdefault(row.id, []).append(row)
        for same in by_id.values():
            for version in ("0.6.6", "0.8.5.post1", "0.20.0", "0.21.0", "0.32.0"):
                assert len([r for r in same if r.holds(version)]) <= 1, same[0].id


def test_words_are_codec_ids() -> None:
    """Every word of a KV type leads to an id in the form of a codec, and `auto` to none."""
    for name in engines():
        lines = load(name)
        assert lines.codec_of("auto") is None
        assert lines.codec_of("no such type") is None
        assert all(re.fullmatch(r"[a-z0-9_]*", codec) for codec in lines.dtypes.values())
    assert load("vllm").codec_of("fp8") == load("vllm").codec_of("torch.float8_e4m3fn") == "fp8_e4m3"
    assert load("llama_cpp").codec_of("nvfp4") == "ggml_nvfp4"
    assert load("vllm").codec_of("nvfp4") == "nvfp4"


def test_versions_outside_are_unknown() -> None:
    """Nobody has read vLLM 0.5 or 0.33, so their lines are not known."""
    lines = load("vllm")

    assert [lines.knows(v) for v in ("0.5.4", "0.6.6", "0.32.0", "0.32.1rc2", "0.33.0", "1.0")] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "("},
        {"pattern": "(?P<no_fact>x)"},
        {"set": {"no_fact": "x"}},
        {"has": "ab"},
        {"unknown": 1},
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, object]) -> None:
    """A pattern that does not compile, a group that is no fact, a literal that finds everything: an error at once."""
    good: dict[str, object] = {
        "id": "x",
        "has": "tokens",
        "pattern": r"(?P<tokens>\d{1,9}) tokens",
        "means": "room",
        "source": {"kind": "log", "ref": "x"},
    }
    body = {
        "schema": "kvgate.log-lines/1",
        "engine": "x",
        "title": "X",
        "how_to_log": "",
        "known_since": "0",
        "known_until": "1",
        "dtypes": {},
    }
    LogLines.model_validate({**body, "line": [good]})

    with pytest.raises(ValueError, match="line"):
        LogLines.model_validate({**body, "line": [good | change]})


def test_units_are_suffixes() -> None:
    """`available_gib` is the fact `available` in bytes; a name without a unit is itself."""
    assert fact_name("available_gib") == ("available", 2**30)
    assert fact_name("k_mib") == ("k", 2**20)
    assert fact_name("suggested_bytes") == ("suggested", 1)
    assert fact_name("tokens") == ("tokens", 1)
    assert FACTS["available"] == "bytes"


def test_an_unknown_engine_is_an_error() -> None:
    """The message names the engines whose lines are known."""
    with pytest.raises(UserError, match="allowed: llama_cpp, sglang, trtllm, vllm"):
        load("mlx")
