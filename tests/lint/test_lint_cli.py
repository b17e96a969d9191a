"""`kvgate lint`: exit codes, the four formats, and text of strangers that stays text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.cli.main import main
from kvgate.core.errors import UserError
from kvgate.lint.judged import Judged
from kvgate.lint.run import Options, lint, rules
from kvgate.lint.show.document import document, sarif
from kvgate.lint.show.lines import github_lines, text_lines
from lint.lint_kit import run

BAD = "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8_e5m2 --attention-backend FLASH_ATTN"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["lint", BAD], 1),
        (["lint", "vllm serve x --kv-cache-dtype fp8_e4m3"], 0),
        (["lint", "vllm serve x --kv-cache-dtype fp8_e5m2"], 0),
        (["lint", "vllm serve 'x"], 2),
        (["lint", "make me a coffee"], 2),
        (["lint"], 2),
        (["lint", BAD, "--device", "h1000"], 2),
        (["lint", BAD, "--engine", "caffe"], 2),
        (["lint", BAD, "--engine-version", "new"], 2),
        (["lint", BAD, "--format", "xml"], 2),
        (["lint", BAD, "--log", "nowhere.log"], 2),
        (["lint", "--list-rules"], 0),
    ],
)
def test_exit_codes(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """1 for an error finding, 0 without, 2 and one line for what cannot be linted."""
    assert main(argv) == code
    err = capsys.readouterr().err

    assert len(err.splitlines()) == (1 if code == 2 else 0)


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON document has the fields of the contract, and nothing else is on stdout."""
    assert main(["lint", BAD, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)

    assert body["schema"] == "kvgate.lint/1" and body["engine"] == "vllm"
    fields = {"id", "severity", "message", "why", "fix", "where", "versions", "source"}
    assert all(fields <= set(f) for f in body["findings"])
    assert {f["severity"] for f in body["findings"]} <= {"error", "warning", "info"}


def test_every_rule_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """--list-rules names each rule once, in both forms."""
    main(["lint", "--list-rules", "--json"])
    body = json.loads(capsys.readouterr().out)

    assert [r["id"] for r in body["rules"]] == [r.name for r in rules()]


def test_sarif(tmp_path: Path) -> None:
    """Each result has a rule that is described, a level of SARIF, and a place in a file."""
    path = tmp_path / "run me.sh"
    path.write_text(f"#!/bin/sh\n{BAD}\n")

    body = sarif(lint(str(path)), "1.0")

    (log,) = body["runs"]
    described = {r["id"] for r in log["tool"]["driver"]["rules"]}
    for result in log["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert result["ruleId"] in described and result["level"] in ("error", "warning", "note")
        assert place["artifactLocation"]["uri"].endswith("run%20me.sh") and place["region"]["startLine"] == 2


def test_sarif_describes_rules_and_not_their_findings() -> None:
    """A service keeps one description a rule: it is the rule's own title, whatever was found."""
    titles = {r.name: r.title for r in rules()}

    (log,) = sarif(lint(f"{BAD}\nvllm serve x --kv-cache-dtype int8 --kv-cache-dtype int4"), "1.0")["runs"]

    described = log["tool"]["driver"]["rules"]
    assert {r["id"]: r["shortDescription"]["text"] for r in described} == {r["id"]: titles[r["id"]] for r in described}
    assert len(described) >= 3


def test_a_file_of_scales_is_judged_as_what_it_is(tmp_path: Path) -> None:
    """Alone, it brings no option that anybody wrote: only its own rules speak."""
    path = tmp_path / "kv_scales.json"
    scales = {"0": {"0": 0.02, "1": 0.03}}
    body = {"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": scales}}
    path.write_text(json.dumps(body))

    assert not lint(str(path)).findings
    assert not lint(str(path), Options("vllm")).findings


def test_many_unknown_options_do_not_take_minutes() -> None:
    """Names are held against the known ones for the first two hundred only, and each once."""
    text = "vllm serve x " + " ".join(f"--kv-cache-dtyp{i} fp8" for i in range(4000))

    assert len(lint(text).findings) == 200


def test_github_annotations(tmp_path: Path) -> None:
    """One workflow command a finding, and text of the file cannot start another."""
    path = tmp_path / "a,b.sh"
    path.write_text("vllm serve x --kv-cache-dtype 'bad%0A::error::x\n::error::y'\n")

    lines = github_lines(lint(str(path)))

    assert lines and all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    assert all("\n" not in line for line in lines)
    assert any("a%2Cb.sh" in line and "line=1" in line and "%250A" in line for line in lines)


def test_strangers_text_is_one_line(tmp_path: Path) -> None:
    """Control characters and bidi overrides of a file do not reach a terminal."""
    path = tmp_path / "x.sh"
    path.write_text("vllm serve x --kv-cache-dtype 'fp9\x1b[31m\u202e[bold]'\n")

    report = lint(str(path))

    text = "\n".join(text_lines(report)) + json.dumps(document(report), ensure_ascii=False)
    assert "fp9" in text and "\x1b" not in text and "\u202e" not in text


def test_a_version_that_nobody_read(tmp_path: Path) -> None:
    """An error of a known version is a warning for an unknown one, which is said; a broken file stays broken."""
    known = run(tmp_path, "vllm serve x --kv-cache-dtype int8", engine_version="0.32.0")
    unknown = run(tmp_path, "vllm serve x --kv-cache-dtype int8", engine_version="0.99.0")
    broken = run(tmp_path, "vllm serve {zero}", engine_version="0.99.0")

    assert (known.exit_code, unknown.exit_code, broken.exit_code) == (1, 0, 1)
    assert any("has not been read" in u for u in unknown.unchecked)
    assert any(f.id == "vllm-plain-int8" and f.severity == "warning" for f in unknown.findings)


def test_a_table_of_one_version_is_no_error_for_another(tmp_path: Path) -> None:
    """Backends were read in 0.32.0: for 0.31.0 the same finding is a warning that says so."""
    report = run(tmp_path, BAD, engine_version="0.31.0")

    found = next(f for f in report.findings if f.id == "vllm-backend-dtype")
    assert found.severity == "warning" and "read in 0.32.0 only" in found.why


def test_lint_starts_light() -> None:
    """Neither numpy nor torch nor a database is imported to lint."""
    code = (
        "import sys; from kvgate.lint.run import lint; lint('vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8');"
        "print(*[m for m in ('numpy', 'torch', 'scipy', 'sqlalchemy', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == ""


@pytest.mark.parametrize(
    ("decision", "severity"), [("PASS", None), ("FAIL", "error"), ("INCONCLUSIVE", "warning"), ("INVALID", "warning")]
)
def test_the_newest_verdict_counts(decision: str, severity: str | None) -> None:
    """A FAIL of kvgate's own is an error, whatever was decided before; a PASS says nothing."""
    old = Judged("Qwen3-32B", "vllm", "fp8_e4m3", "PASS", "r1")
    new = Judged("Qwen3-32B", "vllm", "fp8_e4m3", decision, "r2")

    report = lint("vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8_e4m3", Options(judged=(old, new)))

    found = [f.severity for f in report.findings if f.id == "no-valid-verdict"]
    assert found == ([severity] if severity else [])


def test_a_store_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty store has no verdict; one that is not there is usage."""
    from kvgate.store.open import open_store

    path = tmp_path / "runs.db"
    open_store(path).close()

    assert main(["lint", "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8_e4m3", "--store", str(path)]) == 0
    assert "no-valid-verdict" in capsys.readouterr().out
    assert main(["lint", "vllm serve x", "--store", str(tmp_path / "nowhere.db")]) == 2


PLAIN = [
    "vllm serve Qwen/Qwen3-32B",
    "vllm serve Qwen/Qwen3-32B --kv-cache-dtype bfloat16 --attention-backend FLASH_ATTN --max-model-len 32768",
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --attention-backend fa3",
    "llama-server -m model.gguf -c 8192 -fa on --port 8080 -ngl 99 --jinja",
    "trtllm-serve Qwen/Qwen3-32B --tp_size 2",
    "llama-bench -m model.gguf -fa 0,1 -p 512 -n 128",
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --dp 2 --speculative-algo NGRAM",
    "vllm serve C:\\models\\qwen --max-model-len 4096",
    "docker run --rm -p 8000:8000 vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-32B --tensor-parallel-size 2",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_commands_have_no_findings(text: str) -> None:
    """A command without a quantized cache has nothing to say about one."""
    report = lint(text)

    assert [f.id for f in report.findings] == []


@pytest.mark.parametrize(
    ("text", "version", "rule", "severity"),
    [
        ("sglang serve x --kv-cache-dtype fp4_e2m1", "0.5.23", "sglang-fp4-e2m1", "error"),
        ("sglang serve x --kv-cache-dtype fp4_e2m1", "0.5.6", "sglang-fp4-e2m1", "warning"),
        ("sglang serve x --int8-kv-cache", "0.5.6", "sglang-int8-kv-cache-flag", "warning"),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve x", "0.32.0", "vllm-backend-variable", "error"),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve x", "0.10.2", "vllm-backend-variable", "info"),
    ],
)
def test_what_is_gone_was_there_once(text: str, version: str, rule: str, severity: str) -> None:
    """Words and variables that older releases took are no error for them: only the newest was read in full."""
    found = {f.id: f.severity for f in lint(text, Options(engine_version=version)).findings}

    assert found[rule] == severity


@pytest.mark.parametrize("text", ["echo vllm serve x --kv-cache-dtype int8", "man vllm serve", "pkill -f 'vllm serve'"])
def test_to_speak_of_a_command_is_not_to_start_it(text: str) -> None:
    """Nothing is started there, so there is nothing to lint."""
    with pytest.raises(UserError, match="starts no engine"):
        lint(text)
