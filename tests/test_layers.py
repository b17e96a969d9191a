"""An import may only point down the layers of the design."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "kvgate"

#: What each block may import, beside itself and core. If a test here fails, you have added an arrow: either the code
#: belongs into another block, or the design changes, and then this table does, in the same commit.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "formats": set(),
    "models": set(),
    "hardware": set(),
    "enginefacts": set(),
    "evidence": set(),
    "stats": set(),
    "store": set(),
    "methods": {"formats"},
    "plan": {"formats", "models", "hardware", "enginefacts", "methods"},
    "launch": {"formats", "models", "hardware", "enginefacts"},
    "lint": {"formats", "models", "hardware", "enginefacts"},
    "engines": {"formats", "models", "enginefacts", "plan"},
    "suites": {"formats", "stats"},
    "bench": {"stats"},
    "gate": {"stats"},
    "rollout": {"stats", "enginefacts"},
    "report": set(),
    "testing": {"engines", "suites", "stats", "formats", "methods", "models"},
    "campaign": {
        "formats",
        "models",
        "enginefacts",
        "evidence",
        "stats",
        "store",
        "plan",
        "engines",
        "suites",
        "gate",
        "report",
    },
    "cli": {
        "formats",
        "methods",
        "models",
        "hardware",
        "enginefacts",
        "evidence",
        "store",
        "plan",
        "launch",
        "lint",
        "gate",
        "report",
        "campaign",
    },
}
FILES = sorted(SRC.rglob("*.py"))


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and name of every kvgate module that a file imports, wherever the import stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.lineno, node.module)]
            if node.module == "kvgate":
                found += [(node.lineno, f"kvgate.{a.name}") for a in node.names]
    return [(line, name) for line, name in found if name.startswith("kvgate.")]


def offences(block: str, source: str, path: str) -> list[str]:
    """Imports in `source` that point up or sideways, with the line and the reason."""
    bad = []
    for line, name in imported(ast.parse(source)):
        target = name.split(".")[1]
        if target in ALLOWED and target not in {block, "core"} | ALLOWED[block]:
            bad.append(f"{path}:{line}: {block} imports {name}, but may import only core {sorted(ALLOWED[block])}")
    return bad


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    """No module imports from a layer above its own or from a neighbour without an arrow."""
    block = path.relative_to(SRC).parts[0]
    if block.endswith(".py"):
        return

    assert block in ALLOWED, f"{block} is not in the table of layers"
    assert not offences(block, path.read_text(), str(path))


def test_an_upward_import_is_found() -> None:
    """The check sees imports inside functions and `from kvgate import x`."""
    assert offences("stats", "def f():\n    from kvgate.gate import policy\n", "x.py")
    assert offences("core", "from kvgate import cli\n", "x.py")
    assert not offences("gate", "from kvgate.stats import power\n", "x.py")


@pytest.mark.parametrize("module", ["kvgate", "kvgate.cli.main", "kvgate.plan", "kvgate.models"])
def test_cold_start_is_light(module: str) -> None:
    """The package, its command line and the planner start without the heavy libraries."""
    heavy = ["numpy", "scipy", "sqlalchemy", "alembic", "altair", "torch", "xllamacpp", "aiohttp", "jsonschema"]
    code = f"import sys, {module}; print(*[m for m in {heavy!r} if m in sys.modules])"

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == ""
