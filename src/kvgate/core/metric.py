"""Metric names: `lane.name` + sorted labels, e.g. `prefill.kl_p99{category=code}`."""

from __future__ import annotations

import re
from typing import NamedTuple

MetricId = str

_SHAPE = re.compile(r"^(?P<name>[a-z0-9_]+(?:\.[a-z0-9_]+)+)(?:\{(?P<labels>[^{}]*)\})?$")


class ParsedMetric(NamedTuple):
    """A metric's bare name and its labels."""

    name: str
    labels: dict[str, str]


def metric_id(name: str, **labels: str) -> MetricId:
    """Spell a metric; labels are sorted so that one metric has one spelling."""
    text = name
    if labels:
        text += "{" + ",".join(f"{k}={labels[k]}" for k in sorted(labels)) + "}"
    parse_metric(text)
    return text


def parse_metric(text: MetricId) -> ParsedMetric:
    """Take a metric apart.

    Raises:
        ValueError: it is not `lane.name` with optional `{label=value,...}`.
    """
    m = _SHAPE.match(text)
    if m is None:
        raise ValueError(f"not a metric id: {text!r}; expected lane.name or lane.name{{label=value}}")
    labels = {}
    for part in (m["labels"] or "").split(","):
        if part:
            key, eq, value = part.partition("=")
            if not eq:
                raise ValueError(f"not a metric id: {text!r}; label {part!r} has no '='")
            labels[key] = value
    return ParsedMetric(m["name"], labels)
