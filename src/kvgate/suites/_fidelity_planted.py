"""An in-memory panel over a small random language model, with noise of known size on each arm's logits.

It proves that the suite finds a planted defect and passes an A/A pair; it stands in for no engine. The noise is not
only the kind that the statistics assume: it can be clustered by document, heavy-tailed within it, and drifting from
document to document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kvgate.core.deployment import Deployment, Identity, Subject
from kvgate.core.engine import ArmId, Pass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

_HISTORY = 16


class Noise(BaseModel):
    """What one arm adds to the logits.

    Attributes:
        sd: standard deviation on every logit; KL grows with its square.
        clustered: log-normal spread of `sd` between documents.
        heavy: share of positions whose noise is ten times as large.
        drift: relative growth of `sd` per document run.
        nan_at: index of a position whose logits are NaN, if any.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sd: float = Field(default=0.0, ge=0)
    clustered: float = Field(default=0.0, ge=0)
    heavy: float = Field(default=0.0, ge=0, le=1)
    drift: float = Field(default=0.0, ge=0)
    nan_at: int | None = None


class ScriptedPanel:
    """A `Panel` of the arms in `script`; equal seeds give equal logits, however the text is cut into steps."""

    def __init__(self, script: Mapping[ArmId, Noise], *, seed: int, vocab: int = 64) -> None:
        rng = np.random.default_rng(seed)
        self.script, self.seed, self.vocab = dict(script), seed, vocab
        self.steps: list[tuple[int, Pass]] = []
        self._embed = rng.normal(0, 1, (vocab, 24))
        self._unembed = rng.normal(0, 0.6, (24, vocab))
        self._texts = 0
        self._at = 0
        self._rows: dict[ArmId, F32] = {}

    def deployments(self) -> Mapping[ArmId, Deployment]:
        """Nothing but the names."""
        subject = Subject(spelling="scripted", requested="scripted", effective="scripted")
        return {arm: Deployment(identity=Identity(engine="fake"), subject=subject) for arm in self.script}

    def begin(self, ids: Sequence[int]) -> None:
        """Compute all rows of all arms; texts are small here."""
        self._at = 0
        base = self._logits(np.asarray(ids))
        # Prefix of the text, not the whole: the decode lane may begin with fewer ids and must see the same noise.
        text = hashlib.sha256(np.asarray(ids[:64], dtype="<i8").tobytes()).digest()
        self._rows = {arm: self._with_noise(base, arm, noise, text) for arm, noise in self.script.items()}
        self._texts += 1

    def step(self, n: int, how: Pass) -> Mapping[ArmId, F32]:
        """The next n rows of every arm."""
        if self._at + n > len(next(iter(self._rows.values()))):
            raise ValueError(f"step of {n} runs past the text")
        self.steps.append((n, how))
        at = slice(self._at, self._at + n)
        self._at += n
        return {arm: rows[at] for arm, rows in self._rows.items()}

    def _logits(self, ids: NDArray[Any]) -> NDArray[np.float64]:
        history = np.zeros((len(ids), self._embed.shape[1]))
        for back in range(_HISTORY):
            history[back:] += 0.7**back * self._embed[ids[: len(ids) - back] % self.vocab]
        return 3 * np.tanh(history) @ self._unembed

    def _with_noise(self, base: NDArray[np.float64], arm: ArmId, noise: Noise, text: bytes) -> F32:
        key = hashlib.sha256(text + arm.encode() + str(self.seed).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
        sd = noise.sd * np.exp(noise.clustered * rng.normal()) * (1 + noise.drift * self._texts)
        size = np.where(rng.random(len(base)) < noise.heavy, 10 * sd, sd)
        rows = np.asarray(base + size[:, None] * rng.normal(size=base.shape), dtype=np.float32)
        if noise.nan_at is not None and noise.nan_at < len(rows):
            rows[noise.nan_at] = np.nan
        return rows
