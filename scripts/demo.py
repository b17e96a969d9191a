"""`make demo`: one real engine, one real model, two candidates; says what each got.

q4_0 is expected to FAIL on this model, and a FAIL is a good answer here. A demo fails on INVALID, on a usage error, on
a traceback, or when a candidate has no verdict.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KVGATE = [sys.executable, "-m", "kvgate"]
CANDIDATES = ["q8_0", "q4_0"]


def main() -> int:
    got = subprocess.run([*KVGATE, "models", "get", "smollm2"])
    if got.returncode:
        return got.returncode
    command = [*KVGATE, "check", "smollm2", *(x for c in CANDIDATES for x in ("--kv", c)), "--policy", "smoke"]
    print("$ kvgate " + " ".join(command[3:]), flush=True)
    before = latest()
    check = subprocess.run(command)
    run = latest()
    if check.returncode not in (0, 1, 3) or run is None or run == before:
        print(f"demo: failed, kvgate check ended with exit code {check.returncode} and no verdict", file=sys.stderr)
        return 1
    verdicts = {v["candidate"]: v["headline"] for v in run["verdicts"]}
    missing = [c for c in CANDIDATES if c not in verdicts]
    if missing or any(h == "INVALID" for h in verdicts.values()):
        print(f"demo: failed, verdicts {verdicts}, missing {missing}", file=sys.stderr)
        return 1
    print("\ndemo: " + "; ".join(f"{c}: {verdicts[c]}" for c in CANDIDATES))
    print("demo: a FAIL of q4_0 is the expected answer on this model; the run did what it should.")
    report = Path(run["report"]) if run.get("report") else None
    if report is None or not report.is_file():
        print("demo: failed, there is no report", file=sys.stderr)
        return 1
    print(f"demo: open {report}")
    return 0


def latest() -> dict | None:
    """The newest run as `kvgate show last --json` gives it, or None when there is none."""
    out = subprocess.run([*KVGATE, "show", "last", "--json"], capture_output=True, text=True)
    return json.loads(out.stdout) if out.stdout.strip() else None


if __name__ == "__main__":
    sys.exit(main())
