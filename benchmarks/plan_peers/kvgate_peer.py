"""kvgate's own arithmetic on configurations from standard input, started like the others' by `benchmarks/plan.py`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.plan.price import price, sequence_bytes


def main() -> None:
    asked = json.load(sys.stdin)
    answers = []
    for config, tokens in asked["models"]:
        try:
            geometry = geometry_from_config(config, "model", Source("file", "config.json"))
            answers.append({"bytes": sequence_bytes(price(geometry, parse("bf16")), tokens), "refused": ""})
        except Exception as e:  # whatever it raises is its answer
            answers.append({"bytes": None, "refused": f"{type(e).__name__}: {e}"[:200]})
    print(json.dumps({"version": version("kvgate"), "answers": answers}))


main()
