"""A Hugging Face folder as an engine loads it: found, identified, and seen to change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_safetensors import tiny

from kvgate.core.errors import UserError
from kvgate.models.model_folder import has_changed, model_folder, resolve_folder

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "vocab_size": 32,
    "dtype": "bfloat16",
}
SCHEME = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "some-model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text('{"model": {}}')
    (made / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": "{{ messages }}"}))
    (made / "model.safetensors").write_bytes(tiny(("w", "BF16", (64, 64)), ("n", "F32", (1,))))
    return made


def rewrite(path: Path, text: str | bytes) -> None:
    """Write and make sure that the time differs: file systems count in ticks."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_folder_is_read(folder: Path) -> None:
    """Name, geometry, type of the weights (a hundredth of the bytes is left out) and size come from the files."""
    model = model_folder(folder)

    assert (model.name, model.path) == ("some-model", folder)
    assert len(model.geometry.layers) == 2
    assert (model.geometry.native_dtype, model.geometry.context_tokens) == ("bf16", 512)
    assert model.weights_dtype == "BF16"
    assert model.size_bytes == (folder / "model.safetensors").stat().st_size
    assert len({model.digest, model.tokenizer_digest, model.template_digest}) == 3


def test_a_kv_scheme_is_seen(folder: Path) -> None:
    """A checkpoint that an engine's `auto` would start in FP8 says so in its geometry."""
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": SCHEME}))

    assert model_folder(folder).geometry.kv_scheme == "fp8_e4m3"


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("config.json", json.dumps(CONFIG | {"rope_theta": 2.0}), "digest"),
        ("generation_config.json", '{"eos_token_id": 3}', "digest"),
        ("model.safetensors", tiny(("w", "F16", (64, 64))), "digest"),
        ("tokenizer.json", '{"model": {"x": 1}}', "tokenizer_digest"),
        ("special_tokens_map.json", "{}", "tokenizer_digest"),
        ("tokenizer_config.json", '{"bos_token": "<t>", "chat_template": "{{ messages }}"}', "tokenizer_digest"),
        ("tokenizer_config.json", '{"bos_token": "<s>", "chat_template": "other"}', "template_digest"),
        ("chat_template.jinja", "{{ messages }}!", "template_digest"),
        ("README.md", "words", ""),
    ],
)
def test_each_file_counts_where_it_belongs(folder: Path, name: str, content: str | bytes, changes: str) -> None:
    """A change of weights, tokenizer or template changes its own digest and no other, and is noticed."""
    before = model_folder(folder)

    rewrite(folder / name, content)
    kept = model_folder(folder).modified_ns
    assert name == "README.md" or kept != before.modified_ns
    after = model_folder(folder)

    names = ("digest", "tokenizer_digest", "template_digest")
    assert [n for n in names if getattr(before, n) != getattr(after, n)] == ([changes] if changes else [])
    assert (changes in has_changed(before)) if changes else not has_changed(before)


def test_a_new_time_alone_is_no_change(folder: Path) -> None:
    """The content decides, not the clock; a folder that is gone has changed."""
    model = model_folder(folder)

    rewrite(folder / "tokenizer.json", (folder / "tokenizer.json").read_bytes())

    assert has_changed(model) == ""
    (folder / "config.json").unlink()
    assert "cannot be read any more" in has_changed(model)


def test_a_template_file_wins_and_none_is_none(folder: Path) -> None:
    """`chat_template.jinja` is what engines take first; without any there is no digest."""
    inside = model_folder(folder).template_digest
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    same = model_folder(folder).template_digest
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()

    assert inside == same
    assert model_folder(folder).template_digest is None


def test_shards_count_by_their_index(folder: Path) -> None:
    """All files that the index names, and the index itself; one that is missing is named."""
    shard = "model-0000{}-of-00002.safetensors"
    (folder / "model.safetensors").unlink()
    (folder / shard.format(1)).write_bytes(tiny(("a", "BF16", (8, 8))))
    (folder / shard.format(2)).write_bytes(tiny(("b", "F8_E4M3", (64, 8))))
    index = {"metadata": {}, "weight_map": {"a": shard.format(1), "b": shard.format(2)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    model = model_folder(folder)

    assert model.weights_dtype == "F8_E4M3+BF16"
    assert model.size_bytes == sum((folder / shard.format(n)).stat().st_size for n in (1, 2))
    (folder / shard.format(2)).unlink()
    with pytest.raises(UserError, match="has no model-00002-of-00002"):
        model_folder(folder)


@pytest.mark.parametrize(
    ("gone", "there", "says"),
    [
        ("config.json", "", "without config.json"),
        ("tokenizer.json", "", "holds no tokenizer"),
        ("model.safetensors", "", "holds no safetensors files"),
        ("model.safetensors", "pytorch_model.bin", "a pickle, which runs code when it is read"),
    ],
)
def test_folders_that_cannot_be_loaded(folder: Path, gone: str, there: str, says: str) -> None:
    """What is missing is named, and pickled weights are refused."""
    (folder / gone).unlink()
    if there:
        (folder / there).touch()

    with pytest.raises(UserError, match=says) as e:
        model_folder(folder)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no folder"),
        ("nowhere/at/all/x", "there is no folder"),
        ("a\0b", "there is no folder"),
        ("x" * 5000, "there is no folder"),
        ("~nobody-of-this-name/m", "there is no folder"),
        ("Qwen/Qwen3-0.6B", "does not download from model hubs"),
        ("https://example.org/m", "does not download from model hubs"),
    ],
)
def test_what_is_no_folder_is_refused(text: str, says: str) -> None:
    """One line with what to give instead; nothing is fetched."""
    with pytest.raises(UserError, match=says):
        resolve_folder(text)


def test_a_file_is_refused_and_a_folder_is_found(folder: Path) -> None:
    """A GGUF file is none; a folder by its path is read."""
    with pytest.raises(UserError, match="is a file, and this engine loads a Hugging Face folder"):
        resolve_folder(str(folder / "model.safetensors"))

    assert resolve_folder(f" {folder} ").digest == model_folder(folder).digest
