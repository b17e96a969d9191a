"""MODEL as people type it: found, or answered in one line."""

import hashlib
import os

import pytest
from tiny_gguf import tiny_model

from kvgate.core.errors import UserError
from kvgate.models import fetch
from kvgate.models.resolve import resolve_model


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "Tiny-Q4_1.gguf"
    path.write_bytes(
        tiny_model(extra=[("general.file_type", "u32", 3), ("tokenizer.chat_template", "str", "{{ messages }}")])
    )
    return path


def test_a_path_is_read_and_identified(model):
    """Name, digests, geometry and weights of a file."""
    files = resolve_model(str(model))

    assert (files.name, files.path, files.weights_dtype) == ("Tiny-Q4_1", model, "Q4_1")
    assert files.digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert files.size_bytes == model.stat().st_size
    assert len(files.geometry.layers) == 2
    assert files.tokenizer_digest is not None
    assert files.template_digest == hashlib.sha256(b"{{ messages }}").hexdigest()


def test_a_name_that_is_no_text_is_refused_in_words(model):
    """Bytes that are no UTF-8 cannot be handed to the engine or printed; the answer itself can be."""
    odd = os.fsdecode(os.fsencode(str(model.parent)) + b"/odd-\xff.gguf")
    model.rename(odd)

    with pytest.raises(UserError, match=r"not valid UTF-8.*rename") as caught:
        resolve_model(odd)
    str(caught.value).encode()


def test_a_relative_path_becomes_absolute(model, monkeypatch):
    """The engine's child may run in another folder."""
    monkeypatch.chdir(model.parent)

    assert resolve_model(model.name).path == model


def test_home_is_expanded(model, monkeypatch):
    """~ is the person's own folder, also where no shell has replaced it."""
    monkeypatch.setenv("HOME", str(model.parent))

    assert resolve_model(f"~/{model.name}").path == model


def test_a_path_wins_over_a_catalogue_name(model, monkeypatch):
    """A file that is called like a catalogue model is that file, and nothing is downloaded."""
    (model.parent / "smollm2").write_bytes(model.read_bytes())
    monkeypatch.chdir(model.parent)
    monkeypatch.setattr(fetch, "get_model", None)

    assert resolve_model("smollm2").geometry.name == "Tiny"


def test_a_catalogue_name_is_fetched(model, monkeypatch):
    """The catalogue's name is the model's name in reports."""
    monkeypatch.chdir(model.parent)
    monkeypatch.setattr(fetch, "get_model", lambda name, progress: model)

    assert resolve_model(" smollm2 ").name == "smollm2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://127.0.0.1:8000", "is a URL; give a GGUF file; of running servers: kvgate check URL --against URL"),
        ("hf://org/model", "is a URL"),
        ("Qwen/Qwen3-8B", "looks like a hub id.*kvgate check /path/model.gguf"),
        (
            "models/missing.gguf",
            "there is no file 'models/missing.gguf'; allowed: gemma3-270m, smollm2, the path of a .gguf file",
        ),
        ("./missing", "there is no file"),
        ("/missing/model", "there is no file"),
        ("~nobody-at-all/m.gguf", "there is no file"),
        ("smolm2", "unknown model 'smolm2'; allowed: gemma3-270m, smollm2, the path of a .gguf file"),
        ("a b c", "unknown model"),
        ("", "empty"),
        ("a\0b", "no name or path at all"),
        ("x" * 300, "unknown model"),
        ("x" * 5000, "no name or path at all"),
    ],
)
def test_what_is_no_model_gets_the_way_on(text, said, tmp_path, monkeypatch):
    """URL, hub id, missing path, unknown name: each its own line, none with a newline."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=said) as refused:
        resolve_model(text)

    assert "\n" not in str(refused.value)


def test_folders_and_devices_are_refused(tmp_path):
    """A folder says what llama_cpp needs; a pipe is not opened (it would wait forever)."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UserError, match=r"is a folder, and llama_cpp needs a GGUF file"):
        resolve_model(str(tmp_path))
    with pytest.raises(UserError, match="not a regular file"):
        resolve_model(str(tmp_path / "pipe"))


def test_another_kind_of_file_is_named(tmp_path):
    """A safetensors file is told apart from noise."""
    path = tmp_path / "model.safetensors"
    path.write_bytes((100).to_bytes(8, "little") + b"{" + b" " * 100)

    with pytest.raises(UserError, match=r"not a GGUF file .*a safetensors file; llama.cpp needs it converted"):
        resolve_model(str(path))
