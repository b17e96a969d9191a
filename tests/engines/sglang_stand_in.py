"""A program in the place of `sglang.launch_server`: takes flags, writes a log, has a child, answers.

Tests copy it into an environment of its own. It proves nothing of SGLang; its answers are held against SGLang's own
models elsewhere. Variable KVGATE_STAND_IN holds JSON: {"stored": torch type that the log names, "tokens_factor": what
its room is multiplied by, "gib_factor": and its memory, "die": text of an error before it is ready, "port_taken": true,
"child_file": where the child's pid is written, "slow_s": seconds before it is ready, "late_s": seconds from there until
it listens, "page": tokens of a page, "radix": false, "speculative": algorithm, "scales": lines of the log, "info":
fields of its page, "ignores_salt": true, "record": file, "old_args": the arguments' line of older versions}.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from toy_server import Toy, logprobs, tokens

FLAGS = (
    *("model-path", "served-model-name", "load-format", "dtype", "kv-cache-dtype", "context-length", "host", "port"),
    *("max-running-requests", "chunked-prefill-size", "max-total-tokens", "random-seed", "log-level", "api-key"),
    *("sampling-defaults", "mem-fraction-static", "attention-backend", "log-level-http"),
)
SWITCHES = ("enable-metrics", "enable-cache-report", "enable-deterministic-inference", "disable-radix-cache")
#: torch's words for the flag's, and bytes a token of K and V of the tests' model (30 layers, 3 heads of 64).
STORED = {"bf16": "torch.bfloat16", "auto": "torch.float16", "fp8_e4m3": "torch.float8_e4m3fn"}
STORED |= {"fp8_e5m2": "torch.float8_e5m2", "mxfp8": "torch.float8_e4m3fn"}
BYTES = {"torch.bfloat16": 2, "torch.float16": 2, "torch.float8_e4m3fn": 1, "torch.float8_e5m2": 1}
ELEMENTS = 30 * 2 * 3 * 64
GB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
    for flag in FLAGS:
        parser.add_argument(f"--{flag}")
    for switch in SWITCHES:
        parser.add_argument(f"--{switch}", action="store_true")
    args = parser.parse_args()
    script = json.loads(os.environ.get("KVGATE_STAND_IN", "{}"))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "child_file" in script:
        Path(script["child_file"]).write_text(str(child.pid))
    if script.get("port_taken"):
        other = socket.socket()
        other.bind((args.host, int(args.port)))
        other.listen()
    if "die" in script:
        print(f"[2026-10-02 10:00:01 TP0] Scheduler hit an exception: Traceback\n{script['die']}", file=sys.stderr)
        sys.exit(1)
    time.sleep(script.get("slow_s", 0.0))
    late = script.get("late_s", 0.0)
    if not late:
        server = ThreadingHTTPServer((args.host, int(args.port)), handler(args, script))
    print_log(args, script)
    if late:
        time.sleep(late)
        server = ThreadingHTTPServer((args.host, int(args.port)), handler(args, script))
    server.serve_forever()


def room(args: argparse.Namespace, script: dict[str, Any]) -> int:
    return int(int(args.max_total_tokens) * script.get("tokens_factor", 1))


def print_log(args: argparse.Namespace, script: dict[str, Any]) -> None:
    at = "[2026-10-02 10:00:00"
    stored = script.get("stored", STORED[args.kv_cache_dtype])
    gib = room(args, script) * ELEMENTS * BYTES.get(stored, 1) / 2 / GB * script.get("gib_factor", 1)
    values = {"model_path": args.model_path, "context_length": int(args.context_length), "api_key": args.api_key}
    values |= {"kv_cache_dtype": args.kv_cache_dtype, "page_size": script.get("page", 1), "tp_size": 1, "pp_size": 1}
    shown = f"ServerArgs({', '.join(f'{k}={v!r}' for k, v in values.items())})" if script.get("old_args") else values
    lines = [
        f"{at}] server_args={shown}",
        f"{at}] Attention backend not specified. Use flashinfer backend by default.",
        f"{at} TP0] Load weight begin. avail mem=78.50 GB",
        f"{at} TP0] Load weight end. elapsed=1.0 s, type=LlamaForCausalLM, dtype=torch.{args.dtype}, "
        "avail mem=78.20 GB, mem usage=0.30 GB.",
        *(f"{at} TP0] {line}" for line in script.get("scales", [])),
    ]
    if stored:
        lines.append(
            f"{at} TP0] KV Cache is allocated. dtype: {stored}, #tokens: {room(args, script)}, "
            f"K size: {gib:.2f} GB, V size: {gib:.2f} GB"
        )
    lines += [
        f"{at} TP0] max_total_num_tokens={room(args, script)}, chunked_prefill_size={args.chunked_prefill_size}, "
        f"max_prefill_tokens=16384, max_running_requests={args.max_running_requests}, "
        f"context_len={args.context_length}, available_gpu_mem=10.50 GB",
        f"{at}] The server is fired up and ready to roll!",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def handler(args: argparse.Namespace, script: dict[str, Any]) -> type[Toy]:
    cached: list[tuple[str, list[int]]] = []
    page = script.get("page", 1)

    class Handler(Toy):
        key, context, owner = args.api_key or "", int(args.context_length), "sglang"
        record = script.get("record", "")

        def page(self, path: str) -> Any:  # type: ignore[override]
            if path == "/metrics":
                return 'sglang:max_total_num_tokens{model_name="model"} 1.0\n'
            if path == "/model_info":
                return {"model_path": args.model_path, "is_generation": True}
            if path == "/server_info":
                memory = {"weight": 0.3, "kvcache": 0.1, "token_capacity": room(args, script)}
                return {
                    "version": "0.5.23",
                    "model_path": args.model_path,
                    "kv_cache_dtype": args.kv_cache_dtype,
                    "attention_backend": "flashinfer",
                    "page_size": page,
                    "tp_size": 1,
                    "pp_size": 1,
                    "dp_size": 1,
                    "device": "cuda",
                    "speculative_algorithm": script.get("speculative"),
                    "api_key": args.api_key,
                    "disable_radix_cache": args.disable_radix_cache,
                    "mem_fraction_static": 0.88,
                    "chunked_prefill_size": int(args.chunked_prefill_size),
                    "dtype": args.dtype,
                    "enable_deterministic_inference": args.enable_deterministic_inference,
                    "max_total_num_tokens": room(args, script),
                    "internal_states": [{"memory_usage": memory}],
                    **script.get("info", {}),
                }
            return super().page(path)

        def answers(self) -> Any:
            return super().answers() | {"/generate": self.native, "/tokenize": self.tokenized}

        def tokenized(self, body: Any) -> Any:
            ids = list(body["prompt"].encode())
            return {"tokens": ids, "count": len(ids), "max_model_len": self.context}

        def too_long(self, n: int, more: int) -> str:
            return f"The input ({n} tokens) is longer than the model's context length ({self.context} tokens)."

        def found(self, ids: list[int], salt: str, limit: int) -> int:
            """Tokens of a text that the radix cache has, in whole pages."""
            best = 0
            if args.disable_radix_cache or script.get("radix") is False:
                return 0
            for its, text in cached:
                if its == salt or script.get("ignores_salt"):
                    same = next(
                        (i for i, (a, b) in enumerate(zip(text, ids, strict=False)) if a != b), min(len(text), len(ids))
                    )
                    best = max(best, min(same, limit) // page * page)
            cached.append((salt, ids))
            return best

        def native(self, body: Any) -> Any:
            ids, k, start = tokens(body["input_ids"]), body["top_logprobs_num"], body["logprob_start_len"]
            self.fits(ids, 1)
            limit = len(ids) - 1 if start < 0 or script.get("ignores_start") else min(len(ids) - 1, start)
            meta: dict[str, Any] = {"id": "1", "finish_reason": {"type": "length", "length": 1}, "weight_version": "1"}
            meta |= {"prompt_tokens": len(ids), "completion_tokens": 1, "num_retractions": 0}
            meta["cached_tokens"] = self.found(ids, body.get("cache_salt", ""), limit)
            top = logprobs(ids)
            meta["output_token_logprobs"] = [[top[0][1], top[0][0], None]]
            meta["output_top_logprobs"] = [[[x, i, None] for i, x in top[:k]]]
            if start >= 0:
                rows = [logprobs(ids[:n]) for n in range(1, len(ids))]
                every = [dict(row) for row in rows]
                meta["input_token_logprobs"] = [[None, ids[0], None]]
                meta["input_token_logprobs"] += [
                    [e.get(t, -50.0), t, None] for e, t in zip(every, ids[1:], strict=True)
                ]
                meta["input_top_logprobs"] = [None, *([[x, i, None] for i, x in row[:k]] for row in rows)]
                wanted = body.get("token_ids_logprob") or []
                named = [[[e.get(i, -50.0), i, None] for i in wanted] for e in every]
                meta["input_token_ids_logprobs"] = [None, *named]
            return {"text": chr(top[0][0]), "output_ids": [top[0][0]], "meta_info": meta}

    return Handler


if __name__ == "__main__":
    main()
