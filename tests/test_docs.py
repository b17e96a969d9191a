"""What the docs say is what the code does."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from kvgate.cli import pages
from kvgate.core import registry

ROOT = Path(__file__).parent.parent
DOCS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_readme_numbers_are_computed() -> None:
    """Every `>>>` of the README gives what stands below it."""
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)

    assert result.attempted >= 3
    assert result.failed == 0


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_the_real_run_is_shown(page: str) -> None:
    """The page holds a run's output, with a verdict for both candidates of the demo."""
    block = (ROOT / page).read_text().split("<!-- real-run -->")[1].split("<!-- /real-run -->")[0]

    assert "q8_0: PASS (smoke: not a ship decision)" in block
    assert "q4_0: FAIL" in block


@pytest.mark.parametrize("name", pages.PAGES)
def test_generated_pages_are_fresh(name: str) -> None:
    """`make docs` would change nothing."""
    assert (ROOT / "docs" / name).read_text() == pages.PAGES[name](), "run `make docs`"


def test_every_verb_has_its_help() -> None:
    """The page of the command line follows what is registered."""
    listed = [" ".join(verb) for verb in pages.verbs()]

    assert {"", "check", "models", "models get", "plan", "policy check"} <= set(listed)


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links point at files that are there."""
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("kind", ["suite", "rule"])
def test_everything_registered_is_explained(kind: str) -> None:
    """A suite or rule without a word in the docs fails here."""
    text = "\n".join(p.read_text() for p in DOCS if p.name != "registered.md")
    missing = [name for name in registry.discover(kind) if f"`{name}`" not in text and f"*{name}*" not in text]

    assert not missing


def test_every_module_says_what_it_is() -> None:
    """Each module that holds code opens with a docstring."""
    bare = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if text.strip() and not text.lstrip().startswith('"""'):
            bare.append(str(path))
    assert not bare
