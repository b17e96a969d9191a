"""Digests of big files: right, remembered, and never wrong because of the cache."""

import hashlib
import json
import os

import pytest

from kvgate.core.errors import UserError
from kvgate.models import file_digest
from kvgate.models.file_digest import cache_root, file_sha256

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch):
    """How often a file was really read."""
    reads = []
    real = hashlib.file_digest
    monkeypatch.setattr(file_digest.hashlib, "file_digest", lambda *a: (reads.append(1), real(*a))[1])
    return reads


def _file(tmp_path, data=b"weights", at=LONG_AGO):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def test_the_environment_chooses_the_cache(cache, monkeypatch):
    """KVGATE_CACHE wins; without it the platform's folder is used."""
    assert cache_root() == cache
    monkeypatch.delenv("KVGATE_CACHE")
    assert cache_root().name == "kvgate"


def test_a_digest_is_read_once(tmp_path, counted):
    """The second look does not read the file, and a new name for the same file is the same file."""
    path = _file(tmp_path)
    link = tmp_path / "link.gguf"
    link.symlink_to(path)

    assert file_sha256(path) == file_sha256(path) == file_sha256(link) == hashlib.sha256(b"weights").hexdigest()
    assert len(counted) == 1


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_read_again(tmp_path, change):
    """Another size or another modification time makes the note void."""
    path = _file(tmp_path)
    file_sha256(path)
    new = b"weights+" if change == "size" else b"WEIGHTS"
    _file(tmp_path, new, LONG_AGO if change == "size" else LONG_AGO + 1)

    assert file_sha256(path) == hashlib.sha256(new).hexdigest()


def test_a_file_just_written_is_not_remembered(tmp_path):
    """Within one tick of the clock a second write leaves no trace; so the first digest is not kept."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    now = path.stat()
    file_sha256(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))

    assert file_sha256(path) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("junk", ["", "not json", "[]", '{"sha256": 5}', "note of another file"])
def test_a_broken_note_is_ignored(tmp_path, cache, junk):
    """What lies in the cache is not believed unless it is a whole note about this file."""
    path = _file(tmp_path)
    file_sha256(path)
    (note,) = (cache / "digests").iterdir()
    if junk == "note of another file":
        junk = json.dumps({**json.loads(note.read_text()), "size": 1, "sha256": "0" * 64})
    note.write_text(junk)

    assert file_sha256(path) == hashlib.sha256(b"weights").hexdigest()


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch):
    """A read-only place gives the same digest. (A file stands where the folder should be; that stops root too.)"""
    (tmp_path / "wall").write_text("")
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "wall"))

    assert file_sha256(_file(tmp_path)) == hashlib.sha256(b"weights").hexdigest()


def test_an_unreadable_file_is_one_line(tmp_path):
    """Name and reason."""
    with pytest.raises(UserError, match=r"cannot read .*nothing: No such file"):
        file_sha256(tmp_path / "nothing")
