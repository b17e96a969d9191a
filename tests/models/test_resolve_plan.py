"""MODEL of a plan: folder, configuration, GGUF in one file or in parts, catalogue name, hub id; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import TinyGguf, tiny_model
from tiny_safetensors import tiny

from kvgate.core.errors import UserError
from kvgate.models.read_config import read_config
from kvgate.models.resolve import resolve_plan_model

SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("KVGATE_OFFLINE", "1")


def _folder(tmp_path, config=SMALL, name="my-model"):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _refusal(text):
    with pytest.raises(UserError) as caught:
        resolve_plan_model(str(text))
    message = str(caught.value)
    assert "\n" not in message and "\x1b" not in message
    return message


def test_a_folder(tmp_path):
    """Layers from its configuration, weights from its headers, and its name."""
    folder = _folder(tmp_path)
    (folder / "model.safetensors").write_bytes(tiny(("w", "BF16", (8, 8))))

    model = resolve_plan_model(str(folder))

    assert (model.name, len(model.geometry.layers), model.weights_bytes) == ("my-model", 2, 128)
    assert model.origin == f"folder {folder}" and model.files == (folder / "config.json",)


def test_a_configuration_alone(tmp_path):
    """A file has no weights, and says so; the name is its own."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SMALL))

    model = resolve_plan_model(str(path))

    assert model.name == "mine" and model.weights is None and "no safetensors files" in model.weights_missing


def test_a_config_json_stands_for_its_folder(tmp_path):
    """The weights beside it are counted, and the folder names the model."""
    folder = _folder(tmp_path)
    (folder / "model.safetensors").write_bytes(tiny(("w", "F32", (4,))))

    model = resolve_plan_model(str(folder / "config.json"))

    assert (model.name, model.weights_bytes) == ("my-model", 16)


def test_what_modelopt_writes_beside_the_configuration_is_read(tmp_path):
    """hf_quant_config.json says FP8 for the cache; config.json does not."""
    folder = _folder(tmp_path)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"kv_cache_quant_algo": "FP8"}}))

    assert resolve_plan_model(str(folder)).geometry.kv_scheme == "fp8_e4m3"


def test_a_gguf_file(tmp_path):
    """Geometry and the tensor table's bytes, which are less than the file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model("llama"))

    model = resolve_plan_model(str(path))

    assert len(model.geometry.layers) == model.geometry.layer_count == 2
    assert model.weights_bytes and model.weights_bytes < path.stat().st_size
    assert "GGUF tensor table" in model.weights.how


def _parts(tmp_path, count, *, numbers=None):
    """A model split as llama-gguf-split does it: metadata in the first part, tensors in all."""
    paths = []
    for n in range(count):
        extra = [("split.no", "u16", n if numbers is None else numbers[n]), ("split.count", "u16", count)]
        path = tmp_path / f"big-{n + 1:05d}-of-{count:05d}.gguf"
        if n == 0:
            path.write_bytes(tiny_model("llama", extra=extra))
        else:
            path.write_bytes(TinyGguf(entries=extra, tensors=[(f"w{n}", (32,), (0, 1, 4))]).build())
        paths.append(path)
    return paths


@pytest.mark.parametrize("given_part", [0, 2])
def test_a_gguf_file_in_parts(tmp_path, given_part):
    """Any part stands for all; weights are those of all parts, metadata of the first."""
    paths = _parts(tmp_path, 3)
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(tiny_model("llama"))

    model = resolve_plan_model(str(paths[given_part]))

    assert len(model.geometry.layers) == 2 and model.files == tuple(paths)
    assert model.weights_bytes == resolve_plan_model(str(whole)).weights_bytes + 2 * 32 * 4


def test_a_missing_part_is_named(tmp_path):
    """Two of three parts would be two thirds of the weights."""
    paths = _parts(tmp_path, 3)
    paths[1].unlink()

    assert "big-00002-of-00003.gguf is missing" in _refusal(paths[0])


def test_parts_that_contradict_their_names_are_refused(tmp_path):
    """A part that was renamed, and a part without a number in its name."""
    paths = _parts(tmp_path, 2, numbers=[0, 0])
    assert "its name says" in _refusal(paths[0])

    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    assert "one of 2 parts" in _refusal(renamed)


def test_a_hub_id_comes_from_the_shipped_catalogue_when_offline():
    """The origin says which it was and why; the seed's example has its bytes per token and weights."""
    model = resolve_plan_model("Qwen/Qwen3-32B")

    assert sum(x.kv_heads * (x.k_dim + x.v_dim) * 2 for x in model.geometry.layers) == 262_144
    assert model.weights_bytes == 65_524_246_528
    assert "shipped catalogue" in model.origin and "KVGATE_OFFLINE is set" in model.origin


