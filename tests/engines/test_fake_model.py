"""The fake model itself: tokenizer, answers, logprobs, panel."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kvgate.core.engine import Pass, TokenLogprobs
from kvgate.core.errors import UserError
from kvgate.engines import _fake_tokens as tokens
from kvgate.engines._fake_answers import answer, read_chat, read_prompt
from kvgate.engines._fake_breaks import intensity
from kvgate.engines._fake_logprobs import top_rows
from kvgate.engines._fake_panel import FakePanel
from kvgate.engines._fake_schema import instance
from kvgate.engines._fake_script import FakeScript
from kvgate.engines._logprobs import Row, check_rows
from kvgate.engines.fake import DRIVER
from kvgate.testing import fake_request


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_is_reversible(text: str) -> None:
    """decode(encode(text)) is the text, ids stay in the table, and streamed pieces add up to it."""
    ids = tokens.encode(text)

    assert tokens.decode(ids) == text
    assert all(0 <= i < tokens.VOCAB for i in ids)
    assert "".join(tokens.stream_pieces(ids)) == text


@given(st.text("aé🙂 ", max_size=6), st.integers(0, 24))
def test_a_cut_inside_a_character_streams_as_it_decodes(text: str, n: int) -> None:
    """An answer cut by max_tokens in the middle of a character ends alike, streamed or whole."""
    ids = tokens.encode(text)[:n]

    assert "".join(tokens.stream_pieces(ids)) == tokens.decode(ids)


def test_the_table_is_full_and_has_no_double() -> None:
    """512 ids, each its own bytes."""
    pieces = [tokens._BYTES[i] for i in range(tokens.VOCAB)]

    assert len(set(pieces)) == tokens.VOCAB == 512


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 5}}, "required": ["a"]},
    {"type": "array", "minItems": 3, "items": {"type": "integer", "minimum": 7, "maximum": 9}},
    {"enum": ["x", 4, None]},
    {"const": {"k": [1]}},
    {"type": ["null", "string"]},
    {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
    {
        "$ref": "#/$defs/p",
        "$defs": {"p": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}},
    },
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
    {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 7, "multipleOf": 3},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("key", range(5))
def test_instances_conform(schema: dict[str, Any], key: int) -> None:
    """An instance satisfies its schema, by jsonschema's word, whatever the draw."""
    Draft202012Validator(schema).validate(instance(schema, ["word", "ox"], key))


def test_answers_depend_on_prompt_and_seed_only() -> None:
    """The same request has the same answer; another model seed or prompt another one."""
    asked = read_prompt("Tell me about the sea and its ships.")

    assert answer(FakeScript(), asked) == answer(FakeScript(), asked)
    assert answer(FakeScript(seed=1), asked) != answer(FakeScript(), asked)
    assert answer(FakeScript(), read_prompt("Tell me about the sea and its boats.")) != answer(FakeScript(), asked)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What is 12 * 7?", "number"),
        ("Write a python function that adds two numbers.", "code"),
        ("Return JSON with the keys `name` and `age`.", "json"),
        ("The code is 1234567. What is the code?", "needle"),
        ("Tell me a story.", "text"),
    ],
)
def test_kinds_of_answers(text: str, kind: str) -> None:
    """The kind follows from what is asked."""
    given_ = answer(FakeScript(), read_chat({"messages": [{"role": "user", "content": text}]}))

    assert given_.kind == kind
    if kind == "number":
        assert "84" in given_.text
    if kind == "json":
        assert set(json.loads(given_.text)) == {"name", "age"}


def test_the_script_of_a_prompt_is_kept() -> None:
    """A question in Cyrillic is answered in Cyrillic."""
    text = answer(FakeScript(), read_prompt("Расскажи, пожалуйста, короткую историю про море")).text

    assert not any(c.isascii() and c.isalpha() for c in text)


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_healthy_logprobs_pass_the_check(k: int) -> None:
    """The unscripted model's logprobs are log-probabilities: the session's own check lets them through."""
    ids = tokens.encode("a plain answer of several tokens")
    rows = top_rows(FakeScript(), "digest", ids, k)

    check_rows([Row(TokenLogprobs("t", r.logprob, tuple((str(i), x) for i, x in r.top)), r.token_id) for r in rows])
    assert [r.token_id for r in rows] == ids
    assert all(len(r.top) == k and len({i for i, _ in r.top}) == k for r in rows)
    # A geometric series stays under 1; 20 terms of it may round to 1.
    assert all(math.fsum(math.exp(x) for _, x in r.top) < 1 + 1e-12 for r in rows)


