"""The benchmark of the codecs runs and reports; its times are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "codecs.py"


def test_the_benchmark_reports_each_contestant_and_promise():
    """One small run: both directions of everybody, ratios within the run, the promises with their limits."""
    arguments = ["--mib", "1", "--repeats", "1", "--threads", "1", "--only", "q4_0", "fp8_e4m3", "--json"]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)

    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "kvgate.benchmark.codecs/1"
    who = {(r["codec"], r["who"], r["direction"]) for r in report["rows"]}
    for name, peer in (("q4_0", "gguf-py"), ("q4_0", "ggml reference"), ("fp8_e4m3", "torch cast")):
        for side in ("encode", "decode"):
            assert {(name, peer, side), (name, "kvgate numpy", side), (name, "kvgate torch", side)} <= who
    assert all(r["cpu_s"] > 0 and r["wall_s"] > 0 for r in report["rows"])
    assert {(f["codec"], f["limit"]) for f in report["floors"]} == {("q4_0", 1.0), ("fp8_e4m3", 2.0)}
    assert set(report["versions"]) >= {"gguf", "torch", "optimum-quanto", "hqq"}
