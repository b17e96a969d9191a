"""`kvgate formats` from the outside: table, pages, comparisons of files, every kind of wrong input, the docs page."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvgate
from kvgate.cli._formats_page import formats_page
from kvgate.cli.main import main
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.spec import codecs
from kvgate.methods.spec import methods
from kvgate.models.read_tensor import open_tensor

ROOT = Path(__file__).parent.parent.parent
Array = np.ndarray[Any, Any]


class Ran:
    """Exit code and streams of one command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *args: str | Path) -> None:
        self.code = main(["formats", *map(str, args)])
        self.out, self.err = capsys.readouterr()

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.splitlines()]

    @property
    def document(self) -> Any:
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def values(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """K in bfloat16, V in float16, Q in float32, and tensors that are no K or V."""
    path = tmp_path / "kv.safetensors"
    x = values(2, 3, 40, 64)
    tensors = {
        "k": x.astype(ml_dtypes.bfloat16),
        "v": x.astype(np.float16),
        "q": x,
        "ids": np.arange(64),
        "bytes": np.zeros((2, 64), np.uint8),
        "wide": x.astype(np.float64),
        "empty": np.zeros((2, 0, 64), np.float32),
        "one": np.float32([3.0]).reshape(()),
        "odd": values(4, 48),
    }
    save_file(tensors, path)
    return path


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_table_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """Every codec and method has its line; the engines' words stand in the codec's."""
    ran = Ran(capsys)

    assert ran.code == 0
    firsts = {line.split()[0] for line in ran.lines if line}
    assert {c.name for c in codecs()} | {m.name for m in methods()} <= firsts
    assert any(
        line.startswith("q8_0 8.5 32 in 34 B 7.57e-06 to 8319008 f16 for 32 llama_cpp q8_0") for line in ran.lines
    )
    assert any(line.startswith("kivi 3 3 2 or 4 bits") for line in ran.lines)


def test_the_table_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One document; bits, bytes and engines agree with the registry."""
    document = Ran(capsys, "--json").document

    assert document["schema"] == "kvgate.formats/1"
    rows = {row["name"]: row for row in document["codecs"]}
    assert set(rows) == {c.name for c in codecs()}
    assert rows["nvfp4"]["bits_per_element"] == 4.5
    assert rows["fp8_e4m3"]["engines"]["vllm"] == ["fp8_e4m3", "fp8"]
    assert rows["q8_1"]["refused"]
    assert rows["fp8_ds_mla"]["row_bytes"] == {"576": 656, "512": 584}
    stored = {row["name"]: row for row in document["methods"]}
    assert set(stored) == {m.name for m in methods()}
    assert stored["kivi"]["bits_per_element"]["k"] == {"64": 3.0, "128": 3.0}
    assert stored["kivi"]["parameters"]["bits"] == {"values": "2|4", "default": 2}
    assert stored["hadamard"]["bits_per_element"] == {}


# -- one of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [c.name for c in codecs()] + [m.name for m in methods()])
def test_each_has_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Name and description first, its source, and the words of its file; the same as JSON."""
    ran = Ran(capsys, "show", name)
    document = Ran(capsys, "show", name, "--json").document

    assert ran.code == 0
    assert ran.lines[0] == f"{name}: {document['description']}"
    assert f"source {document['source']}" in ran.lines
    assert document["schema"] == "kvgate.formats.show/1"
    assert document["text"]


def test_a_page_draws_layout_and_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """nvfp4: bytes in order, all 16 codes, what does not fit, who names it."""
    ran = Ran(capsys, "show", "nvfp4")

    assert "Layout of 64 elements in 36 bytes (found by flipping every bit)" in ran.lines
    assert "bytes 0..31 elements 0..63, 4 bits each, low bits first" in ran.lines
    assert "bytes 32..35 scales of elements 0..63, one for every 16" in ran.lines
    assert "0x0 0 0.5 1 1.5 2 3 4 6 -0 -0.5 -1 -1.5 -2 -3 -4 -6" in " ".join(ran.lines).replace(" 0x8", "")
    assert "overflow saturate (the caller's choice; engines saturate)" in ran.lines
    assert "engines sglang nvfp4, trtllm nvfp4, vllm nvfp4" in ran.lines


@pytest.mark.parametrize(
    ("name", "number"),
    [("fp8_e4m3", "e4m3fn"), ("fp8_e4m3fnuz", "e4m3fnuz"), ("fp8_e5m2", "e5m2"), ("fp8_e5m2fnuz", "e5m2fnuz")],
)
def test_a_page_has_all_256_codes(name: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The grid on the terminal has the positive half and says what the other is; JSON has all of them, exactly."""
    spec = FLOAT_SPECS[number]
    ran = Ran(capsys, "show", name)
    grid = [line.split() for line in ran.lines if re.match(r"0x[0-7][08] ", line)]
    shown = [float(cell) for row in grid for cell in row[1:]]

    assert [row[0] for row in grid] == [f"0x{first:02X}" for first in range(0, 128, 8)]
    np.testing.assert_allclose(shown, spec.values[:128], rtol=1e-5)
    codes = Ran(capsys, "show", name, "--json").document["layouts"][0]["codes"]
    got = [float(c) for c in codes]
    assert np.array_equal(got, spec.values, equal_nan=True)
    assert [math.copysign(1, g) for g in got if g == 0] == [math.copysign(1, v) for v in spec.values if v == 0]
    zero = "NaN" if number.endswith("fnuz") else "-0"
    assert f"0x80 is {zero}; from 0x81 on the same, with a minus sign" in ran.lines


def test_a_method_page_has_parameters_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Values, defaults, bits of K and of V."""
    ran = Ran(capsys, "show", "kivi")

    assert "K 3 bits at head_dim 64, 3 bits at head_dim 128" in ran.lines
    assert ":bits= 2|4, default 2" in ran.lines
    assert ":group= 32|64|128, default 32" in ran.lines


@pytest.mark.parametrize(
    ("word", "found"), [("fp8", "fp8_e4m3"), ("float16", "f16"), ("NVFP4", "nvfp4"), ("float8_e5m2", "fp8_e5m2")]
)
def test_words_that_mean_one_codec_everywhere(word: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As in recipes."""
    assert Ran(capsys, "show", word).lines[0].startswith(f"{found}:")


@pytest.mark.parametrize(
    ("word", "near"), [("nvpf4", "nvfp4"), ("q8", "q8_0"), ("kivy", "kivi"), ("hadamar", "hadamard")]
)
def test_an_unknown_name_suggests_the_nearest(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit 2."""
    ran = Ran(capsys, "show", word)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"did you mean {near!r}?\n")


def test_a_hostile_name_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a name do not reach the terminal."""
    ran = Ran(capsys, "show", "q8\n\x1b[31m_0‮")

    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "\x1b" not in ran.err


# -- comparing -------------------------------------------------------------------------------------------------------


def test_a_comparison_is_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each codec in the order given, then its worst channels."""
    asked = ("q8_0", "fp8_e4m3", "kivi:bits=2:group=32/residual=32", "f32")
    options = [part for name in asked for part in ("--codec", name)]
    ran = Ran(capsys, "compare", file, "--key", "k", *options, "--channels", "2")
    x = values(2, 3, 40, 64).astype(ml_dtypes.bfloat16).astype(np.float32)
    q8 = x - kvgate.codecs["q8_0"].roundtrip(x)
    db = 10 * np.log10((x.astype(np.float64) ** 2).sum() / (q8.astype(np.float64) ** 2).sum())

    assert ran.code == 0, ran.err
    assert ran.lines[0].startswith("k: [2, 3, 40, 64] bf16, largest magnitude ")
    rows = [line for line in ran.lines if line.split(" ")[0] in asked]
    assert [row.split()[0] for row in rows] == list(asked)
    assert rows[0].split()[:3] == ["q8_0", "8.5", f"{db:.2f}"]
    assert rows[3].split()[:3] == ["f32", "32", "exact"]
    assert "32 of 40 tokens encoded, the others native" in rows[2]
    assert sum(line == "head channel SQNR dB max error largest" for line in ran.lines) == len(asked)


@pytest.mark.parametrize(("key", "dtype"), [("k", ml_dtypes.bfloat16), ("v", np.float16), ("q", np.float32)])
def test_tensors_are_read_exactly(key: str, dtype: Any, file: Path) -> None:
    """Every slice is what the file says, widened."""
    want = values(2, 3, 40, 64).astype(dtype).astype(np.float32).reshape(-1, 64)
    tensor = open_tensor(file, key)

    assert tensor.shape == (2, 3, 40, 64)
    for start, stop in ((0, 240), (0, 1), (17, 93), (239, 240)):
        assert np.array_equal(tensor.rows(start, stop), want[start:stop])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2", "bf16"])
def test_npy_files_are_read_exactly(dtype: str, order: Any, tmp_path: Path) -> None:
    """Both orders of memory and of bytes; bfloat16 as ml_dtypes saves it."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bf16" else np.dtype(dtype)
    x = np.asarray(values(2, 3, 5, 32).astype(kind), order=order)
    np.save(tmp_path / "x.npy", x)
    tensor = open_tensor(tmp_path / "x.npy")

    want = np.ascontiguousarray(x).astype(np.float32).reshape(-1, 32)
    assert np.array_equal(tensor.rows(0, 30), want)
    assert np.array_equal(tensor.rows(7, 11), want[7:11])


def test_a_comparison_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure, NaN and infinity never as tokens."""
    ran = Ran(capsys, "compare", file, "--key", "v", "--side", "v", "--codec", "fp8", "--codec", "f32", "--json")
    first, second = ran.document["results"]

    assert ran.document["schema"] == "kvgate.formats.compare/1"
    assert (ran.document["key"], ran.document["shape"], ran.document["dtype"]) == ("v", [2, 3, 40, 64], "f16")
    assert first["codec"] == "fp8"
    assert first["elements"] == 2 * 3 * 40 * 64
    assert first["scale"] == {"min": 1.0, "max": 1.0}
    assert second["sqnr_db"] is None
    assert second["sqnr_note"] == "exact"
    assert "worst_channels" not in first


def test_values_that_are_lost_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A NaN and an infinity in x, and the blocks that they take with them."""
    x = values(4, 64)
    x[1, 3], x[2, 40] = np.nan, np.inf
    np.save(tmp_path / "x.npy", x)
    ran = Ran(capsys, "compare", tmp_path / "x.npy", "--codec", "q8_0")
    document = Ran(capsys, "compare", tmp_path / "x.npy", "--codec", "q8_0", "--json").document["results"][0]

    assert "1 NaN and 1 infinite values are left out of all figures" in ran.lines
    back = kvgate.codecs["q8_0"].roundtrip(x)
    lost = int((np.isfinite(x) & ~np.isfinite(back)).sum())
    assert lost == 62
    assert any(f"{lost} finite values came back as NaN or infinity" in line for line in ran.lines)
    assert document["lost"] == lost
    assert document["sqnr_db"] is None
    assert (document["input_nan"], document["input_inf"]) == (1, 1)
    assert document["output_nan"] + document["output_inf"] == 64


@pytest.mark.parametrize("name", ["q8_0", "kivi"])
def test_memory_stays_bounded(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four times the heads take the same memory: a slice of it, or one head's tokens, is all that is held."""
    peaks = []
    for heads in (2, 8):
        x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (heads, 4096, 128))
        x[...] = 1
        x[:, ::7] = 3
        x.flush()
        size = x.nbytes
        del x
        Ran(capsys, "compare", tmp_path / "x.npy", "--codec", name)
        tracemalloc.start()
        ran = Ran(capsys, "compare", tmp_path / "x.npy", "--codec", name)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert ran.code == 0
    # What grows are the channels' figures; half a MiB of them is far less than a head's 2 MiB.
    assert peaks[1] < peaks[0] + size / 32


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--key", "kk", "--codec", "q8_0"), "has no tensor 'kk'; allowed: k, bytes, empty"),
        (("--codec", "q8_0"), "holds 9 tensors; allowed: bytes, empty, ids, k"),
        (("--key", "ids", "--codec", "q8_0"), "holds 'ids' as I64; allowed: F32, F16, BF16; convert it first"),
        (("--key", "bytes", "--codec", "q8_0"), "holds 'bytes' as U8"),
        (("--key", "wide", "--codec", "q8_0"), "holds 'wide' as F64"),
        (("--key", "empty", "--codec", "q8_0"), "has no elements: there is nothing to compare"),
        (("--key", "one", "--codec", "q8_0"), "is a single number"),
        (("--key", "odd", "--codec", "q8_0"), "a head of 48 is not a multiple of 32 (nearest: 32 or 64)"),
        (("--key", "odd", "--codec", "kivi"), "(heads, tokens, head_dim)"),
        (("--key", "k"), "no codec to compare"),
        (("--key", "k", "--codec", "q9_0"), "unknown codec or method 'q9_0'"),
        (("--key", "k", "--codec", "q9_0"), "did you mean 'q"),
        (("--key", "k", "--codec", "hadamard"), "hadamard is a transform; write it behind a codec, as q8_0+hadamard"),
        (("--key", "k", "--codec", "q8_0+rot"), "unknown method 'rot'"),
        (("--key", "k", "--codec", "kivi:bits=5"), "kivi: bits=5 is not possible; allowed: bits=2|4"),
        (("--key", "k", "--codec", "kivi:bits"), "'bits' is not a parameter"),
        (("--key", "k", "--codec", ""), "is empty"),
        (("--key", "k", "--codec", "q8_0:head"), "q8_0 finds its own scales"),
        (("--key", "k", "--codec", "fp8@checkpoint"), "a tensor alone has no scales @checkpoint"),
        (("--key", "k", "--codec", "fp8@unit", "--scale", "2"), "the recipe says @unit"),
        (("--key", "k", "--codec", "fp8", "--scale", "zero"), "unknown scale 'zero'; allowed: unit, amax, a number"),
        (("--key", "k", "--codec", "fp8", "--scale", "0"), "the scale 0 is not positive"),
        (("--key", "k", "--codec", "fp8", "--scale", "nan"), "the scale nan is not positive"),
        (("--key", "k", "--codec", "fp8", "--scale", "-1"), "the scale -1 is not positive"),
        (("--key", "k", "--codec", "q8_0", "--scale", "amax"), "none of these codecs takes --scale amax"),
        (("--key", "k", "--codec", "q8_0", "--side", "q"), "unknown side 'q'; allowed: k, v"),
        (("--key", "k", "--codec", "q8_0", "--channels", "-1"), "--channels -1 is negative"),
        (("--key", "k", "--codec", "q8_0", "--channels", "x"), "Invalid value for '--channels'"),
        (("--key", "k", "--codec", "native"), "native stores values as they are"),
        (("--key", "k", "--codec", "kvquant"), "needs tables from a calibration"),
        (("--key", "k", "--codec", "fp8_ds_mla"), "stores rows of 576"),
    ],
)
def test_wrong_input_is_one_line(
    args: tuple[str, ...], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, the thing, the allowed values or the fix, nothing on stdout."""
    ran = Ran(capsys, "compare", file, *args)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_all_is_checked_before_anything_is_computed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A codec that does not fit is refused before the first one takes its minutes."""
    monkeypatch.setattr("kvgate.cli._formats_compare.compare_side", lambda *a, **k: pytest.fail("computed"))
    ran = Ran(capsys, "compare", file, "--key", "odd", "--codec", "fp8", "--codec", "q8_0")

    assert ran.code == 2
    assert "not a multiple of 32" in ran.err


def npy(header: str, data: bytes = b"") -> bytes:
    """A .npy file with this header."""
    text = header.encode() + b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def saved(x: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, x, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.npy", None, "cannot read"),
        ("text.npy", b"hello", "is not a safetensors file"),
        ("empty.safetensors", b"", "is not a safetensors file"),
        ("ints.npy", saved(np.arange(64).reshape(2, 32)), "holds int64; allowed: float32, float16, bfloat16"),
        ("wide.npy", saved(np.ones((2, 32))), "holds float64"),
        ("complex.npy", saved(np.ones((2, 32), np.complex64)), "holds complex64"),
        ("bool.npy", saved(np.ones((2, 32), bool)), "holds bool"),
        ("objects.npy", saved(np.array([{}, 1], object), allow_pickle=True), "holds object"),
        ("fields.npy", saved(np.zeros(4, [("a", "f4"), ("b", "f4")])), "holds "),
        ("zero.npy", saved(np.ones((2, 0, 32), np.float32)), "has no elements"),
        ("zero_f.npy", saved(np.ones((0, 32), np.float32, order="F")), "has no elements"),
        ("number.npy", saved(np.float32(3)), "is a single number"),
        ("cut.npy", saved(np.ones((64, 32), np.float32))[:-5], "is cut off"),
        ("cut_head.npy", saved(np.ones((64, 32), np.float32))[:40], "is not a usable .npy file"),
        ("version.npy", b"\x93NUMPY\x09\x00" + b" " * 200, "is not a usable .npy file"),
        ("negative.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 32), }"), "its shape is [-1, 32]"),
        ("code.npy", npy("{'descr': __import__('os'), 'fortran_order': False, 'shape': (2,), }"), "not a usable"),
        ("huge.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 32), }"), "is cut off"),
    ],
)
def test_wrong_files_are_one_line(
    name: str, content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is unpickled, nothing is believed that the size does not bear out."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    ran = Ran(capsys, "compare", path, "--codec", "q8_0")

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_archives_and_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An .npz is named as what it is; a folder is no file."""
    np.savez(tmp_path / "x.npz", x=values(4, 32))
    archive = Ran(capsys, "compare", tmp_path / "x.npz", "--codec", "q8_0")
    folder = Ran(capsys, "compare", tmp_path, "--codec", "q8_0")
    device = Ran(capsys, "compare", "/dev/zero", "--codec", "q8_0")

    assert archive.code == folder.code == device.code == 2
    assert "it is no file" in device.err
    assert "is an archive" in archive.err
    assert "cannot read" in folder.err


def test_a_key_for_a_file_without_keys_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .npy file is one array."""
    np.save(tmp_path / "x.npy", values(4, 32))
    ran = Ran(capsys, "compare", tmp_path / "x.npy", "--key", "k", "--codec", "q8_0")

    assert ran.code == 2
    assert "leave out --key" in ran.err


def test_the_only_tensor_needs_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is named in the result."""
    save_file({"layers.0.k": values(4, 32)}, tmp_path / "x.safetensors")
    ran = Ran(capsys, "compare", tmp_path / "x.safetensors", "--codec", "q8_0")

    assert ran.code == 0
    assert ran.lines[0].startswith("layers.0.k: [4, 32] f32")


def test_json_stands_behind_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """Before it, it would be lost silently."""
    ran = Ran(capsys, "--json", "show", "q8_0")

    assert ran.code == 2
    assert "write kvgate formats show --json" in ran.err


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_fresh() -> None:
    """docs/formats.md is what the registry says today."""
    assert (ROOT / "docs" / "formats.md").read_text() == formats_page(), "run `make docs`"


def test_the_page_has_everything_that_is_registered() -> None:
    """Each codec in the table and among the drawings, each method with a link to its page; no block is left open."""
    page = formats_page()

    for c in codecs():
        assert f"| `{c.name}` |" in page
        assert f"\n{c.name}: " in page
    for m in methods():
        assert f"[`{m.name}`](methods/{m.name}.md)" in page
    assert page.count("<!--") == 1


def test_the_code_of_the_page_runs() -> None:
    """The example in Python holds what it asserts."""
    code = formats_page().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "formats.md", "exec"), names)

    assert names["packed"].shape == (1, 8, 32, 72)


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    """The command's module, and what plans need of these modules, leave numpy alone."""
    code = (
        "import sys, kvgate.cli.formats, kvgate.methods.compare, kvgate.methods.listing, kvgate.formats.describe, "
        "kvgate.models.read_tensor; print([m for m in ('numpy', 'torch', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
