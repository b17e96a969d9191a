"""Token ids by a model folder's tokenizer.json. Runs in the interpreter that owns the engine, which has `tokenizers`.

Argument: the file. Standard input: one JSON line a text, {"text", "special"}; its end is the end of this process.
Standard output: one JSON line each, {"ids"}; or once {"failed"}, where the file or the package cannot be loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def tokenizer(path: str) -> Any:
    # By name: the interpreter that checks our types need not have the package.
    made = importlib.import_module("tokenizers").Tokenizer.from_file(path)
    # A file may be set to cut or to fill up texts.
    made.no_truncation()
    made.no_padding()
    return made


def main() -> None:
    try:
        made = tokenizer(sys.argv[1])
    except Exception as e:
        print(json.dumps({"failed": f"{type(e).__name__}: {e}"}), flush=True)
        return
    for line in sys.stdin:
        want = json.loads(line)
        ids = made.encode(want["text"], add_special_tokens=want["special"]).ids
        print(json.dumps({"ids": list(ids)}), flush=True)


if __name__ == "__main__":
    main()
