"""A program in the place of `tensorrt_llm.commands.serve`: takes a model and a YAML file, writes a log, answers.

Tests copy it into an environment of its own. It proves nothing of TensorRT-LLM. Variable KVGATE_STAND_IN holds JSON:
{"bytes": bytes of a token that its log names, "says_bytes": false, "says_room": false, "tokens": of its cache, "die":
text of an error before it is ready, "child_file": where the child's pid is written, "file": where the path of its
configuration is written, "slow_s": seconds before it listens, "metrics": false}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from toy_server import Toy

FLAGS = ("config", "host", "port", "log_level")
BYTES = {"auto": 23040, "fp8": 11520, "nvfp4": 6480}


def main() -> None:
    parser = argparse.ArgumentParser(prog="trtllm-serve", allow_abbrev=False)
    parser.add_argument("model")
    for flag in FLAGS:
        parser.add_argument(f"--{flag}")
    args = parser.parse_args()
    script = json.loads(os.environ.get("KVGATE_STAND_IN", "{}"))
    # Ours is JSON, which is YAML too.
    config = json.loads(Path(args.config).read_text())
    if "file" in script:
        Path(script["file"]).write_text(args.config)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "child_file" in script:
        Path(script["child_file"]).write_text(str(child.pid))
    if "die" in script:
        print(f"[10/02/2026-10:00:01] [TRT-LLM] [E] Failed to initialize executor\n{script['die']}", file=sys.stderr)
        sys.exit(1)
    print_log(config, script)
    time.sleep(script.get("slow_s", 0.0))
    ThreadingHTTPServer((args.host, int(args.port)), handler(args, config, script)).serve_forever()


def print_log(config: dict[str, Any], script: dict[str, Any]) -> None:
    cache = config["kv_cache_config"]
    each = script.get("bytes", BYTES[cache["dtype"]])
    tokens = script.get("tokens", cache["max_tokens"])
    at = "[10/02/2026-10:00:00] [TRT-LLM] [I]"
    shown = ", ".join(f"{k}={v!r}" for k, v in cache.items())
    lines = [
        f"{at} TensorRT-LLM version: 1.2.0",
        f"{at} LLM Args: TorchLlmArgs(model='m', kv_cache_config=KvCacheConfig({shown}), tensor_parallel_size=1)",
    ]
    if script.get("says_bytes", True):
        lines.append(
            f"{at} Peak memory during memory usage profiling (torch + non-torch): 21.46 GiB, available KV cache memory "
            f"when calculating max tokens: 50.00 GiB, fraction is set 0.9, kv size is {each}. device total memory "
            "79.19 GiB, , tmp kv_mem 0.56 GiB"
        )
    if script.get("says_room", True):
        lines += [
            "[TensorRT-LLM][INFO] Number of tokens per block: 32.",
            f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {tokens * each / 2**30:.2f} GiB for max tokens in paged "
            f"KV cache ({tokens}).",
        ]
    lines.append(
        f"{at} max_seq_len={config['max_seq_len']}, max_num_requests={config['max_batch_size']}, "
        f"max_num_tokens={config['max_num_tokens']}, max_batch_size={config['max_batch_size']}"
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def handler(args: argparse.Namespace, config: dict[str, Any], script: dict[str, Any]) -> type[Toy]:
    class Handler(Toy):
        model, context, owner = args.model, config["max_seq_len"], "tensorrt_llm"

        def page(self, path: str) -> Any:
            if path == "/version":
                return {"version": "1.2.0"}
            if path == "/metrics":
                return []
            if path == "/prometheus/metrics" and script.get("metrics", True):
                return "trtllm_kv_cache_utilization 0.5\n"
            return super().page(path)

    return Handler


if __name__ == "__main__":
    main()
