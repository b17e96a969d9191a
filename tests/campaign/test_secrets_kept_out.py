"""Secrets in an engine's environment, from the command line to every place where something is kept or shown."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgate.campaign.check import Outcome
from kvgate.core.deployment import Identity
from kvgate.core.private import kept_out, public_env, public_words


def stored_text(path: Path) -> str:
    """Every value of every row of an SQLite store, unpacked."""
    found = []
    with sqlite3.connect(path) as c:
        for (table,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in c.execute(f"SELECT * FROM {table}"):
                for value in row:
                    try:
                        found.append(zlib.decompress(value).decode("utf-8", "replace"))
                    except (TypeError, zlib.error):
                        found.append(str(value))
    return "\n".join(found)


def test_a_secret_variable_is_kept_nowhere(fake_check: Callable[..., Outcome], tmp_path: Path) -> None:
    """Of all engines and of one arm: neither the store nor a document nor the next command holds the value."""
    outcome = fake_check(
        suites=("golden",), arms=("old:env.HF_TOKEN=s3cret-one,env.PLAIN=yes1",), env={"SOME_API_KEY": "s3cret-two"}
    )
    stored = stored_text(tmp_path / "kvgate.db")
    documents = [p.read_text() for p in outcome.files.values()]

    assert "yes1" in stored and "HF_TOKEN" in stored, "the store was read, and plain variables are kept"
    assert all("s3cret" not in text for text in (stored, *documents, repr(outcome.view)))
    assert "env.HF_TOKEN=...,env.PLAIN=yes1" in outcome.view.verdicts[0].next.command


def test_arms_with_other_secrets_still_differ() -> None:
    """What stands for a secret tells two values apart, and is stable when it is read back from the store."""
    a, b = (Identity(engine="fake", env={"HF_TOKEN": value, "N_TOKENS": "5"}) for value in ("v1x", "v2x"))

    assert a.env["HF_TOKEN"] != b.env["HF_TOKEN"] and "v1x" not in str(a)
    assert a.env["N_TOKENS"] == "5"
    assert Identity.model_validate(a.model_dump()) == a
    assert kept_out(kept_out("x")) == kept_out("x")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("x:env.HF_TOKEN=a,batch=2", "x:env.HF_TOKEN=...,batch=2"),
        ("x:env.OMP_NUM_THREADS=2,env.DB_PASSWORD=b=c", "x:env.OMP_NUM_THREADS=2,env.DB_PASSWORD=..."),
        ("--api-key=abc", "--api-key=..."),
        ("--block-size=16", "--block-size=16"),
        ("k=q8_0,v=q4_0:batch=64", "k=q8_0,v=q4_0:batch=64"),
    ],
)
def test_options_are_shown_without_secrets(words: str, shown: str) -> None:
    """The name stays, so that the line can be typed again."""
    assert public_words(words) == shown


@pytest.mark.parametrize("name", ["HF_TOKEN", "aws_secret_access_key", "PGPASSWORD", "X_AUTH", "HTTP_COOKIE"])
def test_names_that_say_so(name: str) -> None:
    """The common words for a secret, in any case."""
    assert public_env({name: "v4lue"})[name].startswith("(not kept #")
