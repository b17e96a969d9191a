"""Reading policies: strict, with the file, the key and the allowed values in every refusal."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.cli.main import main
from kvgate.core.errors import UserError
from kvgate.gate.policy import Policy, builtin_policies, load_policy, parse_policy

HEAD = 'schema = "kvgate.policy/1"\nname = "mine"\n'
RULE = '[[rule]]\nid = "kl"\nuse = "ceiling"\nmetric = "prefill.kl_mean"\nexcess_max = 0.01\n'


def test_three_policies_ship_and_load() -> None:
    """smoke, default and strict are found by name, have deciding rules and differ."""
    policies = [load_policy(name) for name in builtin_policies()]

    assert builtin_policies() == ("default", "smoke", "strict")
    assert [p.name for p in policies] == list(builtin_policies())
    assert len({p.digest() for p in policies}) == 3
    assert all(any(r.role == "decide" for r in p.rules) for p in policies)
    noise = "prefill.kl_mean|topk_prefill.kl_mean|topk_decode.kl_mean"
    assert all(dict(p.floor.max) == {noise: 0.01} for p in policies)


def test_what_a_policy_is_for_is_one_line_and_decides_nothing() -> None:
    """Every policy that ships says it; the digest, by which verdicts are told apart, is the same without."""
    assert all(load_policy(name).about for name in builtin_policies())
    said = parse_policy(HEAD + 'about = "For the night shift"\n' + RULE, "x")

    assert said.about == "For the night shift"
    assert said.digest() == parse_policy(HEAD + RULE, "x").digest()


def test_the_policies_that_ship_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what it is for, as text and as one document."""
    assert main(["policy", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["policies"]
    assert main(["policy", "list"]) == 0
    text = capsys.readouterr().out

    assert {r["name"]: r["digest"] for r in rows} == {n: load_policy(n).digest() for n in builtin_policies()}
    words = " ".join(text.split())
    assert all(r["about"] and f"{r['name']} {r['about']}." in words for r in rows)


def test_strict_asks_for_more_than_default() -> None:
    """Every ceiling and margin of default has a tighter or equal one in strict."""
    limits: dict[tuple[str, str, str], Any] = {}
    for name in ("default", "strict"):
        for r in load_policy(name).rules:
            for metric in getattr(r.params, "metrics", ()):
                limit = getattr(r.params, "limit", None) if r.use == "ceiling" else -getattr(r.params, "margin", 0.0)
                limits[name, r.use, metric] = limit

    for (name, use, metric), limit in limits.items():
        if name == "default":
            assert limits["strict", use, metric] <= limit


def test_a_file_is_read(tmp_path: Path) -> None:
    """A path loads; `role` defaults to decide and `metric` becomes the list of one."""
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + RULE)

    policy = load_policy(path)

    (rule,) = policy.rules
    assert (policy.name, rule.role, rule.params.metrics, rule.params.limit) == (
        "mine", "decide", ("prefill.kl_mean",), 0.01,
    )  # fmt: skip


REFUSED = {
    "unknown top key": (HEAD + "alfa = 0.05\n", "unknown key 'alfa'", "alpha"),
    "unknown rule key": (HEAD + RULE + "excess_maks = 1\n", "'kl': unknown key 'excess_maks'", "excess_max"),
    "unknown floor key": (HEAD + "floor = { arm = [] }\n", "unknown key 'floor.arm'", "arms"),
    "unknown use": (HEAD + RULE.replace("ceiling", "cieling"), "unknown use 'cieling'", "ceiling"),
    "unknown role": (HEAD + RULE + 'role = "judge"\n', "unknown role 'judge'", "guard"),
    "missing metric": (HEAD + RULE.replace("metric", "#metric"), "'metrics' is missing", "add"),
    "no id": (HEAD + RULE.replace("id =", "#id ="), "rule 1 has no id", "write id"),
    "two ids": (HEAD + RULE + RULE, "two rules have the id 'kl'", "own id"),
    "wrong schema": (HEAD.replace("/1", "/2") + RULE, "schema is 'kvgate.policy/2'", "kvgate.policy/1"),
    "no schema": (RULE, "schema is None", "kvgate.policy/1"),
    "not TOML": (HEAD + "alpha 0.05\n", "line 3", "docs/gate.md"),
    "rules spelled rules": (HEAD + "rules = []\n", "rules are tables", "[[rule]]"),
    "rule is a table": (HEAD + RULE.replace("[[rule]]", "[rule]"), "rules are tables", "[[rule]]"),
    "infinite limit": (HEAD + RULE.replace("0.01", "inf"), "excess_max", "finite"),
    "nan floor": (HEAD + 'floor = { max = { "a.b" = nan } }\n', "floor.max", "finite"),
    "floor is no metric": (HEAD + "floor = { max = { kl = 1.0 } }\n", "floor.max", "not a metric id"),
    "alpha under 0.05": (HEAD + "alpha = 0.01\n", "alpha", "0.05"),
    "correction": (HEAD + 'detect_correction = "none"\n', "detect_correction", "'holm'"),
    "suite": (HEAD + RULE + "suite = 3\n", "suite is 3", "one suite"),
    "name with a newline": (HEAD.replace("mine", "a\\nb"), "name", "pattern"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_policies_are_refused_in_one_line(what: str, tmp_path: Path) -> None:
    """The message is one line with the file, the key and the fix or the allowed values."""
    text, thing, fix = REFUSED[what]
    path = tmp_path / "bad.toml"
    path.write_text(text)

    with pytest.raises(UserError) as caught:
        load_policy(path)

    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("bad.toml", thing, fix)), message


def test_unreadable_policies_are_refused(tmp_path: Path) -> None:
    """Unknown names list the built-in ones; binary and huge files are refused before they are parsed."""
    binary, huge = tmp_path / "b.toml", tmp_path / "h.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    huge.write_text("#" * (1 << 20) + "\n")

    with pytest.raises(UserError, match="no policy 'smokey'; allowed: default, smoke, strict"):
        load_policy("smokey")
    with pytest.raises(UserError, match="not UTF-8"):
        load_policy(binary)
    with pytest.raises(UserError, match="over 1048576 bytes"):
        load_policy(huge)


def test_digest_ignores_form_and_sees_content() -> None:
    """Comments, spacing, order of keys and of rules, and written-out defaults do not change it; a limit does."""
    other = RULE.replace('"kl"', '"tail"').replace("kl_mean", "kl_p99")
    one = parse_policy(HEAD + RULE + other, "a")
    shuffled = (
        '# a comment\nname = "mine"\nalpha = 5e-2\nschema="kvgate.policy/1"\n'
        + other
        + ('[[rule]]\nexcess_max=0.010\nrole = "decide"\nmetrics = ["prefill.kl_mean"]\nuse="ceiling"\nid="kl"\n')
    )

    assert one.digest() == parse_policy(shuffled, "b").digest()
    assert one.digest() != parse_policy(HEAD + RULE.replace("0.01", "0.011") + other, "c").digest()
    assert one.digest() != parse_policy(HEAD + RULE + 'role = "guard"\n' + other, "d").digest()


KEY = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1, max_size=12)
SCALAR = st.one_of(st.integers(-(2**40), 2**40), st.booleans(), st.floats(), st.text(max_size=12))


def toml(value: object) -> str:
    """A TOML literal of a scalar, list or inline table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value) + '"'
    return repr(value)


VALUE = st.recursive(SCALAR, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(KEY, v, max_size=3)))
FIELD = st.sampled_from(
    [
        "alpha",
        "floor",
        "detect_correction",
        "name",
        "rule",
        "rules",
        "id",
        "use",
        "metric",
        "margin",
        "max",
        "excess_max",
        "suite",
        "role",
        "accept",
        "suites",
        "prefix",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.one_of(FIELD, KEY), VALUE, max_size=4), st.dictionaries(FIELD, VALUE, max_size=4),
       st.sampled_from(["ceiling", "detect", "engaged", "coverage", "breaks", "noninferior"]))  # fmt: skip
def test_any_document_gives_a_policy_or_a_one_line_refusal(
    top: dict[str, object], rule: dict[str, object], use: str
) -> None:
    """Whatever TOML holds, the reader returns a policy with a digest or raises UserError; nothing else."""
    lines = [f"{toml(k)} = {toml(v)}" for k, v in {"schema": "kvgate.policy/1", "name": "x", **top}.items()]
    lines += ["[[rule]]", *(f"{toml(k)} = {toml(v)}" for k, v in {"id": "a", "use": use, **rule}.items())]

    try:
        policy = parse_policy("\n".join(lines), "any.toml")
    except UserError as e:
        assert "\n" not in str(e)
    else:
        assert len(policy.digest()) == 64


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_a_policy_or_a_refusal(text: str) -> None:
    """Text that is not TOML at all is refused the same way."""
    with pytest.raises(UserError):
        parse_policy(text, "any.toml")


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["smoke", "default", "strict"]))
def test_digest_survives_any_shuffle(rng: random.Random, name: str) -> None:
    """The built-in policies, written again with keys and rules in random order, keep their digest."""
    from importlib import resources

    data = tomllib.loads((resources.files("kvgate.gate") / "policies" / f"{name}.toml").read_text())
    tables = data.pop("rule")
    rng.shuffle(tables)

    def lines(table: dict[str, object]) -> list[str]:
        items = list(table.items())
        rng.shuffle(items)
        return [f"{toml(k)} = {toml(v)}" for k, v in items]

    text = "\n".join([*lines(data), *(x for t in tables for x in ("[[rule]]", *lines(t)))])

    assert parse_policy(text, "shuffled").digest() == load_policy(name).digest()


def test_a_policy_is_immutable() -> None:
    """A loaded policy cannot be changed after its digest was taken."""
    with pytest.raises(ValueError, match="frozen"):
        Policy(name="a").alpha = 0.2
