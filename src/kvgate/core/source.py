"""Where a number comes from. A number without an `Estimate` or a `Source` does not reach the user."""

from __future__ import annotations

from dataclasses import dataclass

#: What stands where nobody has published a test: for the matcher of claims and for every report.
NOT_TESTED = "not tested by anyone we know of"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a fact.

    Attributes:
        kind: "file" (read from the user's file), "log" (an engine's own words), "spec" (a published definition),
            "arithmetic" (derived here), "assumed" (a default that the user may override).
        ref: the file, the log line, the URL or the formula.
        version: version, commit or date that makes `ref` exact.
    """

    kind: str
    ref: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.ref}" + (f" ({self.version})" if self.version else "")
