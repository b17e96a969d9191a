"""VRAMScout's own plan on configurations from standard input, read from folders. Run by `benchmarks/plan.py`.

Its plan is in GiB and by part; weights, runtime, scratch and reserve are left out. Its defaults are kept but for what
is asked of every tool: BF16 KV, one sequence, one GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from vramscout import modern_v06
from vramscout.modern_v07 import plan_modern

NOT_CACHE = ("Model weights / rank", "CUDA / runtime", "Prefill scratch", "Safety reserve")


def main() -> None:
    asked = json.load(sys.stdin)
    # Parameters and bytes of the weights, which it asks the hub for; they do not enter the cache.
    modern_v06._selected_hub_metadata = lambda ref, revision: (10**9, 2 * 10**9)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for i, (config, tokens) in enumerate(asked["models"]):
            model = Path(folder) / str(i)
            model.mkdir()
            (model / "config.json").write_text(json.dumps(config))
            try:
                got = plan_modern(str(model), context=tokens, kv_dtype="bf16", vram_gib=141.0, weight_dtype="bf16")
                gib = sum(size for name, size in got.parts_gib.items() if name not in NOT_CACHE)
                answers.append({"bytes": gib * 2**30, "refused": ""})
            except Exception as e:  # whatever it raises is its answer
                answers.append({"bytes": None, "refused": f"{type(e).__name__}: {e}"[:200]})
    print(json.dumps({"version": version("vramscout"), "answers": answers}))


main()
