"""Request -> what TensorRT-LLM is started with, and what it must then report. Nothing is started or loaded.

`trtllm-serve MODEL --config FILE`: the file is YAML in a private folder of the keeper's, gone with the server. Baseline
and candidate differ in `kv_cache_config.dtype` and in nothing else. The cache has a fixed number of tokens, the same on
all arms (`max_tokens`); block reuse is off, for it would make an answer depend on what was asked before.

There is no word for a native cache but `auto`, which follows the checkpoint: refused where that has a KV scheme. The
server takes no key (no such option in the versions read): it listens on loopback, on a free port.

Source: TensorRT-LLM tensorrt_llm/commands/serve.py (1.2), llmapi/llm_args.py KvCacheConfig (docs of 1.3.0rc27 and
1.4.0rc4). Not run here.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.engines._family_package import Family, find_installed
from kvgate.engines._family_pool import expected_of, pool_tokens
from kvgate.engines._family_recipe import Stored, one_type
from kvgate.engines._family_settings import QUIET, check_request, has_flag, own_arguments, worker
from kvgate.plan.engine_rules.trtllm import ENGINE_RULE

ENGINE: Final = "trtllm"
FAMILY: Final = Family(
    ENGINE,
    "TensorRT-LLM",
    ("tensorrt_llm", "tensorrt-llm"),
    "KVGATE_TRTLLM_PYTHON",
    ("TRTLLM_", "TLLM_", "OMP_NUM_THREADS"),
)
SCRIPT: Final = "trtllm-serve"
CONFIG: Final = "config.yaml"
#: KvCacheConfig.dtype of the PyTorch backend, beside auto; what else the codecs' tables name is of TensorRT engines.
QUANTIZED: Final = ("fp8_e4m3", "nvfp4")
_SHAPES: Final = ("--tp-size", "--tensor-parallel-size", "--pp-size", "--pipeline-parallel-size", "--ep-size")
_OURS: Final = (
    *("--host", "--port", "--config", "--extra-llm-api-options", "--tokenizer", "--backend", "--max-seq-len"),
    *("--max-batch-size", "--max-num-tokens", "--free-gpu-memory-fraction", "--kv-cache-free-gpu-memory-fraction"),
    *("--kv-cache-dtype", "--trust-remote-code", "--log-level", "--enable-chunked-prefill", "--max-beam-width"),
)


def resolve(want: Request) -> Launch:
    """A launch of this engine for a recipe.

    Raises:
        UserError: no interpreter with TensorRT-LLM, or the engine cannot do this; names the part, what is allowed and
            the fix.
    """
    settings = want.settings
    stored = words_of(want)
    check_request(want, ENGINE)
    own = own_arguments(settings, _OURS)
    installed = find_installed(FAMILY, want.python)
    tokens = pool_tokens(settings)
    model = str(want.model.path)
    return Launch(
        engine=ENGINE,
        request=want,
        argv=(str(installed.python), str(worker())),
        env=QUIET | {"TLLM_LOG_LEVEL": "INFO"} | dict(settings.env),
        engine_options={
            "packages": list(FAMILY.packages),
            "script": SCRIPT,
            # A path that begins with "-" would read as an option.
            "arguments": ["--config", "{" + CONFIG + "}", "--log_level", "info", *own, model],
            "files": {CONFIG: config_text(settings, stored, tokens)},
        },
        expected=expected_of(
            want, stored, ENGINE_RULE, installed.release, "max-tokens", sized=not has_flag(own, _SHAPES)
        ),
        effective=stored.effective,
    )


def words_of(want: Request) -> Stored:
    """What is to be stored; refuses a native cache that `auto` would not give."""
    given = want.spelling or str(want.recipe)
    stored = one_type(want.recipe, given, want.model.geometry, ENGINE, allowed=QUANTIZED)
    scheme = want.model.geometry.kv_scheme
    if stored.is_native and scheme:
        raise UserError(
            f"KV recipe {given!r}: trtllm has no word for a native cache but auto, and this checkpoint's KV scheme "
            f"turns auto into {scheme}",
            fix="use a checkpoint without a KV scheme as the base",
        )
    return stored


def config_text(settings: Settings, stored: Stored, tokens: int) -> str:
    """The YAML file. JSON is YAML: the same values, and nothing to quote wrongly."""
    cache: dict[str, Any] = {
        "dtype": "auto" if stored.is_native else stored.spelling,
        "max_tokens": tokens,
        "enable_block_reuse": False,
    }
    values = {
        "backend": "pytorch",
        "kv_cache_config": cache,
        "max_seq_len": settings.context_tokens,
        "max_batch_size": settings.slots,
        # One step of the engine is what other engines call a physical batch; without chunks a prompt is one step.
        "max_num_tokens": max(settings.ubatch_tokens, settings.slots),
        "enable_chunked_prefill": True,
    }
    return json.dumps(values, indent=1, sort_keys=True) + "\n"
