"""scripts/long_run.py at a size that a test can wait for: a real engine, two stops, and the rest a day later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "long_run.py"


@pytest.mark.kill_long
@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_a_long_check_is_flat_and_goes_on_after_two_stops(tmp_path: Path) -> None:
    """Memory within the limits of the script, the same verdict after SIGINT, SIGKILL and another day."""
    words = [sys.executable, str(SCRIPT), "--positions", "24000", "--folder", str(tmp_path / "long")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1700, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGINT after" in done.stdout and "SIGKILL after" in done.stdout
    assert "verdict: the same as undisturbed" in done.stdout