def test_flips_come_at_their_rate() -> None:
    """At flip_rate 0.3 about three in ten positions have another token on top."""
    ids = [5] * 400
    flipped = sum(r.top[0][0] != 5 for r in top_rows(FakeScript(flip_rate=0.3), "d", ids, 2))

    # Binomial(400, 0.3): 4.6 standard deviations of 9.2 on either side.
    assert 78 <= flipped <= 162
    assert all(r.top[0][0] == 5 for r in top_rows(FakeScript(), "d", ids, 2))


def test_noise_is_clustered_and_drifts() -> None:
    """Requests of one burst share an intensity, bursts differ, and the rate grows with the count."""
    script = FakeScript(noise_rate=0.1, noise_clustered=1.0, noise_burst=8)
    rates = [intensity(script, 7, i) for i in range(80)]
    drifting = FakeScript(noise_rate=0.1, noise_drift=0.5)

    assert len(set(rates[:8])) == 1
    assert len(set(rates)) == 10
    assert intensity(drifting, 7, 0) == pytest.approx(0.1)
    assert intensity(drifting, 7, 200) == pytest.approx(0.2)


def test_clustering_leaves_the_average_rate() -> None:
    """The log-normal factor has mean 1: over many bursts the mean rate is the scripted one."""
    script = FakeScript(noise_rate=0.01, noise_clustered=0.5, noise_burst=1)
    mean = np.mean([intensity(script, 3, i) for i in range(4000)])

    # Relative standard error of the mean: sqrt(exp(0.25) - 1) / sqrt(4000) = 0.0084; five of them.
    assert mean == pytest.approx(0.01, rel=0.042)


# -- panel ---------------------------------------------------------------------------------------------------


def panel(**recipes: Any) -> FakePanel:
    """A panel of arms: name -> (recipe, script, settings)."""
    launches = {
        name: DRIVER.resolve(fake_request(recipe, script=script, **settings))
        for name, (recipe, script, settings) in recipes.items()
    }
    made = DRIVER.open_panel(launches)
    assert isinstance(made, FakePanel)
    return made


IDS = [(i * 37) % 512 for i in range(300)]


def kl_of(rows: Any, base: str, arm: str) -> Any:
    """KL(base || arm) of float32 logits, in float64."""
    p, q = (
        np.log(np.exp(r - r.max(1, keepdims=True)) / np.exp(r - r.max(1, keepdims=True)).sum(1, keepdims=True))
        for r in (rows[base].astype(np.float64), rows[arm].astype(np.float64))
    )
    return (np.exp(p) * (p - q)).sum(1)


def test_the_truth_is_the_kl_of_the_rows() -> None:
    """`truth` equals the KL computed from the float32 rows, to their rounding."""
    with panel(base=("native", {}, {}), arm=("q4_0", {}, {})) as live:
        live.begin(IDS)
        rows = live.step(200, Pass.PREFILL)
        truth = live.truth("arm", "base", 0, 200)

    # float32 logits of size up to 16 are rounded by 2**-21; a KL of size d moves by about that times sqrt(d).
    assert kl_of(rows, "base", "arm") == pytest.approx(truth, abs=1e-5)
    assert truth.mean() > 1e-2


def test_cuts_do_not_change_the_rows() -> None:
    """Prefill in one step, in two, or token by token gives the same rows: noise belongs to positions."""
    arms = {"base": ("native", {}, {}), "arm": ("q8_0", {"logit_heavy": 0.1, "logit_clustered": 0.5}, {})}
    with panel(**arms) as live:
        live.begin(IDS)
        whole = live.step(96, Pass.PREFILL)["arm"]
    with panel(**arms) as live:
        live.begin(IDS)
        first = live.step(64, Pass.PREFILL)["arm"].copy()
        rest = [live.step(1, Pass.DECODE)["arm"].copy() for _ in range(32)]

    assert np.array_equal(whole, np.concatenate([first, *rest]))


