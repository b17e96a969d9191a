"""Classes of breaks in their order, the check each belongs to, and what a check found.

A *class* names what is wrong; a *check* is the question that was asked. Several classes can answer one question
(`wrong_tool` and `args_not_json` both fail `calls`), and some questions nest: an answer that does not parse as JSON
also fails "is strict JSON" and "conforms to the schema". A break is a check that the base passes and the arm fails;
its class is the first in TAXONOMY. All flags are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: Most specific sign of a dead engine first, pure drift last. The first match names the break.
TAXONOMY: tuple[str, ...] = (
    "empty_output",
    "nan_output",
    "truncated",
    "repetition_loop",
    "unclosed_think",
    "control_tokens",
    # Two JSON values in one call tag are a parser's failure of their own kind, so they are named before the markup.
    "extra_data_in_call",
    "tool_markup",
    "mojibake",
    "script_switch",
    "invalid_json",
    "repaired_json",
    "extra_data",
    "schema_violation",
    "missing_call",
    "spurious_call",
    "wrong_tool",
    "unknown_tool",
    "args_not_json",
    "missing_required",
    "unexpected_arg",
    "type_mismatch",
    "enum_violation",
    "value_drift",
    "wrong_count",
    "code_unparsable",
    "number_drift",
    "missing_text",
    "refusal_flip",
    "length_ratio",
)
_ORDER = {name: i for i, name in enumerate(TAXONOMY)}


class Severity(StrEnum):
    """Hard is structural: a consumer of the answer fails. Soft is drift: reported, never a break by itself."""

    HARD = "hard"
    SOFT = "soft"


class State(StrEnum):
    """What a check found. UNKNOWN: the answer was cut before the question could be answered."""

    OK = "ok"
    BAD = "bad"
    UNKNOWN = "unknown"


class Flag(NamedTuple):
    """One thing that is wrong. `detail` is one printable line, made of hostile text: escape it all the same."""

    cls: str
    check: str
    detail: str = ""
    severity: Severity = Severity.HARD

    def __str__(self) -> str:
        name = public_class(self.cls)
        return f"{name}: {self.detail}" if self.detail else name


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything the checks say about one answer. Checks that do not apply to the prompt are absent."""

    states: Mapping[str, State]
    flags: tuple[Flag, ...]

    @property
    def clean(self) -> bool:
        """No structural flag."""
        return not any(f.severity is Severity.HARD for f in self.flags)


def public_class(cls: str) -> str:
    """The class as it is reported: `extra_data` wherever it was found."""
    return "extra_data" if cls == "extra_data_in_call" else cls


def in_order(flags: list[Flag]) -> tuple[Flag, ...]:
    """Flags by the order of the taxonomy; equal classes stay in the order found."""
    return tuple(sorted(flags, key=lambda f: _ORDER[f.cls]))


def one_line(text: str, limit: int = 120) -> str:
    """Text of unknown origin as one short printable line; control characters and lone surrogates are escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return shown[:limit] + "…" if len(shown) > limit else shown
