"""hf-mem's own run on configurations from standard input, its hub replaced. Run by `benchmarks/plan.py`."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from importlib.metadata import version
from typing import Any

# Not `import hf_mem.run as hf`: the package puts a function of the same name over the module.
hf = importlib.import_module("hf_mem.run")
FILES = [{"path": "config.json", "type": "file"}, {"path": "model.safetensors", "type": "file"}]
HEADER = {"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}


def main() -> None:
    asked = json.load(sys.stdin)
    given: dict[str, Any] = {}

    async def get_json_file(client: object, url: str, headers: object = None) -> Any:
        return FILES if "/tree/" in url else dict(given)

    async def fetch_safetensors_metadata(client: object, url: str, headers: object = None) -> Any:
        return HEADER

    hf.get_json_file, hf.fetch_safetensors_metadata = get_json_file, fetch_safetensors_metadata
    warnings.simplefilter("ignore")
    answers = []
    for config, tokens in asked["models"]:
        given = config
        try:
            got = hf.run("owner/model", experimental=True, max_model_len=tokens, kv_cache_dtype="bfloat16")
            refused = "" if got.kv_cache is not None else "no KV cache for this configuration"
            answers.append({"bytes": got.kv_cache, "refused": refused})
        except Exception as e:  # whatever it raises is its answer
            answers.append({"bytes": None, "refused": f"{type(e).__name__}: {e}"[:200]})
    print(json.dumps({"version": version("hf-mem"), "answers": answers}))


main()
