"""What the tests of `kvgate probe` share: pages of each engine, and logs.

llama.cpp's pages were recorded from a live server (xllamacpp 2026.10.11549, q8_0, two slots of 512 tokens), vLLM's
from live servers of 0.32.0 on the CPU. SGLang's and TensorRT-LLM's are built with the keys of their own sources
(sglang 0.5.23 `build_server_info`, tensorrt_llm/metrics/collector.py) and have not been seen from a running server.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOGS = HERE.parent / "plan" / "logs"
URL = "http://127.0.0.1:8000"


def llama_pages() -> dict[str, Any]:
    """Recorded."""
    return dict(json.loads((HERE / "data" / "probe_llama_cpp_b11549.json").read_text()))


def recorded_vllm(name: str) -> dict[str, Any]:
    """Recorded: "fp8" (with /server_info), "auto", and "scheme", where a checkpoint turns FP8 on."""
    return dict(json.loads((HERE / "data" / "probe_vllm_0.32.0_cpu.json").read_text())[name])


def vllm_pages(
    dtype: str = "fp8_e4m3", *, tokens: int = 93_184, version: str = "0.32.0", **labels: str
) -> dict[str, Any]:
    """The recorded pages without /server_info, of the servers whose logs lie in `tests/plan/logs`; labels as given."""
    pages = recorded_vllm("fp8")
    changed = {"cache_dtype": dtype, "kv_cache_size_tokens": str(tokens), "num_gpu_blocks": str(tokens // 128)} | labels
    metrics = str(pages["/metrics"])
    for name, value in changed.items():
        metrics, n = re.subn(rf'\b{name}="[^"]*"', f'{name}="{value}"', metrics)
        assert n == 1, name
    listed = {"id": "smollm2", "owned_by": "vllm", "root": "smollm2-hf", "max_model_len": 8192}
    return {"/v1/models": {"data": [listed]}, "/version": {"version": version}, "/metrics": metrics}


def sglang_pages(**server_info: Any) -> dict[str, Any]:
    """SGLang 0.5.23's pages."""
    info = {
        "model_path": "Qwen/Qwen3-8B",
        "kv_cache_dtype": "fp8_e5m2",
        "attention_backend": "triton",
        "mem_fraction_static": 0.88,
        "page_size": 1,
        "tp_size": 2,
        "pp_size": 1,
        "dp_size": 1,
        "disable_radix_cache": False,
        "chunked_prefill_size": 8192,
        "speculative_algorithm": None,
        "quantization_param_path": None,
        "max_total_num_tokens": 2_174_000,
        "launch_command": "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --kv-cache-dtype fp8_e5m2",
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": 2048,
                "memory_usage": {"weight": 7.72, "kvcache": 74.64, "token_capacity": 2_174_000, "graph": {}},
            }
        ],
        "version": "0.5.3",
    }
    return {
        "/v1/models": {"data": [{"id": "Qwen/Qwen3-8B", "owned_by": "sglang", "max_model_len": 40_960}]},
        "/server_info": info | server_info,
        "/model_info": {"model_path": "Qwen/Qwen3-8B", "is_generation": True},
        "/metrics": (
            'sglang:max_total_num_tokens{model_name="Qwen/Qwen3-8B",tp_rank="0"} 2174000.0\n'
            'sglang:num_running_reqs{model_name="Qwen/Qwen3-8B",tp_rank="0"} 0.0\n'
            'sglang:page_size{model_name="Qwen/Qwen3-8B",tp_rank="0"} 1.0\n'
        ),
    }


def trtllm_pages(dtype: str = "fp8", version: str = "1.2.0rc7") -> dict[str, Any]:
    """TensorRT-LLM 1.2's pages, with `return_perf_metrics` on."""
    return {
        "/v1/models": {"data": [{"id": "Qwen3-8B", "owned_by": "tensorrt_llm"}]},
        "/version": {"version": version},
        "/metrics": [{"iter": 1, "kvCacheStats": {"maxNumBlocks": 45_999, "tokensPerBlock": 32}}],
        "/prometheus/metrics": (
            'trtllm_kv_cache_config_info{engine_type="undefined",model_name="undefined",page_size="32",'
            f'enable_block_reuse="True",cache_dtype="{dtype}"}} 1.0\n'
            'trtllm_parallel_config_info{model_name="undefined",tensor_parallel_size="1"} 1.0\n'
            'trtllm_kv_cache_max_blocks{model_name="undefined"} 45999.0\n'
        ),
    }
