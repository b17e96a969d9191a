"""Settings of single arms: read, refused on a candidate, taken as a floor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgate.campaign.check import Outcome
from kvgate.campaign.overrides import Override, read_overrides
from kvgate.core.errors import UserError
from kvgate.core.verdict import Decision


def test_all_settings_are_read() -> None:
    """Names may be recipes with colons and equal signs of their own."""
    found = read_overrides(
        [
            f"k=q8_0,v=q4_0:python={sys.executable},env.A_B=c=d,batch=64,ubatch=32",
            "kivi:bits=2:slots=4",
            "old:threads=1,checkpoints=0",
        ]
    )

    assert found["k=q8_0,v=q4_0"] == Override(
        "k=q8_0,v=q4_0", Path(sys.executable), {"A_B": "c=d"}, {"batch_tokens": 64, "ubatch_tokens": 32}
    )
    assert found["kivi:bits=2"].numbers == {"slots": 4}
    assert found["old"].perturb == ("checkpoints", "threads")
    assert found["k=q8_0,v=q4_0"].perturb == ("batch_tokens", "build", "env", "epoch", "ubatch_tokens", "version")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["nothing"], "is not NAME:key=value"),
        (["a:colour=red"], "is not NAME:key=value"),
        (["a:batch=64,colour=red"], "'colour=red' is not a setting"),
        (["a:batch=many"], "batch is 'many'"),
        (["a:batch=-1"], "batch is '-1'"),
        (["a:batch=1,batch=2"], "batch is given twice"),
        (["a:env.X=1,env.X=2"], "env.X is given twice"),
        (["a:python=/no/such/python"], "there is no interpreter"),
        (["a:python=/etc/passwd"], "there is no interpreter"),
        (["a:python=/tmp"], "there is no interpreter"),
        (["a:slots=0"], "slots is '0'; give a number from 1"),
        (["a:threads=0"], "threads is '0'"),
        (["a:threads=9999999"], "give a number from 1 to "),
        (["a:batch=\u0663"], "batch is"),
        (["a:batch=1", "a:slots=2"], "'a' is given twice"),
        ([""], "is not NAME:key=value"),
    ],
)
def test_wrong_settings_are_one_line(texts: list[str], said: str) -> None:
    """The arm, the part, and how to write it."""
    with pytest.raises(UserError) as e:
        read_overrides(texts)

    assert said in str(e.value) and "\n" not in str(e.value)


def test_a_candidate_set_apart_is_refused(fake_check: Callable[..., Outcome]) -> None:
    """A candidate with another batch is INVALID, names the field, and none of its work is run."""
    outcome = fake_check(arms=("q8_0:batch=64",), kv=("q8_0", "q4_0"))
    by_name = {v.candidate: v for v in outcome.view.verdicts}
    said = " ".join(f.message for f in by_name["q8_0"].findings)

    assert by_name["q8_0"].decision is Decision.INVALID and outcome.exit_code == 4
    assert "batch_tokens" in said and "64" in said
    assert by_name["q4_0"].decision is not Decision.INVALID
    assert not any(arm == "q8_0" for r in outcome.view.records.values() for arm, _ in r.raws)


def test_a_new_name_is_one_more_floor(fake_check: Callable[..., Outcome]) -> None:
    """The base's recipe under declared settings; in both places, and never a reason for INVALID."""
    outcome = fake_check(arms=("small:batch=64",))
    floors = {a.name: a.perturb for a in outcome.view.role("floor")}
    summaries = outcome.view.evidence["q8_0"].summaries

    assert floors["small"] == ("batch_tokens",)
    assert "small" in summaries["fidelity"].floor and "small" in summaries["golden"].floor
    assert outcome.view.verdicts[0].decision is not Decision.INVALID


def test_another_environment_is_a_server_alone(fake_check: Callable[..., Outcome]) -> None:
    """A panel shares one environment, so such a floor runs behind HTTP only."""
    outcome = fake_check(arms=("other:env.SOMETHING=1",))
    summaries = outcome.view.evidence["q8_0"].summaries

    assert "other" in summaries["golden"].floor and "other" not in summaries["fidelity"].floor


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("k=q8_0,v=q5_0", "is no arm of this check, and no name for a new floor"),
        ("q5_0", "is no candidate of this check; add --kv q5_0"),
        ("native", "is no candidate of this check"),
        ("kivi", "is no candidate of this check"),
        ("batch", "is a floor that the policy does not have"),
    ],
)
def test_a_name_that_could_be_another_arms_is_refused(
    fake_check: Callable[..., Outcome], tmp_path: Path, name: str, said: str
) -> None:
    """A mistyped candidate, or a floor of another policy, does not become a new floor; nothing is started."""
    with pytest.raises(UserError, match=said):
        fake_check(arms=(f"{name}:batch=64",))
    assert not (tmp_path / "kvgate.db").exists()
