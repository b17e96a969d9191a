"""The worked example of CONTRIBUTING.md: the file on the page is a whole codec, as part of kvgate and as a plug-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.core import registry

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
CHECK = PAGE.split("Hold it to its contract")[1].split("```python\n")[1].split("```")[0]
INSIDE = "import kvgate.formats.blocks as blocks; blocks.__path__.append({folder!r})\n"


def example() -> str:
    """The file on the page."""
    return PAGE.split("<!-- q6_0 -->\n```python\n")[1].split("```")[0]


def ran(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """A new interpreter, so that nothing of this one's registry is seen or changed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT / "src"))), "COLUMNS": "160"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def inside(tmp_path: Path) -> str:
    """Code that puts the file beside our own block files, as saving it there would."""
    (tmp_path / "q6_0.py").write_text(example())
    return INSIDE.format(folder=str(tmp_path))


@pytest.fixture
def plug_in(tmp_path: Path) -> Path:
    """An installed package with the file in it and the entry point of the page."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "q6_0.py").write_text(example())
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    toml = PAGE.split('[project.entry-points."kvgate"]\n')[1].split("```")[0]
    (metadata / "entry_points.txt").write_text("[kvgate]\n" + toml.replace('"', ""))
    return tmp_path


def test_the_file_passes_the_conformance_check(inside: str) -> None:
    """`check_codec` as the page calls it, torch's bytes among it: every promise holds, and the bound is reached."""
    done = ran(inside + CHECK)

    assert done.returncode == 0, done.stderr
    assert "numpy and torch: the same bytes" in done.stdout
    assert 0.98 <= float(done.stdout.split()[-1]) <= 1


def test_it_is_shown_as_a_plug_in(plug_in: Path) -> None:
    """With the entry point, `kvgate formats show q6_0` draws it: bits, bytes in order, all 64 codes, the source."""
    done = ran("from kvgate.cli.main import run; run()", plug_in)
    shown = ran(
        "import sys; sys.argv[1:] = ['formats', 'show', 'q6_0']\nfrom kvgate.cli.main import run; run()", plug_in
    )

    assert done.returncode == 2  # no verb: the command itself works
    assert shown.returncode == 0, shown.stderr
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "size 6.5 bits per element in rows of 128; 32 in 26 B" in lines
    assert "scales f16 for 32" in lines
    assert "source spec: CONTRIBUTING.md" in lines
    assert "bytes 2..9 elements 0..31, 2 bits each, low bits first" in lines
    assert "bytes 10..25 bits 7..4 elements 16..31; bits 3..0 elements 0..15" in lines
    assert "0x00 -32 -31 -30 -29 -28 -27 -26 -25 -24 -23 -22 -21 -20 -19 -18 -17" in lines
    assert "0x30 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31" in lines


def test_it_is_in_the_table_and_priced(plug_in: Path) -> None:
    """The table lists it, and a recipe with it costs 26 bytes for 32 elements."""
    code = (
        "from kvgate.core.geometry import LayerGeometry\n"
        "from kvgate.core.recipe import parse\n"
        "from kvgate.methods.spec import storage_of\n"
        "layer = LayerGeometry(0, 'full_attention', 8, 128, 128)\n"
        "size = storage_of(parse('q6_0').k, 'k').slot_bytes(layer, 'k')\n"
        "from kvgate.cli.main import main\n"
        "main(['formats', '--json']); print(size)"
    )
    done = ran(code, plug_in)

    assert done.returncode == 0, done.stderr
    *document, size = done.stdout.strip().splitlines()
    rows = {row["name"]: row for row in json.loads("\n".join(document))["codecs"]}
    assert rows["q6_0"]["bits_per_element"] == 6.5
    assert int(size) == 8 * 128 // 32 * 26


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (("codes & 15)", "codes >> 2)"), "bound"),
        (("block_bytes=26", "block_bytes=27"), "block_bytes"),
        (("* (0.5 +", "* (0.75 +"), "too wide"),
    ],
)
def test_a_mistake_in_it_is_found(tmp_path: Path, mistake: tuple[str, str], said: str) -> None:
    """The check of the page would notice a shifted nibble, a wrong size, a bound that is too wide."""
    assert mistake[0] in example()
    (tmp_path / "q6_0.py").write_text(example().replace(*mistake))
    done = ran(INSIDE.format(folder=str(tmp_path)) + CHECK.replace("import torch", "# import torch"))

    assert done.returncode != 0
    assert said in done.stderr


def test_our_own_registry_has_no_example() -> None:
    """The example is an example."""
    assert "q6_0" not in registry.discover("codec")


def test_links_of_the_page() -> None:
    """Relative links lead to files that are there, and so do the files that it names."""
    named = re.findall(r"`((?:tests|docs)/[\w/]+\.\w+)`", PAGE)

    assert named
    for target in [*re.findall(r"\]\(([^)#]+)\)", PAGE), *named]:
        assert (ROOT / target).exists(), target
