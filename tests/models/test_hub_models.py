"""Hub ids: their pattern, the hub when it answers, the shipped catalogue when it does not, and the reason each time."""

from __future__ import annotations

import json
import socket
import sys
import types

import pytest

from kvgate.core.errors import UserError
from kvgate.models import hub as hub_module
from kvgate.models import hub_catalogue
from kvgate.models.hub import hub_model, is_hub_id
from kvgate.models.hub_catalogue import hub_config, hub_config_names, parse_hub_config
from kvgate.models.plan_model import plan_model_of_hub

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "dtype": "float16",
}

REACHABLE = hub_module._reachable


class _Hub:
    """Stands in for huggingface_hub: answers or fails as a test says."""

    def __init__(self, folder, *, fails=None, headers_fail=None):
        self.folder, self.fails, self.headers_fail, self.asked = folder, fails, headers_fail, []

    def hf_hub_download(self, repo_id, filename, *, etag_timeout):
        self.asked.append((repo_id, filename, etag_timeout))
        if self.fails:
            raise self.fails
        path = self.folder / filename
        path.write_text(json.dumps(CONFIG))
        return str(path)

    def get_safetensors_metadata(self, repo_id):
        if self.headers_fail:
            raise self.headers_fail
        tensors = {
            "a": types.SimpleNamespace(data_offsets=(0, 100)),
            "b": types.SimpleNamespace(data_offsets=(100, 160)),
        }
        files = {"model.safetensors": types.SimpleNamespace(tensors=tensors)}
        return types.SimpleNamespace(files_metadata=files, weight_map={"a": "m", "b": "m"})


@pytest.fixture
def online(monkeypatch, tmp_path):
    """A function that puts a hub in place."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "KVGATE_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(hub_module, "_reachable", lambda: True)

    def put(**how):
        hub = _Hub(tmp_path, **how)
        module = types.ModuleType("huggingface_hub")
        module.hf_hub_download, module.get_safetensors_metadata = hub.hf_hub_download, hub.get_safetensors_metadata
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return hub

    return put


def _named(name):
    return type(name, (Exception,), {})("https://hub.example/secret?token=hf_abc\nsecond line")


@pytest.mark.parametrize("text", ["Qwen/Qwen3-32B", "a/b", "openai-community/gpt2", "x_1/y.2-z"])
def test_hub_ids(text):
    """Letters, digits, dots, dashes and underscores."""
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpt2",
        "a/b/c",
        "../b",
        "a/..",
        "a/b..c",
        "a--b/c",
        "a/b c",
        "a/b\n",
        "a/b?x",
        "a:b/c",
        "/a/b",
        "a/b/",
        "é/b",
        "a/.b",
    ],
)
def test_what_is_no_hub_id(text):
    """Path characters, blanks, two dots and the rest are refused before anything is asked."""
    assert not is_hub_id(text)
    with pytest.raises(UserError, match="no hub id"):
        hub_model(text)


def test_the_hub_wins_over_the_catalogue(online):
    """With a network the model's own file is taken, its weights from its headers, and the origin says so."""
    hub = online()

    model = plan_model_of_hub("Qwen/Qwen3-32B")

    assert len(model.geometry.layers) == 3 and model.geometry.native_dtype == "f16"
    assert model.weights_bytes == 160 and model.origin == "Hugging Face hub"
    assert hub.asked == [("Qwen/Qwen3-32B", "config.json", 5.0)]


