"""Records of the fidelity suite made with the scripted panel; shared by the suite's tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvgate.core.engine import Tokens
from kvgate.core.observation import Case, PositionBlock, Records, content_digest
from kvgate.core.suite import SuiteContext
from kvgate.suites._fidelity_planted import Noise, ScriptedPanel
from kvgate.suites.fidelity import SUITE, FidelityParams


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
    panel = ScriptedPanel(script, seed=seed, vocab=vocab)
    blocks: list[PositionBlock] = []
    for case in cases:
        blocks += SUITE.run_panel(panel, case, "base", tuple(script))
    digest = content_digest([seed, [c.id for c in cases]])
    records = Records("fidelity", "base", tuple(floors), tuple(candidates), {c.id: c for c in cases}, digest=digest)
    return replace(records, positions=tuple(blocks))
