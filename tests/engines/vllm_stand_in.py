"""A program in the place of `vllm.entrypoints.openai.api_server`: takes flags, writes a log, has a child, answers.

Tests of processes copy it into an environment of its own. It proves nothing of vLLM; tests/vllm/ does. Variable
KVGATE_STAND_IN holds JSON: {"stored": word the log names, "tokens_factor": what its room is multiplied by, "die": text
of an error before it is ready, "core_file": where the child's pid is written, "slow_s": seconds before it is ready,
"late_s": seconds from there until it listens}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FLAGS = (
    *("model", "served-model-name", "load-format", "dtype", "kv-cache-dtype", "max-model-len", "max-num-seqs"),
    *("max-num-batched-tokens", "max-logprobs", "generation-config", "kv-cache-memory-bytes", "attention-backend"),
    *("host", "port", "api-key", "logits-processors", "tool-call-parser"),
)
SWITCHES = ("no-enable-prefix-caching", "disable-uvicorn-access-log", "enforce-eager", "enable-auto-tool-choice")
#: A request with this seed is answered as vLLM does when its engine core is gone.
DEAD_SEED, DEAD = 666, "EngineCore encountered an issue. See stack trace (above) for the root cause."
BYTES = {"bfloat16": 23040, "fp8_e4m3": 11520, "fp8_e5m2": 11520}


def main() -> None:
    parser = argparse.ArgumentParser(prog="api_server.py")
    for flag in FLAGS:
        parser.add_argument(f"--{flag}")
    parser.add_argument("--kv-cache-dtype-skip-layers", nargs="+", default=[])
    for switch in SWITCHES:
        parser.add_argument(f"--{switch}", action="store_true")
    args = parser.parse_args()
    script = json.loads(os.environ.get("KVGATE_STAND_IN", "{}"))
    core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "core_file" in script:
        Path(script["core_file"]).write_text(str(core.pid))
    if "die" in script:
        print(f"(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:1] {script['die']}", file=sys.stderr)
        sys.exit(1)
    time.sleep(script.get("slow_s", 0.0))
    print_log(args, script)
    # vLLM says that it is ready a moment before it listens.
    time.sleep(script.get("late_s", 0.0))
    ThreadingHTTPServer((args.host, int(args.port)), handler(args)).serve_forever()


def print_log(args: argparse.Namespace, script: dict) -> None:
    word = script.get("stored", args.kv_cache_dtype)
    tokens = int(
        int(args.kv_cache_memory_bytes) // (128 * BYTES[args.kv_cache_dtype]) * 128 * script.get("tokens_factor", 1)
    )
    length = int(args.max_model_len)
    lines = (
        f"(APIServer pid=1) INFO 11-30 12:00:00 [model.py:2152] Using max model len {args.max_model_len}",
        f"(APIServer pid=1) INFO 11-30 12:00:00 [api_utils.py:286] non-default args: {{'api_key': ['{args.api_key}']}}",
        "(APIServer pid=1) INFO 11-30 12:00:00 [scheduler.py:307] Chunked prefill is enabled with "
        f"max_num_batched_tokens={args.max_num_batched_tokens}.",
        f"(EngineCore pid=2) INFO 11-30 12:00:01 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        f"model='m', dtype=torch.{args.dtype}, max_seq_len={args.max_model_len}, tensor_parallel_size=1, "
        f"pipeline_parallel_size=1, kv_cache_dtype={word}, device_config=cpu, enable_prefix_caching=False",
        f"(EngineCore pid=2) INFO 11-30 12:00:02 [kv_cache_utils.py:2327] CPU KV cache size: {tokens:,} tokens, "
        f"Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x",
        "INFO:     Application startup complete.",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def handler(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(
                    200, f'vllm:cache_config_info{{cache_dtype="{args.kv_cache_dtype}",num_gpu_blocks="7"}} 1.0\n'
                )
            elif self.path == "/v1/models":
                self._json({"data": [{"id": args.served_model_name, "owned_by": "vllm"}]})
            elif self.path == "/health":
                self._send(200, "")
            else:
                self._send(404, '{"detail": "Not Found"}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {args.api_key}":
                self._send(401, '{"error": "Unauthorized"}')
                return
            if self.path == "/tokenize":
                self._json({"tokens": list(body["prompt"].encode())})
            elif self.path == "/v1/completions" and body.get("seed") == DEAD_SEED:
                self._send(500, json.dumps({"error": {"message": DEAD, "code": 500}}))
            elif self.path == "/v1/completions":
                self._json({"choices": [self._completion(body)]})
            elif self.path == "/v1/chat/completions":
                message = {"role": "assistant", "content": "hi"}
                self._json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
            else:
                self._send(404, '{"detail": "Not Found"}')

        def _completion(self, body: dict) -> dict:
            choice = {"index": 0, "text": "hi", "finish_reason": "length"}
            if (k := body.get("prompt_logprobs")) is not None:
                tops = [
                    {str(i): {"logprob": -float(i + n + 1)} for i in range(k)} for n in range(len(body["prompt"]) - 1)
                ]
                choice["prompt_logprobs"] = [None, *tops]
            if (ids := body.get("vllm_xargs", {}).get("kvgate_forced")) is not None:
                top = {f"token_id:{i}": -float(i + 1) for i in range(body["logprobs"])}
                named = [f"token_id:{i}" for i in ids]
                choice["logprobs"] = {"tokens": named, "top_logprobs": [top for _ in ids]}
            return choice

        def _json(self, value: dict) -> None:
            self._send(200, json.dumps(value))

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
