"""Records of the fidelity suite made with the fake engine's panel; shared by the suite's tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvgate.core.deployment import Deployment, Identity, Subject
from kvgate.core.engine import Pass, Tokens
from kvgate.core.observation import Case, PositionBlock, Records, content_digest
from kvgate.core.suite import SuiteContext
from kvgate.engines._fake_panel import FakePanel, PanelArm
from kvgate.engines._fake_script import FakeScript
from kvgate.suites.fidelity import SUITE, FidelityParams

#: Noise of one arm, in the words of the fake engine's script.
Noise = Mapping[str, Any]

NONE: Noise = {}
#: Base against base, and the planted defect.
CLEAN: Noise = SUITE.planted_defect().clean
PLANTED: Noise = SUITE.planted_defect().script


class RecordingPanel(FakePanel):
    """The fake panel over arms with the given noise; remembers its steps."""

    def __init__(self, arms: Mapping[str, Noise], *, seed: int, vocab: int = 32) -> None:
        subject = Subject(spelling="fake", requested="fake", effective="fake")
        deployment = Deployment(identity=Identity(engine="fake"), subject=subject)
        scripts = {arm: FakeScript(seed=seed, vocab=vocab, **noise) for arm, noise in arms.items()}
        super().__init__({arm: PanelArm(s, s.logit_sd or 0.0, deployment) for arm, s in scripts.items()})
        self.steps: list[tuple[int, Pass]] = []

    def step(self, n: int, how: Pass) -> Mapping[str, np.ndarray]:
        self.steps.append((n, how))
        return super().step(n, how)


def word_tokens(text: str) -> Tokens:
    """One token a word of ASCII letters and digits, or any other character."""
    return Tokens(tuple(sum(map(ord, w)) % 50 for w in re.findall(r"[a-zA-Z0-9]+|[^\sa-zA-Z0-9]", text)))


def context(params: FidelityParams | None = None, corpus: Path | None = None, tokens: int = 512) -> SuiteContext:
    """A context for `cases`."""
    files = {} if corpus is None else {"corpus": corpus}
    return SuiteContext(params or SUITE.presets()["smoke"], 0, word_tokens, tokens, files)


def made_cases(seed: int, documents: int = 12, prefill: int = 64, decode: int = 0, vocab: int = 32) -> list[Case]:
    """Documents of random tokens in four categories."""
    rng = np.random.default_rng(seed)
    cases = []
    for at in range(documents):
        ids = rng.integers(0, vocab, prefill + decode + 1).tolist()
        body = {"name": f"d{at:02d}", "ids": ids, "prefill": prefill, "prefix": prefill if decode else 0}
        body["decode"] = decode
        cases.append(Case.make("fidelity", cluster=f"d{at:02d}", category=f"c{at % 4}", body=body))
    return cases


def run(
    script: Mapping[str, Noise],
    cases: Sequence[Case],
    *,
    seed: int,
    floors: Sequence[str] = ("floor",),
    candidates: Sequence[str] = ("cand",),
    vocab: int = 32,
) -> Records:
    """All cases on all arms of the script; "base" is the base."""
    panel = RecordingPanel(script, seed=seed, vocab=vocab)
    blocks: list[PositionBlock] = []
    for case in cases:
        blocks += SUITE.run_panel(panel, case, "base", tuple(script))
    digest = content_digest([seed, [c.id for c in cases]])
    records = Records("fidelity", "base", tuple(floors), tuple(candidates), {c.id: c for c in cases}, digest=digest)
    return replace(records, positions=tuple(blocks))
