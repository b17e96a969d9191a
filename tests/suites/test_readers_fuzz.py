"""Corpora and golden files of any bytes and encoding: read, or refused in one line that names file, line and fix."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.observation import Case
from kvgate.suites._encoding import encoding_of
from kvgate.suites._fidelity_corpus import read_corpus
from kvgate.suites._golden.reader import MAX_DEPTH, parse_prompts

#: The same examples in every run.
FUZZ = settings(max_examples=100, deadline=None, derandomize=True)
GERMAN = "Grüße aus Köln – die „Straße“ kostet 5 €.\nUnd noch eine Zeile, größer als die erste.\n"
FRENCH = "Où est l’élève ? Déjà là, à côté de la fenêtre, près du château.\n"


def corpus_of(folder: Path, data: bytes, name: str = "c/x.txt") -> Path:
    """A corpus of one file."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


def refusal(folder: Path) -> str:
    """The one line with which a corpus is refused."""
    with pytest.raises(UserError) as caught:
        read_corpus(folder)
    text = str(caught.value)
    assert "\n" not in text
    return text


@FUZZ
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(lambda s: s.encode("utf-16")))
def test_any_bytes_are_a_text_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A corpus of one file of any bytes: its text to the letter, or a line that names it."""
    folder = corpus_of(tmp_path_factory.mktemp("corpus"), data)
    try:
        (document,) = read_corpus(folder).documents
    except UserError as e:
        assert "\n" not in str(e)
        assert "x.txt" in str(e)
    else:
        assert document.text.encode() == data.removeprefix(b"\xef\xbb\xbf")
        assert "\0" not in document.text


@pytest.mark.parametrize(
    ("encoding", "named", "command"),
    [
        ("cp1252", "Windows-1252", "iconv -f WINDOWS-1252 -t UTF-8"),
        ("latin-1", "Windows-1252", "iconv -f WINDOWS-1252 -t UTF-8"),
        ("utf-16", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
        ("utf-16-le", "UTF-16LE", "iconv -f UTF-16LE -t UTF-8"),
        ("utf-16-be", "UTF-16BE", "iconv -f UTF-16BE -t UTF-8"),
        ("utf-32", "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    ],
)
def test_another_encoding_is_named_with_the_command_that_converts_it(
    tmp_path: Path, encoding: str, named: str, command: str
) -> None:
    """Of a corpus and of a golden file alike: what it seems to be, and the words for a shell."""
    text = GERMAN if encoding != "latin-1" else GERMAN.translate({ord(c): "-" for c in "–„“€"})
    for body in (text, "plain words of ASCII\n" + text):
        said = refusal(corpus_of(tmp_path, body.encode(encoding)))
        assert f"it seems to be {named};" in said
        assert f"{command} {tmp_path}/c/x.txt > NEW.txt" in said
    prompt = json.dumps({"id": "a", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False)
    with pytest.raises(UserError, match=f"^mine.jsonl:[12]: .*seems to be {named}; convert it: {command} mine.jsonl"):
        parse_prompts(prompt.encode(encoding), "mine.jsonl")


@FUZZ
@given(st.sampled_from([GERMAN, FRENCH]), st.integers(0, 60), st.integers(1, 40))
def test_windows_1252_is_seen_in_any_part_of_a_text(text: str, begin: int, length: int) -> None:
    """Wherever a text is cut, what is not UTF-8 of it seems to be Windows-1252."""
    part = ("All of this was typed on an old machine. " + text[begin : begin + length] + " The end.").encode("cp1252")
    try:
        part.decode("utf-8")
    except UnicodeDecodeError:
        assert encoding_of(part) == "WINDOWS-1252"


@pytest.mark.parametrize(
    "data",
    [
        GERMAN.encode() * 5 + "ü".encode()[:1] + b" and so on",  # damaged, not in another encoding
        "Съешь же ещё этих мягких французских булок".encode("koi8-r"),
        "いろはにほへと ちりぬるを".encode("shift_jis"),
        b"PK\x03\x04\x14\x00\x08\x00\xff\xfe",
        b"\x81\x8d\x8f words",  # no character of Windows-1252
    ],
    ids=["damaged", "koi8", "shift_jis", "zip", "undefined"],
)
def test_nothing_is_guessed_of_other_bytes(tmp_path: Path, data: bytes) -> None:
    """Damaged UTF-8, other alphabets and archives are no Windows-1252: the fix names no command."""
    said = refusal(corpus_of(tmp_path, data))
    assert "seems" not in said
    assert said.endswith("save it as UTF-8, or move it away")


def test_the_line_is_named(tmp_path: Path) -> None:
    """The line as an editor counts, whatever ends it, and the byte in the file behind a byte order mark too."""
    for end in (b"\n", b"\r\n", b"\r"):
        data = b"\xef\xbb\xbf" + end.join([b"one", b"two", b"thr\xe9e"])
        said = refusal(corpus_of(tmp_path, data))
        assert f"(byte {data.index(0xE9)}) on line 3" in said
    assert "has a NUL byte on line 2: no text" in refusal(corpus_of(tmp_path, b"one\ntwo\0"))


def test_empty_texts_are_left_out_by_name(tmp_path: Path) -> None:
    """An empty file, one of blanks and one of a byte order mark say so; a corpus of nothing else is refused."""
    for name, data in (("a.txt", b""), ("b.txt", b" \r\n\t"), ("c.txt", b"\xef\xbb\xbf")):
        corpus_of(tmp_path, data, f"c/{name}")
    assert "holds no usable text: c/a.txt: empty" in refusal(tmp_path)
    corpus_of(tmp_path, b"\rwords\r", "d/x.txt")
    corpus = read_corpus(tmp_path)
    assert [d.text for d in corpus.documents] == ["\rwords\r"]
    assert corpus.skipped == ("c/a.txt: empty", "c/b.txt: empty", "c/c.txt: empty")


def test_what_is_no_file_is_no_text(tmp_path: Path) -> None:
    """A pipe, a device and links that lead to themselves are passed by; a link to a folder is named, not followed."""
    corpus_of(tmp_path / "corpus", b"words")
    os.mkfifo(tmp_path / "corpus" / "pipe.txt")
    (tmp_path / "corpus" / "null.txt").symlink_to("/dev/null")
    (tmp_path / "corpus" / "self.txt").symlink_to("self.txt")
    (tmp_path / "corpus" / "c" / "up").symlink_to("..")
    corpus_of(tmp_path / "other", b"more words")
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "other" / "c")

    corpus = read_corpus(tmp_path / "corpus")

    assert [d.name for d in corpus.documents] == ["c/x.txt"]
    assert [line.partition(":")[0] for line in corpus.skipped] == ["c/up", "linked"]


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A category that the system does not let us list must not be missing in silence."""
    corpus_of(tmp_path, b"words")
    corpus_of(tmp_path, b"words", "shut/x.txt")
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # not chmod: root looks into everything
    assert f"corpus folder {tmp_path}/shut cannot be read: Permission denied" in refusal(tmp_path)