def test_an_existing_path_wins_over_a_hub_id(tmp_path, monkeypatch):
    """A folder that is named like a model of the catalogue is the folder."""
    (tmp_path / "Qwen").mkdir()
    _folder(tmp_path / "Qwen", name="Qwen3-32B")
    monkeypatch.chdir(tmp_path)

    assert len(resolve_plan_model("Qwen/Qwen3-32B").geometry.layers) == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a\0b", "no name or path"),
        ("x" * 5000, "no name or path"),
        ("https://example.org/model", "URL"),
        ("nobody", "unknown model"),
        ("./none/config.json", "there is no file"),
        ("none.gguf", "there is no file"),
        ("~nobody-here/x", "there is no file"),
        ("org/no-such-model", "not in the catalogue"),
        ("Qwen/../../etc/passwd", "no hub id"),
        ("Qwen/Qwen3-32B/", "no hub id"),
        ("Qwen//Qwen3-32B", "no hub id"),
        ("Qwen/Qwen3-32B\x1b[31m", "no hub id"),
        ("Qwen\\Qwen3", "no hub id"),
        ("Qwen/Qwen3 32B", "no hub id"),
        ("Qwen/a..b", "no hub id"),
        ("-x/y", "no hub id"),
        ("Qwen/" + "a" * 200, "no hub id"),
        ("Qwen/Qwen3.git", "no hub id"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(text, named):
    """Empty, path characters, URLs, unknown names: the message says which and what is allowed."""
    assert named in _refusal(text)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "it is empty"),
        (b"{", "not JSON"),
        (b"[1, 2]", "not an object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too big"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"{" + b'"a":{' * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"{" + b" " * (9 << 20) + b"}", "bytes"),
        (b"<!doctype html>", "web page"),
        (b"\x80\x02pickle", "pickle"),
        (b"GGUF\x03\0\0\0", "cut off"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "m.gguf", "model"])
def test_broken_files_are_said_in_one_line(tmp_path, data, named, name):
    """Whatever the file is called, what is wrong with it is named; nothing is a traceback."""
    path = tmp_path / name
    path.write_bytes(data)
    message = _refusal(path)

    assert str(path) in message
    if name == "config.json" and data[:1] in (b"{", b"["):
        assert named in message


def test_a_folder_that_is_no_model_says_what_lies_there(tmp_path):
    """Without config.json: GGUF files are offered, other formats are named."""
    folder = tmp_path / "f"
    folder.mkdir()
    assert "without config.json" in _refusal(folder)

    (folder / "params.json").write_text("{}")
    assert "params.json" in _refusal(folder)

    (folder / "x.gguf").write_bytes(b"")
    assert "x.gguf" in _refusal(folder)


def test_one_file_of_the_weights_is_refused(tmp_path):
    """A shard is no model; its folder is."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(tiny(("w", "F32", (2,))))

    assert "give the folder" in _refusal(path)


def test_a_device_is_no_model():
    """/dev/zero never ends."""
    assert "not a regular file" in _refusal("/dev/zero")


def test_an_unknown_tensor_type_leaves_the_weights_open(tmp_path):
    """The plan is made without weights, and says why."""
    path = tmp_path / "m.gguf"
    header = TinyGguf(
        entries=[
            ("general.architecture", "str", "llama"),
            ("llama.block_count", "u32", 1),
            ("llama.context_length", "u32", 64),
            ("llama.embedding_length", "u32", 128),
            ("llama.attention.head_count", "u32", 2),
            ("llama.vocab_size", "u32", 10),
        ],
        tensors=[("w", (32,), (250, 1, 1))],
    )
    path.write_bytes(header.build())

    model = resolve_plan_model(str(path))

    assert model.weights is None and "type 250" in model.weights_missing


CONFIGS = sorted((Path(__file__).parents[2] / "src/kvgate/models/catalogue/configs").glob("*.json"))
_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.lists(st.integers(-5, 600) | st.text(max_size=6) | st.none(), max_size=5)
    | st.dictionaries(st.text(max_size=6), st.integers(-3, 3), max_size=3)
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), file=st.sampled_from(CONFIGS))
def test_mutated_real_configurations_are_sized_or_refused(tmp_path, data, file):
    """Any value in any key of a real configuration: an answer or a UserError in one line, never a traceback."""
    config = json.loads(file.read_text())["config"]
    part = config.get("text_config", config)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(part)) | st.text(max_size=8))
        if data.draw(st.booleans()) and key in part:
            del part[key]
        else:
            part[key] = data.draw(_VALUES)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    _answer(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=80), start=st.sampled_from([b"", b"{", b'{"num_hidden_layers":', b"GGUF\3\0\0\0"]))
def test_random_bytes_are_only_ever_refused(tmp_path, data, start):
    """Random files under either name: an answer or a UserError."""
    for name in ("config.json", "m.gguf"):
        path = tmp_path / name
        path.write_bytes(start + data)
        _answer(path)
        path.unlink()


def _answer(path):
    try:
        layers = resolve_plan_model(str(path)).geometry.layers
    except UserError as e:
        assert "\n" not in str(e) and len(str(e)) < 3000
    else:
        assert all(x.kv_heads >= 0 and x.k_dim >= 0 and (x.window_tokens or 1) > 0 for x in layers)


def test_reading_a_configuration_twice_gives_the_same(tmp_path):
    """Nothing of one reading is kept for the next."""
    folder = _folder(tmp_path)

    assert read_config(folder) == read_config(folder / "config.json") == SMALL


def test_planning_a_model_imports_no_heavy_library(tmp_path):
    """Folder, GGUF and catalogue are read without numpy, torch, safetensors or huggingface_hub."""
    folder = _folder(tmp_path)
    (folder / "model.safetensors").write_bytes(tiny(("w", "F32", (4,))))
    (tmp_path / "m.gguf").write_bytes(tiny_model("llama"))
    models = [str(folder), str(tmp_path / "m.gguf"), "Qwen/Qwen3-32B"]
    heavy = ["numpy", "torch", "scipy", "safetensors", "huggingface_hub", "gguf", "sqlalchemy"]
    code = (
        "import sys\nfrom kvgate.models.resolve import resolve_plan_model\n"
        f"[resolve_plan_model(m) for m in {models!r}]\n"
        f"print(*[m for m in {heavy!r} if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
