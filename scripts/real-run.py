"""Puts a real run's output between the `real-run` marks of README.md and docs/getting-started.md.

kvgate check smollm2 --kv q8_0 --kv q4_0 --policy smoke 2>/dev/null | python scripts/real-run.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARKS = re.compile(r"<!-- real-run -->\n.*?<!-- /real-run -->", re.DOTALL)


def main() -> None:
    lines = [line.rstrip() for line in sys.stdin.read().strip().splitlines()]
    # The report's path is of the machine that ran it.
    shown = [line if not line.startswith("report: ") else "report: .../report.html" for line in lines]
    block = "<!-- real-run -->\n```text\n" + "\n".join(shown) + "\n```\n<!-- /real-run -->"
    for page in ("README.md", "docs/getting-started.md"):
        path = ROOT / page
        path.write_text(MARKS.sub(lambda _: block, path.read_text(), count=1))


if __name__ == "__main__":
    main()