def test_a_file_that_goes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed between the listing and the reading: one line, no traceback."""
    path = corpus_of(tmp_path, b"words") / "c" / "x.txt"
    real = Path.read_bytes

    def gone(self: Path) -> bytes:
        path.unlink()
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert "x.txt cannot be read: No such file or directory" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["a\nb.txt", "a\rb.txt", "a\x1b[31m.txt", "a\u2028b.txt"])
def test_names_that_would_break_a_line_are_refused(tmp_path: Path, name: str) -> None:
    """A document's name goes into the store and the report; one with a line break or an escape is to be renamed."""
    said = refusal(corpus_of(tmp_path, b"words", f"c/{name}"))
    assert "holds a line break or a control character; rename it" in said
    assert "\x1b" not in said


def line(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def test_what_passes_the_reader_can_be_stored() -> None:
    """Nested as deep as the reader takes, a prompt becomes a case; what is deeper ends here, not in the store."""
    for levels in (1, MAX_DEPTH // 2, MAX_DEPTH):
        data = b'{"id": "a", "messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}],'
        data += b'"checks": {"calls": [{"name": "f", "arguments": {"x": ' + b"[" * levels + b"]" * levels + b"}}]}}"
        try:
            (prompt,) = parse_prompts(data, "f")
        except UserError as e:
            assert levels == MAX_DEPTH
            assert str(e) == f"f:1: nested too deep; {MAX_DEPTH} levels are allowed"
        else:
            assert levels < MAX_DEPTH
            Case.make("golden", cluster="a", category="", body=prompt.model_dump(mode="json", by_alias=True))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (line(schema={}).replace(b"{}", b'{"maximum": 1e999}'), "1e999 is larger than any number"),
        (line(schema={}).replace(b"{}", b'{"maximum": ' + b"9" * 5000 + b"}"), "a number of 5000 digits"),
        (line().replace(b'"id"', b'"id": "b", "id"'), "key 'id' stands twice in one object"),
        (line(schema={}).replace(b"{}", b"[" * 300 + b"]" * 300), "nested too deep"),
    ],
    ids=["infinite", "digits", "twice", "deep"],
)
def test_json_that_others_read_differently_is_refused(data: bytes, says: str) -> None:
    """Numbers that nothing holds, a key twice and towers of brackets are named by their line."""
    with pytest.raises(UserError, match=says) as caught:
        parse_prompts(line(id="first") + b"\n" + data, "f")
    assert str(caught.value).startswith("f:2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_as_on_any_machine(end: bytes) -> None:
    """A golden file with the line ends of Unix, Windows and old Macs has the same prompts and line numbers."""
    assert [p.id for p in parse_prompts(end.join([line(id="a"), b"", line(id="b")]), "f")] == ["a", "b"]
    with pytest.raises(UserError, match=r"^f:3: id 'a' is also on line 1"):
        parse_prompts(end.join([line(id="a"), b"", line(id="a")]), "f")


BROKEN = st.sampled_from(
    [b"1e999", b"NaN", b"\0", b"\xff", b"\\ud800", b'"id":1,', b"[" * 70, b"]", b"{", b"\r", b"\n"]
)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 400), BROKEN), min_size=1, max_size=3))
def test_a_broken_golden_file_is_one_line(places: list[tuple[int, bytes]]) -> None:
    """Nonsense at any place of a good file: prompts that can be stored, or one line with file and line number."""
    data = line(id="a") + b"\n" + line(id="b", schema={"type": "object"}, max_tokens=5)
    for at, junk in places:
        data = data[:at] + junk + data[at:]
    try:
        prompts = parse_prompts(data, "f")
    except UserError as e:
        assert str(e).startswith(("f:1: ", "f:2: ", "f:3: ", "f:4: ", "f:5: ", "f: no prompt"))
        assert "\n" not in str(e)
    else:
        for prompt in prompts:
            json.dumps(prompt.model_dump(mode="json"), allow_nan=False).encode()
