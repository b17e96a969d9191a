"""Bytes of a model's weights: one copy of each tensor, from headers; what is missing is said and not guessed."""

from __future__ import annotations

import json

import pytest
from tiny_safetensors import tiny

from kvgate.core.errors import UserError
from kvgate.models.weights import INDEX_NAME, weights_bytes

A, B, C = ("a", "BF16", (10, 10)), ("b", "F32", (25,)), ("c", "F8_E4M3", (50,))
SIZES = {"a": 200, "b": 100, "c": 50}


def _write(folder, **files):
    for name, tensors in files.items():
        (folder / (name.replace("_of_", "-of-").replace("_0", "-0") + ".safetensors")).write_bytes(tiny(*tensors))


def _index(folder, weight_map, total=None):
    body = {"metadata": {} if total is None else {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(body))


def _refusal(folder):
    with pytest.raises(UserError) as caught:
        weights_bytes(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_weights_has_none(tmp_path):
    """No safetensors files: unknown, not zero."""
    assert weights_bytes(tmp_path) is None


def test_one_file(tmp_path):
    """The sum of the tensor ranges, not the size of the file."""
    _write(tmp_path, model=[A, B, C])

    found = weights_bytes(tmp_path)

    assert found.bytes == 350 < (tmp_path / "model.safetensors").stat().st_size
    assert found.how == "3 tensors in the headers of 1 safetensors file"


def test_shards_of_an_index(tmp_path):
    """The headers count; the index's own total, often stale, does not."""
    _write(tmp_path, model_00001_of_00002=[A], model_00002_of_00002=[B, C])
    _index(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}, total=999_999)

    assert weights_bytes(tmp_path).bytes == 350


def test_copies_of_the_weights_are_left_out(tmp_path):
    """consolidated files, original/, adapters and other files beside the index are the same weights or none."""
    _write(
        tmp_path, model_00001_of_00001=[A, B], consolidated=[A, B], consolidated_00001_of_00001=[A], adapter_model=[C]
    )
    (tmp_path / "original").mkdir()
    _write(tmp_path / "original", model=[A, B])

    assert weights_bytes(tmp_path).bytes == 300


def test_a_tensor_in_two_shards_is_counted_once(tmp_path):
    """Tied weights are sometimes saved twice; they are loaded once."""
    _write(tmp_path, model_00001_of_00002=[A, B], model_00002_of_00002=[B, C])

    assert weights_bytes(tmp_path).bytes == 350


def test_the_single_file_wins_over_a_shard_set(tmp_path):
    """A repository that keeps both has the weights twice."""
    _write(tmp_path, model=[A, B, C], model_00001_of_00002=[A, B], model_00002_of_00002=[C])

    assert weights_bytes(tmp_path).bytes == 350


def test_the_index_total_where_no_file_lies_there(tmp_path):
    """Only config and index downloaded: the index's own total, and it says so."""
    _index(tmp_path, {"a": "model-00001-of-00001.safetensors"}, total=12_345)

    found = weights_bytes(tmp_path)

    assert found.bytes == 12_345 and "total_size" in found.how


@pytest.mark.parametrize("total", [None, 0, -5, "many", True, 1.5])
def test_an_index_without_a_usable_total_is_refused(tmp_path, total):
    """No files and no number: what is missing is named."""
    _index(tmp_path, {"a": "model-00001-of-00001.safetensors"}, total=total)

    assert "model-00001-of-00001.safetensors is missing" in _refusal(tmp_path)


def test_an_incomplete_download_is_refused(tmp_path):
    """Half of the shards would be half of the weights."""
    _write(tmp_path, model_00001_of_00002=[A])
    _index(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}, total=300)

    assert "1 of the 2 files" in _refusal(tmp_path)


def test_a_shard_set_with_a_hole_is_refused(tmp_path):
    """Without an index the names say how many there must be."""
    _write(tmp_path, model_00001_of_00003=[A], model_00003_of_00003=[C])

    assert "number 2 is missing" in _refusal(tmp_path)


def test_several_sets_without_an_index_are_refused(tmp_path):
    """Nobody can say which of them is the model."""
    _write(tmp_path, fp16_00001_of_00001=[A], int8_00001_of_00001=[C])

    assert "several sets" in _refusal(tmp_path)


def test_several_single_files_without_an_index_are_refused(tmp_path):
    """The same for files without numbers."""
    _write(tmp_path, one=[A], two=[B])

    assert "several safetensors files" in _refusal(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../other/model.safetensors",
        "/etc/model.safetensors",
        "original/model.safetensors",
        "..\\model.safetensors",
        "model.bin",
        "model.safetensors\0",
        ".hidden.safetensors",
        "",
        5,
        None,
    ],
)
def test_names_in_an_index_stay_inside_the_folder(tmp_path, name):
    """A path in the map is refused before anything is opened."""
    _index(tmp_path, {"a": name}, total=100)

    assert "no plain safetensors name" in _refusal(tmp_path)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"weight_map": 5}', b'{"weight_map": {}}', b"\xff\xfe", b'{"a":1,"a":2}']
)
def test_a_broken_index_is_refused(tmp_path, body):
    """An index that is none names itself."""
    (tmp_path / INDEX_NAME).write_bytes(body)

    assert INDEX_NAME in _refusal(tmp_path)


def test_shards_that_disagree_are_refused(tmp_path):
    """One name, two sizes: two models in one folder."""
    _write(tmp_path, model_00001_of_00002=[A], model_00002_of_00002=[("a", "F32", (10, 10))])

    assert "another size" in _refusal(tmp_path)


def test_a_copy_beside_files_of_other_names_is_left_out(tmp_path):
    """Without an index and without the usual name, consolidated and adapter files still are no second model."""
    _write(tmp_path, weights=[A, B], consolidated=[A, B], adapter_model=[C])

    assert weights_bytes(tmp_path).bytes == 300


def test_consolidated_files_count_where_nothing_else_is(tmp_path):
    """Some repositories have only them."""
    _write(tmp_path, consolidated=[A, B])

    assert weights_bytes(tmp_path).bytes == 300
