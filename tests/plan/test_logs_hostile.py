"""Logs of unknown origin: bytes, pipes, giants, mutated lines. Only UserError, bounded cost, no number of nonsense."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.plan import log_text
from kvgate.plan.log_compare import settings_of
from kvgate.plan.log_text import MAX_LINE_CHARS, lines_of
from kvgate.plan.log_values import StartLog
from kvgate.plan.logs import MAX_FACTS, read_log

LOGS = Path(__file__).parent / "logs"
TEXTS = {p.name: p.read_text() for p in sorted(LOGS.glob("*.log"))}
H200 = TEXTS["vllm_0.32.0_h200.log"]


def read(source: str | Path) -> StartLog | None:
    """The log, with all that is made from it; None where it is refused in one line."""
    try:
        log = read_log(source)
    except UserError as e:
        assert "\n" not in str(e)
        return None
    settings_of(log)
    for fact in log.facts:
        assert not isinstance(fact.value, float) or abs(fact.value) < 2**61
    return log


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A file of any bytes is refused in one line."""
    path = tmp_path_factory.mktemp("bytes") / "x.log"
    path.write_bytes(data)

    assert read(path) is None


@given(st.text(max_size=400))
def test_random_text_is_refused(text: str) -> None:
    """Any text without an engine's line is refused in one line."""
    assert read(text) is None


@settings(max_examples=150)
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_mutated_logs_only_raise_usererror(name: str, data: st.DataObject) -> None:
    """Cut, doubled, shuffled and overwritten lines of every engine give a log or one line of refusal."""
    lines = TEXTS[name].splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        cut = data.draw(st.integers(0, len(line)))
        junk = data.draw(st.text(alphabet="0123456789.,-eEx ()'\x1b[mKGiB\r\0é٣", max_size=12))
        lines[at] = data.draw(st.sampled_from([line[:cut] + junk + line[cut:], line[:cut], line * 2, junk + "\n", ""]))
    if data.draw(st.booleans()):
        lines = data.draw(st.permutations(lines))

    read("".join(lines))


@settings(max_examples=150)
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_any_number_in_any_place(name: str, data: st.DataObject) -> None:
    """Zero, giants and nonsense in the place of any number give a log or one line of refusal."""
    import re

    text = TEXTS[name]
    numbers = list(re.finditer(r"\d[\d,.]*", text))
    m = data.draw(st.sampled_from(numbers))
    other = data.draw(
        st.sampled_from(["0", "-1", "9" * 18, "9" * 400, "1e308", "nan", "inf", ",,,", "1,2,3", "0.0", ""])
    )

    read(text[: m.start()] + other + text[m.end() :])


@pytest.mark.parametrize(
    ("number", "tokens"),
    [("506,176", 506_176), ("506176", 506_176), ("5061,76", None), (",506", None), ("٥٠٦", None), ("9" * 20, None)],
)
def test_a_number_that_is_none(number: str, tokens: int | None) -> None:
    """Misplaced commas, other scripts' digits and more tokens than any memory holds are not read."""
    line = next(x for x in H200.splitlines() if "GPU KV cache size: " in x)
    alone = line[: line.index(", Maximum")]

    got = read(H200.replace(line, alone.replace("506,176", number)))

    assert got is not None, "the rest of the log still counts"
    assert got.tokens == tokens


