"""`kvgate evidence`: the answer, the page, the document, and one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli import pages
from kvgate.cli._evidence_show import number_line, subject
from kvgate.cli.main import main
from kvgate.evidence.claim import Number
from kvgate.evidence.family import family_of
from kvgate.evidence.load import claims
from kvgate.evidence.match import NOT_TESTED
from kvgate.models.hub_catalogue import hub_config_names


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("KVGATE_OFFLINE", "1")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["evidence", *args])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = run(capsys, *args, "--json")
    assert (code, err) == (0, "")
    loaded: dict[str, Any] = json.loads(out)
    return loaded


def test_the_issues_question(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-30B-A3B with FP8: nobody tested the model itself; its siblings' claims follow with their distance."""
    code, out, err = run(capsys, "Qwen/Qwen3-30B-A3B", "--kv", "fp8_e4m3", "--all")

    assert (code, err) == (0, "")
    assert f"Qwen/Qwen3-30B-A3B with fp8_e4m3: {NOT_TESTED}" in out
    assert "same family and size, other training: Qwen3-30B-A3B-Instruct-2507" in out
    assert out.index("Same family and size, other training") < out.index("\nSame family\n")
    assert "uncalibrated: all scales at 1.0" in out


def test_a_model_that_was_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """For SGLang's own model the answer is that others have tested it, and the numbers stand there."""
    _, out, _ = run(capsys, "openai/gpt-oss-120b", "--kv", "fp4_mx_block16", "--engine", "sglang")

    assert "tested by others" in out
    assert "aime25, accuracy: 0.7533 -> 0.3533" in out


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Versioned, with unknown as null, every claim with caveats in words and its distance."""
    found = document(capsys, "Qwen/Qwen3-30B-A3B", "--kv", "fp8", "--engine", "vllm", "--context", "131072")

    assert found["schema"] == "kvgate.evidence/1"
    assert found["recipe"] == "fp8_e4m3"
    assert (found["tested"], found["why"]) == (False, NOT_TESTED)
    assert found["model"]["family"] == "qwen3_moe"
    first = found["claims"][0]
    assert first["match"]["model"] == "same"
    for claim in found["claims"]:
        assert claim["source"]["ref"]
        assert all(c["meaning"] for c in claim["caveats"])
        assert claim["match"]["carries"]
    nothing_asked = document(capsys, "Qwen/Qwen3-32B")
    assert nothing_asked["tested"] is None
    assert nothing_asked["engine"] is None


def test_the_whole_list(capsys: pytest.CaptureFixture[str]) -> None:
    """--list has every claim, on the terminal and in JSON."""
    _, out, _ = run(capsys, "--list")
    listed = document(capsys, "--list")["claims"]

    assert [c["id"] for c in listed] == list(claims())
    assert all(f"  {id_}\n" in out for id_ in claims())


def test_the_nearest_first_and_the_rest_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten claims are shown; --all shows the others, and the short page says how many there are."""
    _, short, _ = run(capsys, "Qwen/Qwen3-30B-A3B", "--kv", "fp8_e4m3")
    _, long, _ = run(capsys, "Qwen/Qwen3-30B-A3B", "--kv", "fp8_e4m3", "--all")
    n = len(document(capsys, "Qwen/Qwen3-30B-A3B", "--kv", "fp8_e4m3")["claims"])

    assert f"{n - 10} more claims carry less" in short
    assert short.count("carries: ") == 10
    assert long.count("carries: ") == n


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminals_lose_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """At 40 and 80 columns every word is there, and no line is longer."""
    _, wide, _ = run(capsys, "openai/gpt-oss-20b", "--kv", "q8_0")
    monkeypatch.setenv("COLUMNS", str(width))
    _, narrow, _ = run(capsys, "openai/gpt-oss-20b", "--kv", "q8_0")

    assert max(len(line) for line in narrow.splitlines()) <= width
    assert "".join(narrow.split()) == "".join(wide.split())


