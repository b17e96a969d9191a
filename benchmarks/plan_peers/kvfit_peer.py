"""kvfit's own cache arithmetic on configurations from standard input. Run by `benchmarks/plan.py`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

from kvfit.architectures import estimate_cache


def main() -> None:
    asked = json.load(sys.stdin)
    answers = []
    for config, tokens in asked["models"]:
        try:
            # What `kvfit MODEL --context N --kv-dtype bf16` calls once it has fetched the configuration.
            cache = estimate_cache(config, context_tokens=tokens, kv_bytes=2.0)
            answers.append({"bytes": cache.total_bytes, "refused": ""})
        except Exception as e:  # whatever it raises is its answer
            answers.append({"bytes": None, "refused": f"{type(e).__name__}: {e}"[:200]})
    print(json.dumps({"version": version("kvfit"), "answers": answers}))


main()
