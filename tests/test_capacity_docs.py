"""The capacity page and the README's section on it: examples run, tables and console blocks are what the code gives."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvgate.cli import _capacity_page as generator
from kvgate.core import registry
from kvgate.hardware.device import devices

ROOT = Path(__file__).parent.parent
CAPACITY, README = ROOT / "docs" / "capacity.md", ROOT / "README.md"
COUNTS = ("exact", "off", "refused")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples name start logs of this repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("page", "least"), [(CAPACITY, 60), (README, 12)], ids=lambda v: getattr(v, "name", ""))
def test_every_example_computes_what_stands_below_it(page: Path, least: int) -> None:
    """The doctests of both pages run the real planner."""
    result = doctest.testfile(str(page), module_relative=False)

    assert result.attempted >= least
    assert result.failed == 0


@pytest.mark.parametrize("page", [CAPACITY, README], ids=lambda p: p.name)
def test_generated_parts_are_fresh(page: Path) -> None:
    """Running the generator again changes nothing: tables as the code has them, commands as they print."""
    assert page.read_text() == generator.capacity_page(page.read_text(), ROOT), "run `make docs`"


def test_stale_parts_are_replaced_and_nothing_else() -> None:
    """A wrong figure in a table and in a console block comes back right; the text around them stays."""
    page = README.read_text()
    stale = page.replace("ideal: sequences                    7", "ideal: sequences                    8")
    assert stale != page

    assert generator.capacity_page(stale, ROOT) == page
    table = "before\n<!-- table: log_lines -->\nold\n<!-- /table -->\nafter"
    made = generator.capacity_page(table, ROOT)
    assert made.startswith("before\n") and made.endswith("\nafter") and "old" not in made and "| vLLM |" in made


def test_an_unknown_table_is_a_mistake() -> None:
    """A mark that names no table does not pass silently."""
    with pytest.raises(KeyError):
        generator.capacity_page("<!-- table: nothing -->\n<!-- /table -->", ROOT)


def test_the_articles_figures_stand_in_the_readme() -> None:
    """6 and 13, 7 and 15, 10 and 20, 11 and 22 sequences; 210 and 112 MiB."""
    section = README.read_text().split("## Plan capacity")[1].split("\n## ")[0]

    for figure in ("([6, 13], [7, 15])", "([10, 20], [11, 22])", "(210.0, 112.0)", "$ kvgate plan Qwen/Qwen3-32B"):
        assert figure in section


def test_everything_that_plans_is_in_a_table() -> None:
    """Every family, model type, device and engine rule has its row, with a source."""
    families = generator.families()
    for kind, words in (("config_family", "model_types"), ("family", "architectures")):
        for family in registry.discover(kind).values():
            if type(family).__module__.startswith("kvgate."):
                assert all(re.search(rf"[ ,]{re.escape(word)}[ ,]", families) for word in getattr(family, words))
    rows = {row.split(" | ")[0].removeprefix("| ") for row in generator.device_table().splitlines()}
    assert set(devices()) <= rows
    facts = generator.facts()
    assert all(f"| {engine} |" in facts for engine in registry.discover("engine_rule"))
    for text in (families, generator.device_table(), facts, generator.rules()):
        assert not [row for row in text.splitlines() if row.endswith("|  |")], "a row without a source"


def test_rule_and_source_are_told_apart() -> None:
    """What follows "Source:" goes into the source column, what follows its sentence stays with the rule."""
    rule, source = generator.rule_and_source(
        "name: one * two.\n\nMore.\nSources: a b.cpp; `x|y`. vLLM 0.32 differs. Source: c (see d.py). End."
    )

    assert rule == r"One \* two. More. vLLM 0.32 differs. End."
    assert source == "a b.cpp; `x|y`; c (see d.py)"


def test_the_peers_table_agrees_with_the_benchmark() -> None:
    """kvgate's row is computed here; every tool is asked about the same models, and the sums say so."""
    page = CAPACITY.read_text()
    rows = {
        cells[0]: [int(n) for n in cells[1:4]]
        for line in page.split("## Beside other planners")[1].split("\n## ")[0].splitlines()
        if len(cells := [c.strip() for c in line.strip("|").split("|")]) == 5 and cells[1].isdigit()
    }
    benchmark = _benchmark()
    models = benchmark.cases()
    got = subprocess.run(
        [sys.executable, str(benchmark.script("kvgate"))],
        input=benchmark.question(models),
        capture_output=True,
        text=True,
        check=True,
    )
    found = benchmark.answers(models, json.loads(got.stdout)["answers"])
    counts = benchmark.counts([benchmark.judged(c, a) for c, a in zip(models, found, strict=True)])

    assert set(rows) == {"kvgate", "kvfit 0.3.0", "hf-mem 0.5.6", "vramscout 0.7.0"}
    assert rows["kvgate"] == [counts[name] for name in COUNTS]
    assert {sum(row) for row in rows.values()} == {len(models)}


def _benchmark() -> ModuleType:
    """`benchmarks/plan.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("plan_benchmark", ROOT / "benchmarks" / "plan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
