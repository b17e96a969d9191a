"""The fake engine's panel: a small seeded language model, and noise of known size on each arm's logits.

Because base and noise are known, so is the truth: `FakePanel.truth` gives KL(base || arm) by definition in float64.
For small noise of standard deviation s it is s^2 / 2 * (1 - sum p^2) in expectation, which orders the codecs.

The noise of an arm depends on the seed, the arm's name, the text and the position, not on how the text is cut into
steps; so two arms with equal scripts are an A/A pair, not copies.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvgate.core.deployment import Deployment
from kvgate.core.engine import ArmId, Pass
from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe
from kvgate.engines._fake_script import FakeScript

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]

#: Standard deviation that a codec of K adds to the logits; V adds `_V_SHARE` of it. Invented, but in the codecs' order.
NOISE_SD: Mapping[str, float] = {
    "f32": 0.0,
    "f16": 0.0,
    "bf16": 0.02,
    "q8_0": 0.05,
    "fp8_e4m3": 0.10,
    "q5_1": 0.12,
    "q5_0": 0.14,
    "fp8_e5m2": 0.16,
    "q4_1": 0.22,
    "iq4_nl": 0.24,
    "q4_0": 0.26,
}
_OTHER_SD = 0.3
_V_SHARE = 0.5
#: Rows of a text whose ids name it; the decode lane may begin with fewer ids and must see the same noise.
_NAMING_IDS = 64
_HEAVY_FACTOR = 10.0
#: Arms that compute fewer rows at once take "another kernel".
_SMALL_UBATCH = 64
_DIM = 24
_BACK = (1.0, 0.6, 0.35, 0.2)
_SHARPNESS = 3.0


def noise_sd(recipe: Recipe, script: FakeScript, ubatch_tokens: int) -> float:
    """Standard deviation of one arm's logit noise, before clustering, tails and drift."""
    own = script.logit_sd
    if own is None:
        sides = dict(recipe.sides())
        k, v = (NOISE_SD.get(sides[s].codec, _OTHER_SD) if s in sides else 0.0 for s in ("k", "v"))
        own = math.hypot(k, _V_SHARE * v)
    return math.hypot(own, script.ubatch_sd if ubatch_tokens < _SMALL_UBATCH else 0.0)


@dataclass(frozen=True, slots=True)
class PanelArm:
    """One arm: its noise and its deployment."""

    script: FakeScript
    sd: float
    deployment: Deployment


class FakePanel:
    """Implements `core.engine.Panel` in this process. A context manager, like a real one.

    Raises:
        UserError: arms whose models differ (seed or vocabulary).
    """

    def __init__(self, arms: Mapping[ArmId, PanelArm]) -> None:
        models = {(a.script.seed, a.script.vocab) for a in arms.values()}
        if len(models) != 1:
            raise UserError("the arms of a fake panel have different seeds or vocabularies", fix="give them one")
        ((self.seed, self.vocab),) = models
        rng = np.random.default_rng([self.seed, self.vocab])
        self._arms = dict(arms)
        self._embed = rng.normal(0, 1, (self.vocab, _DIM))
        self._unembed = rng.normal(0, 0.6, (_DIM, self.vocab))
        self._ids = np.zeros(0, dtype=np.int64)
        self._at = 0
        self._texts = 0

    def __enter__(self) -> FakePanel:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def deployments(self) -> Mapping[ArmId, Deployment]:
        return {arm: a.deployment for arm, a in self._arms.items()}

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text.

        Raises:
            UserError: no ids, or one outside the vocabulary.
        """
        new = np.asarray(ids, dtype=np.int64)
        if new.size == 0 or new.min() < 0 or new.max() >= self.vocab:
            raise UserError(f"a panel text needs token ids from 0 to {self.vocab - 1}")
        self._ids, self._at = new, 0
        self._texts += 1

    def step(self, n: int, how: Pass) -> Mapping[ArmId, F32]:
        """The next n rows of every arm, float32 [n, vocab].

        Raises:
            UserError: past the end of the text.
        """
        if n < 1 or self._at + n > len(self._ids):
            raise UserError(f"a step of {n} tokens does not fit into a text of {len(self._ids)} at {self._at}")
        rows = range(self._at, self._at + n)
        self._at += n
        base = self._logits(rows)
        return {name: (base + self._noise(name, rows)).astype(np.float32) for name in self._arms}

    def truth(self, arm: ArmId, base: ArmId, first: int, n: int) -> F64:
        """KL(base || arm) in nat at positions first to first + n of the current text, by definition."""
        rows = range(first, first + n)
        logits = self._logits(rows)
        p = _log_softmax(logits + self._noise(base, rows))
        q = _log_softmax(logits + self._noise(arm, rows))
        kl: F64 = (np.exp(p) * (p - q)).sum(axis=1)
        return kl

    def _logits(self, rows: range) -> F64:
        at = np.asarray(rows)
        history = np.zeros((len(at), _DIM))
        for back, weight in enumerate(_BACK):
            known = at >= back
            history[known] += weight * self._embed[self._ids[at[known] - back]]
        logits: F64 = _SHARPNESS * np.tanh(history) @ self._unembed
        return logits

    def _noise(self, name: ArmId, rows: range) -> F64:
        arm = self._arms[name]
        out = np.zeros((len(rows), self.vocab))
        script = arm.script
        if arm.sd:
            text = self._ids[:_NAMING_IDS].tobytes()
            sd = arm.sd * (1 + script.logit_drift * (self._texts - 1))
            sd *= math.exp(script.logit_clustered * _rng(self.seed, name, text, -1).normal())
            for i, at in enumerate(rows):
                rng = _rng(self.seed, name, text, at)
                heavy = rng.random() < script.logit_heavy
                out[i] = sd * (_HEAVY_FACTOR if heavy else 1.0) * rng.normal(size=self.vocab)
        if script.logit_nan_at is not None and script.logit_nan_at in rows:
            out[rows.index(script.logit_nan_at)] = np.nan
        return out


def _rng(seed: int, name: ArmId, text: bytes, at: int) -> np.random.Generator:
    key = hashlib.sha256(repr((seed, name, at)).encode() + text).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))


def _log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normal: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normal
