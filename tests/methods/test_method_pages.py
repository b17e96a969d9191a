"""Every method has a page that says what, how many bytes, where from; the table of all methods is computed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch  # noqa: F401  (check_method compares with torch where it is loaded)

from kvgate.core.geometry import LayerGeometry
from kvgate.methods import spec
from kvgate.methods._method import StorageMethod
from kvgate.testing.method import check_method

DOCS = Path(__file__).parent.parent.parent / "docs" / "methods"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("method", spec.methods(), ids=lambda m: m.name)
def test_a_method_has_its_page(method: spec.Method) -> None:
    """The page's title has the name; it has bytes, a source, and every parameter."""
    text = (DOCS / f"{method.name}.md").read_text()

    assert f"`{method.name}`" in text.splitlines()[0]
    assert re.search(r"^## Bytes", text, re.MULTILINE)
    assert "\nSource: " in text or "source are those of" in text
    for parameter in getattr(method, "parameters", ()):
        assert f"`{parameter.name}`" in text or f"{parameter.name}=" in text


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_of_method_pages(path: Path) -> None:
    """Relative links lead to files that are there."""
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def row(method: StorageMethod) -> str:
    """One line of the table: bits an element of K and V at 64 and 128, SQNR of N(0, 1) values at 128."""
    cells = []
    for kv in ("k", "v"):
        bits = []
        for dim in (64, 128):
            layer = LayerGeometry(0, "full_attention", 8, dim, dim)
            slot = method.storage(kv, {}).slot_bytes(layer, kv)  # type: ignore[arg-type]
            bits.append(f"{8 * slot / 8 / dim:.2f}")
        wide = LayerGeometry(0, "full_attention", 8, 128, 128)
        db = method.expected_db(kv, method.read({}), wide)  # type: ignore[arg-type]
        cells += [" / ".join(bits), "" if db is None else f"{db:.1f}"]
    return f"| [`{method.name}`]({method.name}.md) | " + " | ".join(cells) + " |"


def test_the_table_of_methods_is_computed() -> None:
    """README.md of the pages lists all storage methods with their own numbers, and all transforms."""
    text = (DOCS / "README.md").read_text()
    rows = [row(m) for m in spec.methods() if isinstance(m, StorageMethod)]
    missing = [r for r in rows if r not in text]

    assert not missing, "put these lines into docs/methods/README.md:\n" + "\n".join(rows)
    assert text.count("| [`") == len(spec.methods())
    for method in spec.methods():
        assert f"[`{method.name}`]({method.name}.md)" in text


def test_the_example_of_a_new_method_works() -> None:
    """The code of adding-a-method.md is a whole method, and it passes the check."""
    text = (DOCS / "adding-a-method.md").read_text()
    code = text.split("<!-- example -->")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(code, "adding-a-method.md", "exec"), names)
    report = check_method(names["METHOD"])  # type: ignore[arg-type]

    assert len(report.db) >= 4