def test_files_and_catalogue_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder's own layers count; a catalogue name needs no download."""
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "head_dim": 16,
        "vocab_size": 100,
        "max_position_embeddings": 1024,
    }
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))

    own = document(capsys, str(folder), "--kv", "fp8_e4m3")["model"]
    named = document(capsys, "smollm2", "--kv", "q8_0")

    assert (own["name"], own["family"], own["layers_read"]) == ("my-model", "qwen3", True)
    assert (named["model"]["family"], named["tested"]) == ("smollm2", False)


def test_every_model_of_the_catalogue_can_be_asked_about() -> None:
    """Each shipped hub id gives a subject, whether or not its layers can be sized."""
    for name in hub_config_names():
        found = subject(name)
        assert found.name == name
        assert not found.family or found.family == getattr(family_of(name), "id", found.family)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["Qwen/Qwen3-32B", "--engine", "vllm", "--engine-version", "zz"], "'zz' is no version of vllm"),
        (["Qwen/Qwen3-32B", "--engine-version", "0.32.0"], "--engine-version without --engine"),
        ([], "no MODEL"),
        (["--list", "Qwen/Qwen3-32B"], "--list takes no MODEL"),
        (["--list", "--kv", "q8_0"], "--list takes no MODEL"),
        ([""], "is empty"),
        (["a\0b"], "is empty, or no name"),
        (["http://127.0.0.1:8000"], "is a URL"),
        (["./nothing.gguf"], "there is no file"),
        (["a/b/c"], "there is no file"),
        (["nosuchmodel"], "unknown model 'nosuchmodel'"),
        (["gpt-os-20b"], "gpt-oss-20b"),
        (["smollm2", "--kv", "fp9"], "unknown codec 'fp9'"),
        (["smollm2", "--kv", "q8_0/x=1"], "is not an option"),
        (["smollm2", "--kv", "native"], "is the baseline"),
        (["smollm2", "--engine", "foo"], "unknown engine 'foo'; allowed: vllm"),
        (["smollm2", "--context", "0"], "--context"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    """Each mistake is one line on stderr, exit 2, nothing on stdout."""
    code, out, err = run(capsys, *args)

    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_names_of_files_that_are_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file of another kind is refused by its reader, in one line."""
    (tmp_path / "x.gguf").write_bytes(b"not a model")

    code, out, err = run(capsys, str(tmp_path / "x.gguf"), "--kv", "q8_0")

    assert (code, out, err.count("\n")) == (2, "", 1)


def test_numbers_in_words() -> None:
    """A pair, a range, a bound and the counts behind them; all digits that were printed."""
    assert number_line(Number(task="aime", metric="accuracy", baseline=0.7733, candidate=0.7333, n=30, repeats=8)) == (
        "aime, accuracy: 0.7733 -> 0.7333 (30 items, 8 runs each)"
    )
    assert number_line(Number(task="aa", metric="bb", candidate=97, candidate_to=98, unit="%")) == "aa, bb: 97 to 98 %"
    assert number_line(Number(task="aa", metric="bb", candidate=0.04, below=True)) == "aa, bb: under 0.04"
    assert "741565 tokens" in number_line(Number(task="aa", metric="bb", candidate=741565, unit="tokens"))


@pytest.mark.parametrize("page", ["evidence.md", "corrections.md"])
def test_pages_hold_every_claim(page: str) -> None:
    """The generated pages have a row for every claim, and for every correction."""
    text = pages.PAGES[page]()
    wanted = [i for i, p in claims().items() if page == "evidence.md" or p.claim.correction is not None]

    assert len(wanted) > 15
    for id_ in wanted:
        assert id_ in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "|---" not in line]
    assert {line.replace("\\|", "").count("|") for line in rows} <= {3, 6}


def test_evidence_starts_light() -> None:
    """Neither the claims nor the verb import the heavy libraries."""
    heavy = ["numpy", "scipy", "sqlalchemy", "alembic", "altair", "torch", "aiohttp"]
    code = (
        "import sys\nfrom kvgate.cli.main import main\nmain(['evidence', 'Qwen/Qwen3-32B', '--kv', 'fp8'])\n"
        f"print('heavy:', *[m for m in {heavy!r} if m in sys.modules])"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip().endswith("heavy:")