def test_codecs_are_ordered_by_bits() -> None:
    """Mean true KL: f16 is 0, then q8_0, q5_1, q4_0; small noise follows s^2 / 2 * (1 - sum p^2)."""
    names = {"base": "native", "q8": "q8_0", "q5": "q5_1", "q4": "q4_0"}
    with panel(**{arm: (recipe, {}, {}) for arm, recipe in names.items()}) as live:
        live.begin(IDS)
        kl = {arm: live.truth(arm, "base", 0, 300).mean() for arm in names}
        base = live.step(300, Pass.PREFILL)["base"].astype(np.float64)
        sd = live._arms["q8"].sd

    p = np.exp(base - base.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    small = (sd**2 / 2 * (1 - (p**2).sum(1))).mean()

    assert kl["base"] == 0 < kl["q8"] < kl["q5"] < kl["q4"]
    # 300 positions whose KLs scatter like a chi-square of few degrees of freedom: 20 % is over four standard errors.
    assert kl["q8"] == pytest.approx(small, rel=0.2)


def test_floors_are_like_a_real_engines() -> None:
    """A second context is exactly the base; one with a small ubatch is not."""
    with panel(
        base=("native", {}, {}), twin=("native", {}, {}), ubatch32=("native", {}, {"ubatch_tokens": 32})
    ) as live:
        live.begin(IDS)

        assert live.truth("twin", "base", 0, 100).max() == 0
        assert live.truth("ubatch32", "base", 0, 100).min() > 0


def test_equal_scripts_are_an_a_a_pair() -> None:
    """Two arms with the same noise settings differ from each other: noise is drawn by arm."""
    noisy = {"logit_sd": 0.1}
    with panel(base=("native", noisy, {}), same=("native", noisy, {})) as live:
        live.begin(IDS)

        assert live.truth("same", "base", 0, 50).min() > 0


def test_heavy_tails_and_drift() -> None:
    """Heavy positions have a hundred times the KL of the others; noise grows from text to text."""
    with panel(base=("native", {}, {}), arm=("native", {"logit_sd": 0.02, "logit_heavy": 0.1}, {})) as live:
        live.begin(IDS)
        kl = live.truth("arm", "base", 0, 300)
    with panel(base=("native", {}, {}), arm=("native", {"logit_sd": 0.02, "logit_drift": 1.0}, {})) as live:
        means = []
        for _ in range(3):
            live.begin(IDS)
            means.append(live.truth("arm", "base", 0, 300).mean())

    # Binomial(300, 0.1) heavy ones; the two groups are a factor of about 100 apart.
    assert 12 <= (kl > 10 * np.median(kl)).sum() <= 55
    # Sizes 1, 2, 3 give KLs of 1, 4, 9.
    assert means[1] / means[0] == pytest.approx(4, rel=0.15)
    assert means[2] / means[0] == pytest.approx(9, rel=0.15)


def test_a_nan_position_is_nan() -> None:
    """logit_nan_at puts NaN into one row of one arm only."""
    with panel(base=("native", {}, {}), arm=("q8_0", {"logit_nan_at": 70}, {})) as live:
        live.begin(IDS)
        rows = live.step(100, Pass.PREFILL)

    assert np.isnan(rows["arm"]).any(1).nonzero()[0].tolist() == [70]
    assert not np.isnan(rows["base"]).any()


def test_a_panel_refuses_what_it_cannot_do() -> None:
    """Ids outside the vocabulary, steps past the text, arms of different models."""
    with panel(base=("native", {}, {})) as live:
        with pytest.raises(UserError, match="0 to 511"):
            live.begin([512])
        live.begin([1, 2, 3])
        with pytest.raises(UserError, match="does not fit"):
            live.step(4, Pass.PREFILL)
    with pytest.raises(UserError, match="seeds or vocabularies"):
        panel(base=("native", {}, {}), arm=("q8_0", {"seed": 3}, {}))


def test_panel_deployments_confirm_their_recipes() -> None:
    """Each arm's deployment is its own, from the panel's log, and confirms what was asked."""
    launch = DRIVER.resolve(fake_request("q5_1"))
    with DRIVER.open_panel({"base": DRIVER.resolve(fake_request()), "arm": launch}) as live:
        seen = live.deployments()

    assert DRIVER.engaged(launch.expected, seen["arm"]).level == "confirmed"
    assert seen["arm"].consequence.k_codec == "q5_1"
    assert seen["base"].identity == seen["arm"].identity


def test_every_field_of_a_script_is_documented() -> None:
    """The docstring of FakeScript names each field."""
    doc = FakeScript.__doc__ or ""

    assert [f for f in FakeScript.model_fields if f not in doc] == []
