"""Deployment of a server that somebody else started: what its pages and, if given, its log say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kvgate.core.deployment import Consequence, Deployment, Engaged, Engagement, Expected, Identity, Note, Subject
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.engines._kvlog import LogFacts

#: llama.cpp builds that were made without a build number say this; it identifies nothing.
_NO_BUILD = "b0-unknown"


def describe(url: str, spelling: str, pages: Mapping[str, Any], log: LogFacts | None) -> Deployment:
    """Requested and observed of an attached server. `pages` holds the JSON of each path that answered."""
    model = _first_model(pages.get("/v1/models"))
    props = pages.get("/props")
    props = props if isinstance(props, Mapping) else {}
    template = props.get("chat_template")
    build = props.get("build_info")
    identity = Identity(
        engine="openai",
        version=_word(pages.get("/version"), "version"),
        build=build if isinstance(build, str) and build not in ("", _NO_BUILD) else None,
        template_digest=hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None,
        weights_dtype=_word(model.get("meta"), "ftype"),
        context_tokens=_count(model.get("max_model_len")) or _count(_get(model.get("meta"), "n_ctx")),
        slots=_count(props.get("total_slots")),
    )
    evidence = [f"/v1/models: id={model.get('id')} owned_by={model.get('owned_by')}"[:300]] if model else []
    if log is not None:
        evidence += log.lines
    parts = urlsplit(url)
    return Deployment(
        identity=identity,
        subject=Subject(spelling=spelling, requested=_recipe(spelling), effective=_recipe(spelling)),
        consequence=log.consequence if log is not None else Consequence(),
        note=Note(place="attached", host=parts.hostname, port=parts.port),
        evidence=tuple(evidence),
    )


def hold_against(expected: Expected, observed: Deployment) -> Engaged:
    """Types, rotations and bytes of the log against what was expected; unobserved without a log."""
    seen = observed.consequence
    if seen.k_codec is None or seen.v_codec is None:
        return Engaged(Engagement.UNOBSERVED, "an attached server without a log that names its KV cache type")
    for what, want, got in (
        ("K type", expected.k_codec, seen.k_codec),
        ("V type", expected.v_codec, seen.v_codec),
        ("K rotation", expected.k_rotation, seen.k_rotation),
        ("V rotation", expected.v_rotation, seen.v_rotation),
    ):
        # A rotation that nobody predicted or logged is unknown, not a contradiction.
        if want is not None and got is not None and want != got:
            reason = f"{what}: asked for {want}, the log says {got}"
            return Engaged(Engagement.CONTRADICTED, reason, observed.evidence)
    return Engaged(Engagement.CONFIRMED, f"the log says K {seen.k_codec}, V {seen.v_codec}", observed.evidence)


def _first_model(page: Any) -> Mapping[str, Any]:
    data = _get(page, "data")
    first = data[0] if isinstance(data, list) and data else None
    return first if isinstance(first, Mapping) else {}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _word(value: Any, key: str) -> str | None:
    word = _get(value, key)
    return word[:200] if isinstance(word, str) and word else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _recipe(spelling: str) -> str:
    """The canonical recipe; an engine's own spelling that is no recipe stays as it is."""
    try:
        return str(parse(spelling))
    except UserError:
        return spelling
