"""What makes two deployments comparable."""

from __future__ import annotations

from kvgate.core.deployment import Consequence, Deployment, Identity, Note, Sameness, Subject


def deployment(**identity: object) -> Deployment:
    known = {"engine": "llama_cpp", "version": "1", "build": "b1", "threads": 2, "env": {}}
    return Deployment(
        identity=Identity(**(known | identity)),
        subject=Subject(spelling="q8_0", requested="q8_0", effective="q8_0+hadamard"),
    )


def statuses(a: Deployment, b: Deployment) -> dict[str, Sameness]:
    return {d.field: d.status for d in a.delta(b)}


def test_delta_says_same_differs_or_unknown() -> None:
    """A field nobody looked at is unknown, which is neither same nor different."""
    got = statuses(deployment(build="b1", slots=None), deployment(build="b2", slots=None))

    assert got["build"] is Sameness.DIFFERS
    assert got["threads"] is Sameness.SAME
    assert got["slots"] is Sameness.UNKNOWN
    assert statuses(deployment(slots=1), deployment(slots=None))["slots"] is Sameness.UNKNOWN


def test_every_identity_field_is_compared() -> None:
    """A new identity field takes part in the delta without another edit."""
    assert {d.field for d in deployment().delta(deployment())} == set(Identity.model_fields)


def test_the_digest_leaves_out_notes_and_nothing_else() -> None:
    """Port and pid differ in every start; the recipe and its consequence do not."""
    a = deployment()

    assert a.digest() == a.model_copy(update={"note": Note(port=1, pid=2), "evidence": ("x",)}).digest()
    assert a.digest() != deployment(threads=1).digest()
    assert a.digest() != a.model_copy(update={"consequence": Consequence(k_codec="f16")}).digest()