def test_line_ends_and_colours_do_not_matter() -> None:
    """CRLF, progress bars with lone carriage returns and coloured words give the same facts."""
    plain = read_log(H200)
    windows = read_log(H200.replace("\n", "\r\n"))
    bars = read_log(H200.replace("\n", "\r 10%|#| 1/9\r 99%|##| 8/9\n"))
    long = read_log(
        H200.replace("(EngineCore pid=90) INFO 11-02 10:01:10", "\r 50%|####    |" * 9000 + "\r(EngineCore) INFO")
    )
    colours = read_log(H200.replace("KV cache size: ", "\x1b[1mKV cache size: \x1b[32m"))

    facts = [(f.name, f.value) for f in plain.facts]
    for other in (windows, bars, long, colours):
        assert [(f.name, f.value) for f in other.facts] == facts
        assert [f.line for f in other.facts] == [f.line for f in plain.facts]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    """What a Windows shell writes is read too; a byte that is none is replaced."""
    path = tmp_path / "x.log"
    path.write_bytes(("préfix\n" + TEXTS["vllm_0.8.5_tp2.log"]).encode(encoding))

    got = read_log(path)

    assert got.tokens == 282_512
    version = got.fact("version")
    assert version is not None
    assert version.line == 5, "as an editor counts"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(b"x"), "gunzip -c"),
        (b"\x28\xb5\x2f\xfd123", "zstdcat"),
        (b"GGUF\0\0\0\3", "holds binary data"),
        (b"\x7fELF\2\1\1\0\0", "holds binary data"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, says: str) -> None:
    """A packed file names the tool that unpacks it; binary data is said to be that."""
    path = tmp_path / "x.log"
    path.write_bytes(data)

    with pytest.raises(UserError, match=says):
        read_log(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """No file, a folder, a name with a NUL: one line."""
    for path in (tmp_path / "none.log", tmp_path, Path("a\0b")):
        with pytest.raises(UserError, match="log"):
            read_log(path)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """A log may come through a pipe, which cannot be sought in."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(H200))
    writer.start()

    assert read_log(path).tokens == 506_176
    writer.join()


def test_a_giant_is_read_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of 2 GiB only head and tail are read; the start at the end counts, its lines count from the end."""
    monkeypatch.setattr(log_text, "HEAD_BYTES", 2**16)
    monkeypatch.setattr(log_text, "TAIL_BYTES", 2**16)
    path = tmp_path / "giant.log"
    banner = "(APIServer pid=1) INFO [api_utils.py:347]   █  version 0.26.0\n"
    with path.open("w") as f:
        f.write(banner + TEXTS["vllm_0.26.0_a100_auto.log"])
        f.write("x" * 2**16 + "\n")
        # A hole: 2 GiB that take no room on the disk.
        f.seek(2**31)
        f.write("\n" + "y" * 2**16 + "\n")
        f.write(banner + TEXTS["vllm_0.26.0_a100_fp8.log"])

    tracemalloc.start()
    got = read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (got.stored.k, got.tokens) == ("fp8_e4m3", 779_760)
    last = got.fact("tokens")
    assert last is not None
    assert last.line == -1
    # Head and tail, as text and as lines, are well under a hundredth of the file.
    assert peak < 2**31 / 100


def test_a_line_of_any_length_is_cut() -> None:
    """A line without an end costs no more than its first characters; what follows it is still read."""
    text = "x" * (3 * MAX_LINE_CHARS) + "\n" + H200

    lines = list(lines_of(text))

    assert len(lines[0].text) == MAX_LINE_CHARS
    assert lines[1].number == 2
    assert read_log(text).tokens == 506_176


def test_a_log_that_repeats_itself_is_bounded() -> None:
    """Ten thousand capacity lines do not become ten thousand times their facts without end."""
    line = next(x for x in H200.splitlines() if "GPU KV cache size: " in x) + "\n"

    got = read_log(line * (MAX_FACTS // 4 + 50))

    assert len(got.facts) <= MAX_FACTS + 4
    assert got.tokens == 506_176


@pytest.mark.parametrize(
    "line",
    [
        "KV cache size: " * 4000,
        "Using " + "A_" * 20_000 + " backend",
        "KvCacheConfig(" * 4000 + " dtype='",
        "Found incompatible backend(s) [" + "x" * 60_000,
        "llama_kv_cache: size = " + " " * 60_000 + " cells,",
        "args " + "kv_cache_dtype" * 4000,
        "Load weight end. " + "avail mem=" * 6000,
        "\x1b[" * 30_000,
        "(Worker" + "_A" * 30_000 + " pid=1) KV cache size: 5 tokens",
    ],
)
def test_no_line_is_slow(line: str, record_property: pytest.RecordProperty) -> None:
    """Lines that are made for backtracking are looked at a bounded number of times (a count, not a clock)."""
    import sys

    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        read((line + "\n") * 3)
    finally:
        sys.setprofile(None)
    record_property("calls", calls)

    # 145 rows, at most eight places of each literal, a handful of calls a place, three lines.
    assert calls < 145 * 8 * 6 * 3 + 20_000


def test_a_rank_has_no_say_in_keys() -> None:
    """A prefix of any text is one word of the rank, safe to print."""
    evil = "\x1b]0;evil\x07(x) Maximum concurrency for 16 tokens per request: 10.00x"

    got = read_log(f"(EngineCore_DP0 pid=1) GPU KV cache size: 160 tokens\n{evil}")

    assert {f.rank for f in got.facts} <= {"DP0", ""}
    assert not any("\x1b" in f.text or "\x07" in f.text for f in got.facts)
