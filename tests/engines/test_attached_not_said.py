"""An attached server of which nobody said what it stores."""

from __future__ import annotations

import pytest

from kvgate.core.deployment import Consequence, Deployment, Engagement, Expected, Identity, Subject
from kvgate.engines._attached import hold_against

SUBJECT = Subject(spelling="unknown", requested="unknown", effective="unknown")


def seen(codec: str) -> Deployment:
    return Deployment(
        identity=Identity(engine="llama_cpp"), subject=SUBJECT, consequence=Consequence(k_codec=codec, v_codec=codec)
    )


@pytest.mark.parametrize("codec", ["f16", "bf16", "f32"])
def test_sixteen_bits_are_what_is_taken_for_granted(codec: str) -> None:
    """A log that names the plain type confirms a server of which nothing was said."""
    said = hold_against(Expected(k_codec="unknown", v_codec="unknown", bytes_per_token=0), seen(codec))

    assert said.level is Engagement.CONFIRMED
    assert codec in said.reason


def test_a_quantized_base_that_nobody_named_is_no_base() -> None:
    """A log that names a quantized type asks for a word that says so."""
    said = hold_against(Expected(k_codec="unknown", v_codec="unknown", bytes_per_token=0), seen("q8_0"))

    assert said.level is Engagement.CONTRADICTED
    assert "add --base q8_0" in said.reason
    named = hold_against(Expected(k_codec="q8_0", v_codec="q8_0", bytes_per_token=0), seen("q8_0"))
    assert named.level is Engagement.CONFIRMED
