"""A number with its interval, or a test with its p value. Nothing else leaves `stats`.

Unbounded is None, never infinity: JSON has no infinity, and a gate must not compare with one by accident.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


def _finite(x: float | None) -> float | None:
    return None if x is None or not math.isfinite(x) else float(x)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with a two-sided interval at `level`.

    Attributes:
        value: the point estimate; None when unknown (then `why` says why).
        lo, hi: ends of the interval; None is unbounded on that side (then `why` says why).
        level: two-sided coverage, e.g. 0.90.
        n: observations (positions, prompts).
        clusters: independent units behind them (documents, prompts); inference counts these.
        unit: "nat", "1" (ratio), "prompts", "bytes", ...
        method: how the interval was made, e.g. "cluster bootstrap, percentile, B=5000".
    """

    value: float | None
    lo: float | None
    hi: float | None
    level: float
    n: int
    clusters: int
    unit: str
    method: str
    why: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "lo", "hi"):
            object.__setattr__(self, name, _finite(getattr(self, name)))
        if not 0 < self.level < 1:
            raise ValueError(f"level {self.level} is not between 0 and 1")
        if self.value is None and not self.why:
            raise ValueError("an estimate without a value needs a `why`")

    @classmethod
    def unknown(cls, why: str, *, level: float = 0.90, n: int = 0, clusters: int = 0, unit: str = "") -> Estimate:
        """A number that could not be had, with the reason."""
        return cls(None, None, None, level, n, clusters, unit, "none", why)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the output contract."""
        d = asdict(self)
        if not d["why"]:
            del d["why"]
        return d

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> Estimate:
        return cls(**d)


@dataclass(frozen=True, slots=True)
class Test:
    """A significance test.

    Attributes:
        statistic: the statistic itself (for McNemar: breaks minus repairs).
        p: p value of the stated alternative.
        alternative: "greater", "less" or "two-sided".
        method: the test's name and what is exact about it.
        n: observations it rests on (for McNemar: discordant pairs).
        best_p: the smallest p that these sizes could have given; None where the suite does not say. A test whose best_p
            is over alpha is blind: it cannot come out significant, whatever happens.
    """

    __test__ = False  # pytest must not collect this class

    statistic: float
    p: float
    alternative: str
    method: str
    n: int
    best_p: float | None = None

    def to_json(self) -> dict[str, Any]:
        d = asdict(self)
        if d["best_p"] is None:
            del d["best_p"]
        return d

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> Test:
        return cls(**d)


Measure = Estimate | Test


def measure_from_json(d: dict[str, Any]) -> Measure:
    """An Estimate or a Test back from its JSON object."""
    return Test.from_json(d) if "p" in d else Estimate.from_json(d)