def test_weights_that_the_hub_does_not_tell_are_noted(online):
    """A model without safetensors is sized, its weights stay open."""
    online(headers_fail=_named("NotASafetensorsRepoError"))

    model = plan_model_of_hub("some/model")

    assert model.weights is None and any("no safetensors files" in n for n in model.geometry.notes)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_named("LocalEntryNotFoundError"), "no network"),
        (_named("ConnectError"), "no network"),
        (_named("GatedRepoError"), "gated"),
        (_named("RepositoryNotFoundError"), "no such model"),
        (_named("EntryNotFoundError"), "no config.json"),
        (_named("SomethingNew"), "SomethingNew"),
        (OSError("disk"), "OSError"),
    ],
)
def test_a_hub_that_fails_leaves_the_catalogue(online, error, words):
    """The reason is told in one line, without the address and what is in it."""
    online(fails=error)

    found = hub_model("Qwen/Qwen3-32B")

    assert found.origin.startswith("shipped catalogue") and words in found.origin
    assert "token" not in found.origin and "\n" not in found.origin
    with pytest.raises(UserError) as caught:
        hub_model("nobody/knows-it")
    assert words in str(caught.value) and "not in the catalogue" in str(caught.value)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "KVGATE_OFFLINE"])
def test_offline_variables_keep_the_hub_from_being_asked(online, monkeypatch, variable):
    """Whoever says offline is not contacted."""
    hub = online()
    monkeypatch.setenv(variable, "1")

    assert variable in hub_model("Qwen/Qwen3-32B").origin
    assert hub.asked == []


def test_without_a_network_the_hub_is_not_asked(online, monkeypatch):
    """Nothing listens there: the catalogue answers, and the hub's client, which would try for long, is left alone."""
    hub = online()
    monkeypatch.setattr(hub_module, "_reachable", REACHABLE)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed.getsockname()[1]}")

        assert "no network" in hub_model("Qwen/Qwen3-32B").origin
    assert hub.asked == []


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "HF_ENDPOINT"])
def test_the_way_to_the_hub_is_tried_first(monkeypatch, variable):
    """A proxy, or another hub, that takes a connection is a network; a senseless address is none."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_module._reachable()

    monkeypatch.setenv(variable, "http://127.0.0.1:99999999")
    assert not hub_module._reachable()


def test_without_the_package_the_catalogue_answers(monkeypatch):
    """huggingface_hub is an extra; a plan does not need it."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "KVGATE_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert "huggingface_hub is not installed" in hub_model("Qwen/Qwen3-32B").origin


def test_a_broken_file_from_the_hub_is_the_users_to_know(online, tmp_path, monkeypatch):
    """A configuration that is no JSON is not silently replaced by the catalogue's."""
    online()
    (tmp_path / "config.json").write_text("{")
    monkeypatch.setattr(
        sys.modules["huggingface_hub"], "hf_hub_download", lambda *a, **k: str(tmp_path / "config.json")
    )

    with pytest.raises(UserError, match="not JSON"):
        hub_model("Qwen/Qwen3-32B")


def test_the_catalogue_does_not_mind_case():
    """Hub ids are found however they are written, under their own name."""
    assert hub_config("qwen/qwen3-32b").name == "Qwen/Qwen3-32B"
    assert hub_config("nobody/knows-it") is None


def test_entries_that_were_not_read_from_the_models_own_file_are_marked(monkeypatch):
    """A table that stands on class defaults says so."""
    monkeypatch.setenv("KVGATE_OFFLINE", "1")
    unsure = [n for n in hub_config_names() if not hub_config(n).verified]

    assert "mistralai/Mistral-Small-4" in unsure
    for name in unsure:
        assert any("defaults of the model's code" in n for n in plan_model_of_hub(name).geometry.notes)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"extra": 1},
        {"source": ""},
        {"weights": {"bytes": 0, "source": "x"}},
        {"weights": {"bytes": 5}},
        {"config": 5},
    ],
)
def test_a_wrong_catalogue_file_is_our_mistake(change):
    """The catalogue's files are checked when they are read."""
    entry = {"name": "a/b", "source": "s", "config": {}} | change

    with pytest.raises(ValueError):
        parse_hub_config(json.dumps(entry))


def test_file_names_are_model_names():
    """org--name.json is the file of org/name, so that a look-up opens one file."""
    assert hub_catalogue._file_names()["qwen/qwen3-32b"] == "Qwen--Qwen3-32B.json"
