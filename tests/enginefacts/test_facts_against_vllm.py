"""vLLM's facts held against its own source, as read once into a small golden file (tests/golden/make_vllm_words.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.enginefacts.facts import BackendRow, load

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "vllm_words.json").read_text())
VLLM = load("vllm")
NATIVE = {"auto", "float16", "bfloat16"}
#: Options that the parser makes from a class or another option, so that no literal names them.
COMPUTED = {"--no-enable-prefix-caching", "--enable-auto-tool-choice"}
#: Gone in this version; a rule is about it.
GONE = {"--calculate-kv-scales"}
READ = [b for b in VLLM.backend if b.name in GOLDEN["backends"]]


def test_the_version_is_the_one_that_the_facts_were_read_in() -> None:
    """The golden file and the facts are of one version."""
    assert GOLDEN["version"] == VLLM.newest


def test_words_of_the_kv_option_are_vllm_s() -> None:
    """Every word that vLLM takes is in the facts, and no other."""
    ours = [w for d in VLLM.dtype for w in (d.spelling, *d.aliases)] + [w.spelling for w in VLLM.word]

    assert sorted(ours) == sorted(GOLDEN["kv_words"])


def test_options_are_in_vllm_s_parser() -> None:
    """Each option of the facts is a literal of the parser; what is gone is not."""
    literal = set(GOLDEN["options"])

    assert {f.name for f in VLLM.flag} - literal == COMPUTED | GONE


@pytest.mark.parametrize("row", READ, ids=lambda b: b.name)
def test_a_backend_s_words_are_its_class_s(row: BackendRow) -> None:
    """The exact words count, so they are compared as words; whether 16 bits are read too."""
    words = set(GOLDEN["backends"][row.name])

    assert set(row.dtypes) == words - NATIVE
    assert row.native is bool(words & NATIVE)


def test_most_backends_were_compared() -> None:
    """A backend whose list is computed cannot be: there are few of them."""
    assert len(READ) >= len(VLLM.backend) - 4


def test_every_backend_of_the_registry_is_known() -> None:
    """A name that vLLM has is never told to be none."""
    from kvgate.lint.rules.vllm_backend import OTHERS

    assert {b.name for b in VLLM.backend} | set(OTHERS) == set(GOLDEN["registry"])
