"""Every verb, also those that are yet to come, under odd terminals, streams, folders and locales."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("every_verb.py")
#: `every_verb.py` knows more of them; these are what CI has time for.
ODD = ("plain", "20 columns", "folders of nobody", "folder gone", "all closed")


def ran(tmp_path: Path, *conditions: str, **env: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *conditions],
        capture_output=True,
        env=os.environ | {"KVGATE_STORE": str(tmp_path / "ü #?.db"), "KVGATE_OFFLINE": "1"} | env,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    return [json.loads(line) for line in done.stdout.decode("ascii").splitlines()]


def faults_of(run: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """What is wrong with one run, beside the same command without any condition."""
    condition, out, err = run["condition"], run["out"], run["err"]
    found = [word for word in ("Traceback", "internal error", "Exception ignored") if word in out + err]
    expected = plain["code"]
    if condition == "full" and plain["out"]:
        expected = 4
    if run["code"] != expected and not (condition == "folders of nobody" and run["code"] == 2):
        found.append(f"exit {run['code']}, not {expected}")
    if "columns" in condition and "…" in out:
        found.append("cut off")
    # A bare `kvgate` or group prints its help page and no error.
    lines = err.strip().splitlines()
    if run["code"] in (2, 4) and condition != "all closed" and len(lines) != 1 and "Usage: kvgate" not in plain["out"]:
        found.append(f"{len(lines)} lines")
    return found


def all_faults(runs: list[dict[str, Any]]) -> list[str]:
    plain = {tuple(r["argv"]): r for r in runs if r["condition"] == "plain"}
    return [
        f"{' '.join(run['argv'])}: {run['condition']}: {', '.join(found)}: {run['err'][-300:]}"
        for run in runs
        if (found := faults_of(run, plain[tuple(run["argv"])]))
    ]


def test_no_verb_breaks_under_an_odd_condition(tmp_path: Path) -> None:
    """No traceback, one line, the exit code of a quiet terminal, nothing cut off."""
    runs = ran(tmp_path, *ODD)

    assert {"check", "plan", "lint", "launch", "show", "gate"} <= {r["argv"][0] for r in runs if r["argv"]}
    assert all_faults(runs) == []


def test_no_verb_breaks_in_a_locale_without_unicode(tmp_path: Path) -> None:
    """LC_ALL=POSIX without UTF-8 mode, with a store whose name has letters that the locale does not."""
    env = {"LC_ALL": "POSIX", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    assert all_faults(ran(tmp_path, "plain", **env)) == []


def test_what_is_wrong_is_seen() -> None:
    """A traceback, another exit code, a cut word and an error of two lines are found; a good run is not."""
    good = {"condition": "20 columns", "argv": ["where"], "code": 0, "out": "store: x", "err": ""}
    bad = {
        "exit 1, not 0": {"code": 1},
        "cut off": {"out": "sto…"},
        "Traceback": {"err": "Traceback (most recent call last)"},
        "exit 2, not 0, 2 lines": {"code": 2, "err": "kvgate: a\nb"},
    }

    assert faults_of(good, good) == []
    assert [", ".join(faults_of(good | change, good)) for change in bad.values()] == list(bad)
