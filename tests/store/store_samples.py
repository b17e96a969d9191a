"""Cases, answers and positions for the tests of the store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvgate.core.deployment import Deployment, Identity, Note, Subject
from kvgate.core.observation import FULL_VOCABULARY, POSITION_FIELDS, Case, PositionBlock, Raw, Work
from kvgate.core.verdict import Decision, NextStep, Verdict
from kvgate.store.open import Store
from kvgate.store.rows import ArmRow

SRC = Path(__file__).parents[2] / "src"
SUITE, VERSION = "golden", 1


def case(i: int, suite: str = SUITE) -> Case:
    return Case.make(suite, cluster=f"c{i}", category="code", bucket="0-1k", body={"prompt": f"question {i}", "n": i})


def positions(n: int, seed: int = 0) -> Any:
    """n positions with every column filled with something different."""
    rng = np.random.default_rng(seed)
    x = np.zeros(n, dtype=POSITION_FIELDS)
    for name, kind in POSITION_FIELDS:
        x[name] = rng.normal(size=n) if "f" in kind else rng.integers(0, 60_000, n)
    return x


def block(case_id: str, arm: str, n: int = 5, start: int = 1, seed: int = 0, lane: str = "prefill") -> PositionBlock:
    return PositionBlock(case_id, 0, lane, arm, start, FULL_VOCABULARY, positions(n, seed))


def deployment(pid: int = 1, **identity: Any) -> Deployment:
    return Deployment(
        identity=Identity(engine="fake", version="1", env={"A": "b"}, **identity),
        subject=Subject(spelling="q8_0", requested="q8_0", effective="q8_0+hadamard"),
        note=Note(place="panel", pid=pid),
        evidence=("llama_kv_cache: K (q8_0): 1.00 MiB",),
    )


def base_arm(place: str = "panel") -> ArmRow:
    return ArmRow("base", place, "base", "native", (), deployment())


def begin(store: Store, cases: Sequence[Case] = (), key: str = "key") -> str:
    """A new run with a base arm and cases."""
    run_id = store.begin_run(key, {"spec": 1})
    store.save_arm(run_id, base_arm())
    store.add_cases(run_id, cases)
    return run_id


def answer(store: Store, run_id: str, work: Work, raw: Raw, blocks: Sequence[PositionBlock] = ()) -> int:
    """One attempt from start to end."""
    attempt = store.start_work(run_id, SUITE, VERSION, work)
    store.finish_work(run_id, SUITE, VERSION, work, attempt, raw, blocks)
    return attempt


def read(store: Store, run_id: str, **more: Any) -> Any:
    return store.records(run_id, SUITE, base="base", floors=["twin"], candidates=["q8_0"], **more)


def verdict(**changed: Any) -> Verdict:
    values: dict[str, Any] = {
        "candidate": "q8_0",
        "decision": Decision.PASS,
        "findings": (),
        "untested": ("long contexts",),
        "next": NextStep("ship", "it passed"),
        "policy": "smoke",
        "policy_digest": "p",
        "records_digest": "r",
    }
    return Verdict(**values | changed)


def child(code: str, *args: str) -> subprocess.Popen[str]:
    """A python process that has kvgate and these samples."""
    path = os.pathsep.join([str(SRC), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
