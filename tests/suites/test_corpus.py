"""The corpus that comes with kvgate, and the user's by --corpus."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.suites import _fidelity_corpus
from kvgate.suites._fidelity_corpus import read_corpus
from kvgate.suites._golden.reader import read_prompts

CATEGORIES = {"chat", "code", "languages", "long", "science", "tools"}


def write(folder: Path, **texts: str) -> Path:
    """`a__b="text"` becomes a/b.txt."""
    for name, text in texts.items():
        path = folder / (name.replace("__", "/") + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


#: What `smoke` takes, with the size of each: numbers of earlier runs refer to exactly these texts.
SMOKE_BYTES = {
    "chat/01-bicycle-repair.txt": 3126,
    "chat/02-moving-abroad.txt": 3367,
    "code/01-python-scheduler.txt": 3457,
    "code/02-mixed-languages.txt": 2856,
    "languages/01-german-spanish.txt": 2802,
    "languages/02-japanese-chinese-russian.txt": 2881,
    "long/01-water-report.txt": 12390,
    "long/02-winter-station.txt": 11912,
    "science/01-tides.txt": 3076,
    "science/02-enzymes.txt": 3330,
    "tools/01-travel-agent.txt": 2761,
    "tools/02-database-incident.txt": 3064,
}
#: Corpus and prompts together, in bytes.
MAX_DATA_BYTES = 400_000
#: Texts that share this many words in a row were copied from one another.
COPIED_WORDS = 12


def test_the_shipped_corpus_has_six_categories_of_eight() -> None:
    """Six categories, eight documents each, numbered in the order in which a preset takes them; no text twice."""
    documents = read_corpus(None).documents
    assert Counter(d.category for d in documents) == dict.fromkeys(CATEGORIES, 8)
    for category in CATEGORIES:
        names = [d.name.split("/")[1] for d in documents if d.category == category]
        assert [n[:3] for n in names] == [f"0{i}-" for i in range(1, 9)]
    assert len({d.text for d in documents}) == len(documents) == 48


def test_the_first_two_of_each_category_stay_as_they_were() -> None:
    """The twelve documents of smoke, by name and size."""
    documents = read_corpus(None).documents
    first = {d.name: len(d.text.encode()) for d in documents if d.name.split("/")[1][:2] in ("01", "02")}
    assert first == SMOKE_BYTES


def test_no_document_borrows_from_another() -> None:
    """No run of twelve words stands in two documents."""
    seen: dict[tuple[str, ...], str] = {}
    for d in read_corpus(None).documents:
        words = re.findall(r"\w+", d.text.lower())
        for run in set(zip(*(words[i:] for i in range(COPIED_WORDS)), strict=False)):
            assert seen.setdefault(run, d.name) == d.name, " ".join(run)


def test_shipped_documents_are_long_and_not_repetitive() -> None:
    """Every text could hold 300 tokens, the long ones 1,100, and none is padding: deflate leaves over a third."""
    for d in read_corpus(None).documents:
        data = d.text.encode()
        # No tokenizer that people use spends under 1 token on 6 bytes of such texts.
        assert len(data) >= 6 * (1_100 if d.category == "long" else 300), d.name
        assert len(data) <= (13_000 if d.category == "long" else 4_000), d.name
        assert len(zlib.compress(data, 9)) > len(data) / 3, d.name
        assert "\r" not in d.text
        assert "\ufffd" not in d.text
        assert d.text.endswith("\n")
        assert unicodedata.normalize("NFC", d.text) == d.text, d.name


def test_the_shipped_data_stays_small() -> None:
    """Corpus and prompts are under 400 kB together."""
    prompts = files("kvgate.suites").joinpath("data/golden.jsonl").read_bytes()
    assert sum(len(d.text.encode()) for d in read_corpus(None).documents) + len(prompts) < MAX_DATA_BYTES


def test_the_categories_and_sizes_are_in_the_docs() -> None:
    """docs/suites.md names every category of the corpus and of the prompts, and the sizes of `default`."""
    page = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
    for category in CATEGORIES | {p.category for p in read_prompts(None)}:
        assert f"`{category}`" in page, category
    assert "48 documents" in page
    assert "80 prompts" in page


def test_repetition_would_be_noticed() -> None:
    """The bound above is not met by one sentence written forty times."""
    padded = "The reservoir above the town was almost empty that autumn. " * 40
    assert len(zlib.compress(padded.encode(), 9)) < len(padded) / 3


@pytest.mark.engine
def test_shipped_documents_have_enough_tokens_of_the_demo_model(smollm2: Path) -> None:
    """By SmolLM2's own tokenizer every document has 300 to 2,000 tokens, a long one 1,300 to 3,000."""
    from fidelity_engine_lab import tokenizer

    with tokenizer(smollm2) as tokenize:
        for d in read_corpus(None).documents:
            least, most = (1_300, 3_000) if d.category == "long" else (300, 2_000)
            assert least <= len(tokenize(d.text).ids) <= most, d.name


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
