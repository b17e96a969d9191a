"""Every rule of the linter fires where it should, and not one step beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvgate.enginefacts.facts import load
from kvgate.lint.pages import rules_table
from kvgate.lint.run import rules
from lint.lint_kit import ids, run
from lint.rule_cases import CASES, FILES

ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp")
TROUBLE = {row.id for engine in ENGINES for row in load(engine).trouble}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the files that cases name; their names end as a JSON file's."""
    for name, body in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (damaged / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    return tmp_path


def _run(root: Path, text: str, options: dict) -> set[str]:
    return ids(run(root, re.sub(r"\{(\w+_json)\}", r"{\1}.json", text), **options))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_fires_and_its_near_miss_does_not(root: Path, name: str) -> None:
    """The first text has the finding; the second, one change away, has it not."""
    (fires, options), (near, other) = CASES[name]

    assert name in _run(root, fires, dict(options))
    assert name not in _run(root, near, dict(other))


def test_every_rule_has_a_case() -> None:
    """No rule is registered without a text that fires it; rows of facts are fired from their own conditions."""
    assert {r.name for r in rules()} == set(CASES) | TROUBLE
    assert not set(CASES) & TROUBLE


def test_every_rule_says_what_why_how_and_where_from() -> None:
    """Each has a title, a reason, a fix and a source, in words without a full stop at the end."""
    for r in rules():
        assert r.title and r.why and r.fix and r.source.ref, r.name
        assert not r.title.endswith(".") and not r.fix.endswith("."), r.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", r.name)


def test_the_page_of_rules_holds_each_once() -> None:
    """The generated table has one row a rule, and no cell breaks it."""
    table = rules_table().splitlines()

    assert len(table) == len(rules()) + 2
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in table)


def test_the_documentation_lists_the_rules() -> None:
    """docs/lint.md holds the generated table as it is."""
    text = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()

    assert text.split("<!-- rules -->\n")[1].split("<!-- /rules -->")[0] == rules_table()
