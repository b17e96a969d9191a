"""The corpus that comes with kvgate, and the user's by --corpus."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.suites import _fidelity_corpus
from kvgate.suites._fidelity_corpus import read_corpus

CATEGORIES = {"chat", "code", "languages", "long", "science", "tools"}


def write(folder: Path, **texts: str) -> Path:
    """`a__b="text"` becomes a/b.txt."""
    for name, text in texts.items():
        path = folder / (name.replace("__", "/") + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_the_shipped_corpus_has_six_categories_of_two_or_more() -> None:
    """Six categories, at least two documents each, named so that the first two stay first."""
    documents = read_corpus(None).documents
    count = Counter(d.category for d in documents)
    assert set(count) == CATEGORIES
    assert min(count.values()) >= 2
    for category in CATEGORIES:
        names = [d.name for d in documents if d.category == category]
        assert names == sorted(names)
        assert [n.split("/")[1][:3] for n in names[:2]] == ["01-", "02-"]
    assert len({d.text for d in documents}) == len(documents)


def test_shipped_documents_are_long_and_not_repetitive() -> None:
    """Every text could hold 300 tokens, the long ones 2,500, and none is padding: deflate leaves over a third."""
    for d in read_corpus(None).documents:
        data = d.text.encode()
        # No tokenizer that people use spends under 1 token on 6 bytes of such texts.
        assert len(data) >= 6 * (1_800 if d.category == "long" else 300), d.name
        assert len(zlib.compress(data, 9)) > len(data) / 3, d.name
        assert "\r" not in d.text


def test_repetition_would_be_noticed() -> None:
    """The bound above is not met by one sentence written forty times."""
    padded = "The reservoir above the town was almost empty that autumn. " * 40
    assert len(zlib.compress(padded.encode(), 9)) < len(padded) / 3


@pytest.mark.engine
def test_shipped_documents_have_enough_tokens_of_the_demo_model(smollm2: Path) -> None:
    """By SmolLM2's own tokenizer every document has at least 300 tokens, and a long one at least 2,500."""
    from fidelity_engine_lab import tokenizer

    with tokenizer(smollm2) as tokenize:
        for d in read_corpus(None).documents:
            assert len(tokenize(d.text).ids) >= (2_500 if d.category == "long" else 300), d.name


def test_a_folder_is_a_category(tmp_path: Path) -> None:
    """The top folder names the category; order is by path; hidden and other files are left alone."""
    write(tmp_path, b__z="one", b__a="two", a__deep__x="three", top="four")
    (tmp_path / "b" / ".hidden.txt").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("no")
    (tmp_path / "b" / "data.json").write_text("{}")
    (tmp_path / "b" / "READ.MD").write_text("five")
    corpus = read_corpus(tmp_path)
    assert [(d.name, d.category, d.text) for d in corpus.documents] == [
        ("a/deep/x.txt", "a", "three"),
        ("b/READ.MD", "b", "five"),
        ("b/a.txt", "b", "two"),
        ("b/z.txt", "b", "one"),
        ("top.txt", "", "four"),
    ]
    assert corpus.skipped == ()


def test_a_category_fits_into_a_metric_label(tmp_path: Path) -> None:
    """Characters that a metric id cannot hold become underscores."""
    write(tmp_path, **{"a{b},c=d e__x": "text"})
    assert read_corpus(tmp_path).documents[0].category == "a_b_c_d_e"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """A file saved with a UTF-8 byte order mark starts with its first letter."""
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfHello")
    assert read_corpus(tmp_path).documents[0].text == "Hello"


def test_a_link_out_of_the_folder_is_read(tmp_path: Path) -> None:
    """A linked file is read like any other: reading is all that happens to it."""
    (tmp_path / "elsewhere.txt").write_text("text")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "x.txt").symlink_to(tmp_path / "elsewhere.txt")
    (tmp_path / "corpus" / "broken.txt").symlink_to(tmp_path / "nothing.txt")
    assert [d.text for d in read_corpus(tmp_path / "corpus").documents] == ["text"]


def test_a_huge_file_is_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document over the size limit is named with what to do, and never read."""
    monkeypatch.setattr(_fidelity_corpus, "MAX_DOCUMENT_BYTES", 10)
    write(tmp_path, big="x" * 11, small="x" * 10)
    corpus = read_corpus(tmp_path)
    assert [d.name for d in corpus.documents] == ["small.txt"]
    assert corpus.skipped == ("big.txt: larger than 8 MiB; split it",)


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_bad_corpora_are_refused_in_one_line(tmp_path: Path) -> None:
    """A missing folder, a file instead of one, no text in it and a file that is not UTF-8 are named with the fix."""
    with pytest.raises(UserError, match="does not exist") as missing:
        read_corpus(tmp_path / "no\nsuch")
    one_line(missing)
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(UserError, match="is not a folder"):
        read_corpus(tmp_path / "file.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no text file.*\.txt"):
        read_corpus(tmp_path / "empty")
    (tmp_path / "empty" / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8 \(byte 2\)") as latin:
        read_corpus(tmp_path / "empty")
    assert "convert" in one_line(latin)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the system will not let us read is a user error, not a traceback."""
    write(tmp_path, x="text")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # not chmod: root reads everything
    with pytest.raises(UserError, match=r"x\.txt cannot be read: Permission denied"):
        read_corpus(tmp_path)
