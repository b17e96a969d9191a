"""The `kvgate.check/1` document keeps its contract."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from report_runs import MARKER, hostile, realistic

from kvgate.core.estimate import Test
from kvgate.core.verdict import Decision
from kvgate.report.json import check_json, strict
from kvgate.report.model import RunView

NUMBER = {"type": ["number", "null"]}
ESTIMATE = {
    "type": "object",
    "required": ["value", "lo", "hi", "level", "n", "clusters", "unit", "method"],
    "additionalProperties": False,
    "properties": {
        "value": NUMBER, "lo": NUMBER, "hi": NUMBER,
        "level": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "n": {"type": "integer"}, "clusters": {"type": "integer"},
        "unit": {"type": "string"}, "method": {"type": "string"},
        "why": {"type": "string", "minLength": 1},
    },
    "if": {"properties": {"value": {"type": "null"}}},
    "then": {"required": ["why"]},
}  # fmt: skip
TEST = {
    "type": "object",
    "required": ["statistic", "p", "alternative", "method", "n"],
    "additionalProperties": False,
    "properties": {
        "statistic": NUMBER,
        "p": NUMBER,
        "alternative": {"type": "string"},
        "method": {"type": "string"},
        "n": {"type": "integer"},
    },
}
MEASURE = {"oneOf": [ESTIMATE, TEST]}
BY_SUITE = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": MEASURE}}
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
FINDING = {
    "type": "object",
    "required": ["rule", "use", "role", "status", "message", "metric", "observed", "threshold", "decide_n"],
    "properties": {
        "status": {"enum": ["pass", "fail", "inconclusive", "invalid", "untested", "warn"]},
        "role": {"enum": ["decide", "guard"]},
        "observed": {"oneOf": [{"type": "null"}, ESTIMATE, TEST]},
        "threshold": NUMBER,
        "decide_n": {"type": ["integer", "null"]},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["schema", "run", "arms", "floor", "exit_code", "report", "verdicts", "results", "excess", "capacity"],
    "properties": {
        "schema": {"const": "kvgate.check/1"},
        "run": TEXT,
        "report": {"type": ["string", "null"]},
        "exit_code": {"enum": [0, 1, 3, 4]},
        "arms": {
            "type": "array",
            "items": {"type": "object", "required": ["name", "role", "recipe", "effective", "perturb", "engaged"]},
        },
        "floor": {"type": "object", "additionalProperties": BY_SUITE},
        "results": {"type": "object", "additionalProperties": BY_SUITE},
        "excess": {"type": "object", "additionalProperties": BY_SUITE},
        "capacity": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["recipe", "bytes_per_token", "ratio", "predicted", "reported", "agrees"],
                "properties": {"bytes_per_token": {"type": "integer"}, "agrees": {"type": ["boolean", "null"]}},
            },
        },
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["candidate", "decision", "findings", "untested", "next"],
                "properties": {
                    "decision": {"enum": ["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]},
                    "findings": {"type": "array", "items": FINDING},
                    "untested": TEXTS,
                    "next": {"type": "object", "required": ["action", "why", "recipe", "command"]},
                },
            },
        },
    },
}


def reject(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def through_text(view: RunView) -> dict[str, Any]:
    """The document as another tool reads it: UTF-8 bytes, no NaN, no Infinity."""
    data = json.dumps(check_json(view, "r/report.html"), ensure_ascii=False).encode("utf-8")
    document: dict[str, Any] = json.loads(data, parse_constant=reject)
    return document


@pytest.mark.parametrize("make", [realistic, hostile])
def test_the_document_matches_its_schema(make: Any) -> None:
    """Both runs give valid JSON of the published shape."""
    jsonschema.validate(through_text(make()), SCHEMA)


def test_the_schema_notices() -> None:
    """The schema above is no rubber stamp: an estimate without its interval is refused."""
    document = through_text(realistic())
    del document["results"]["q8_0"]["fidelity"]["prefill.kl_mean"]["lo"]

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("PASS", "PASS", 0),
        ("PASS", "FAIL", 1),
        ("INCONCLUSIVE", "PASS", 3),
        ("FAIL", "INCONCLUSIVE", 1),
        ("FAIL", "INVALID", 4),
    ],
)
def test_the_exit_code_is_the_worst_verdict(first: str, second: str, code: int) -> None:
    """INVALID 4 outranks FAIL 1 outranks INCONCLUSIVE 3 outranks PASS 0."""
    run = realistic()
    run = replace(
        run, verdicts=[replace(v, decision=Decision(d)) for v, d in zip(run.verdicts, (first, second), strict=True)]
    )

    assert check_json(run, None)["exit_code"] == code


def test_unbounded_and_unknown_are_null_with_a_why() -> None:
    """No interval is null on both ends, an unknown value is null, and each says why."""
    metrics = through_text(realistic())["results"]["q8_0"]["fidelity"]

    assert metrics["prefill.kl_max"]["lo"] is metrics["prefill.kl_max"]["hi"] is None
    assert metrics["prefill.kl_p999"]["value"] is None
    assert "10000" in metrics["prefill.kl_p999"]["why"]


def test_infinity_becomes_null() -> None:
    """A statistic that is not finite does not break the reader."""
    run = realistic()
    summary = run.evidence["q8_0"].summaries["golden"]
    odd = replace(summary, metrics={"golden.net_breaks": Test(float("inf"), float("nan"), "greater", "m", 0)})
    evidence = {"q8_0": replace(run.evidence["q8_0"], summaries={"golden": odd})}

    document = through_text(replace(run, evidence=evidence))

    assert document["results"]["q8_0"]["golden"]["golden.net_breaks"]["p"] is None


def test_no_prompt_and_no_answer_is_in_it() -> None:
    """The document is safe to share: texts stay in the store."""
    text = json.dumps(check_json(realistic(), None))

    assert "Oslo" not in text
    assert "Prompt of" not in text


def test_half_a_surrogate_pair_is_replaced() -> None:
    """UTF-8 cannot hold it, and many parsers refuse its escape."""
    assert strict({"a\ud800": ["\udfff", 1.5, float("inf")]}) == {"a\ufffd": ["\ufffd", 1.5, None]}
    assert MARKER in json.dumps(check_json(hostile(), None))  # text is data here, not cut and not mangled
