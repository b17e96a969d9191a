"""Request -> what SGLang is started with, and what it must then report. No engine is started and SGLang is not loaded.

Baseline and candidate differ in `--kv-cache-dtype` and in nothing else. The pool has a fixed number of tokens, the same
on all arms (`--max-total-tokens`), so that its tokens and bytes can be predicted and held against the log.

The radix cache stays on: the decode lane lives on it (a text that grows by a token must find its beginning there).
Everything else goes past it: each request has a salt of its own, and input log-probabilities are asked from the first
token on. `--enable-deterministic-inference` is not set, for it changes the kernels under test; a person may, with
`--engine-arg`, on all arms.

Source: sglang 0.5.23, srt/arg_groups/fields/, srt/mem_cache/kv_cache_dtype.py, srt/managers/schedule_batch.py.
"""

from __future__ import annotations

from typing import Final

from kvgate.core.engine import Launch, Request
from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import version_key
from kvgate.engines._family_package import Family, Installed, find_installed
from kvgate.engines._family_pool import expected_of, pool_tokens
from kvgate.engines._family_recipe import Stored, one_type
from kvgate.engines._family_settings import QUIET, check_request, has_flag, own_arguments, worker
from kvgate.plan.engine_rules.sglang import ENGINE_RULE

ENGINE: Final = "sglang"
FAMILY: Final = Family(ENGINE, "SGLang", ("sglang",), "KVGATE_SGLANG_PYTHON", ("SGLANG_", "SGL_", "OMP_NUM_THREADS"))
#: `sglang serve` is the newer word; this one is in all versions read.
MODULE: Final = "sglang.launch_server"
#: Name that requests give; the model's own may hold anything.
MODEL_NAME: Final = "model"
#: Where default sampling comes from. Without it a checkpoint's generation_config.json changes logits of greedy
#: requests too (repetition_penalty). Earlier versions were not read.
_SAMPLING_SINCE: Final = "0.5.23"
_SHAPES: Final = (
    *("--tp", "--tp-size", "--tensor-parallel-size", "--pp-size", "--pipeline-parallel-size", "--dp", "--dp-size"),
    *("--data-parallel-size", "--page-size", "--enable-dp-attention", "--swa-full-tokens-ratio"),
)
#: What kvgate decides itself, so that arms differ in nothing but the recipe and nobody else can reach the server.
_OURS: Final = (
    *("--model", "--model-path", "--tokenizer-path", "--served-model-name", "--host", "--port", "--api-key"),
    *("--admin-api-key", "--config", "--kv-cache-dtype", "--dtype", "--context-length", "--max-running-requests"),
    *("--chunked-prefill-size", "--max-total-tokens", "--disable-radix-cache", "--trust-remote-code", "--load-format"),
    *("--speculative-", "--quantization-param-path", "--sampling-defaults", "--random-seed", "--skip-server-warmup"),
    *("--log-level", "--preferred-sampling-params", "--enable-metrics", "--enable-cache-report", "--grpc-"),
)


def resolve(want: Request) -> Launch:
    """A launch of this engine for a recipe.

    Raises:
        UserError: no interpreter with SGLang, or the engine cannot do this; names the part, what is allowed and the
            fix.
    """
    settings = want.settings
    stored = words_of(want)
    check_request(want, ENGINE, secrets=("SGLANG_API_KEY",))
    own = own_arguments(settings, _OURS)
    installed = find_installed(FAMILY, want.python)
    tokens = pool_tokens(settings)
    return Launch(
        engine=ENGINE,
        request=want,
        argv=(str(installed.python), str(worker())),
        env=QUIET | {"OMP_NUM_THREADS": str(settings.threads)} | dict(settings.env),
        engine_options={
            "packages": list(FAMILY.packages),
            "module": MODULE,
            "arguments": [*_arguments(want, stored, installed, tokens), *own],
            "key_flag": "--api-key",
        },
        expected=expected_of(
            want, stored, ENGINE_RULE, installed.release, "max-total-tokens", sized=not has_flag(own, _SHAPES)
        ),
        effective=stored.effective,
    )


def words_of(want: Request) -> Stored:
    """What is to be stored; refuses float16 where only `auto` could give it and the checkpoint decides what that is."""
    given = want.spelling or str(want.recipe)
    stored = one_type(want.recipe, given, want.model.geometry, ENGINE)
    if stored.is_native and stored.native == "f16" and want.model.geometry.kv_scheme:
        raise UserError(
            f"KV recipe {given!r}: sglang has no word for float16 but auto, and this checkpoint's KV scheme turns auto "
            f"into {want.model.geometry.kv_scheme}",
            fix="use a checkpoint without a KV scheme as the base",
        )
    return stored


def kv_word(stored: Stored) -> str:
    """Value of --kv-cache-dtype. There is no word for float16; auto is the compute type, without a KV scheme."""
    if stored.is_native:
        return "bf16" if stored.native == "bf16" else "auto"
    return stored.spelling


def _arguments(want: Request, stored: Stored, installed: Installed, tokens: int) -> list[str]:
    settings = want.settings
    made = ["--model-path", str(want.model.path), "--served-model-name", MODEL_NAME, "--load-format", "safetensors"]
    made += ["--dtype", stored.compute, "--kv-cache-dtype", kv_word(stored)]
    made += ["--context-length", str(settings.context_tokens), "--max-running-requests", str(settings.slots)]
    # One step of the engine is what other engines call a physical batch.
    made += ["--chunked-prefill-size", str(settings.ubatch_tokens), "--max-total-tokens", str(tokens)]
    made += ["--random-seed", "0", "--enable-metrics", "--enable-cache-report", "--log-level", "info"]
    made += ["--log-level-http", "warning"]
    if version_key(installed.release) >= version_key(_SAMPLING_SINCE):
        made += ["--sampling-defaults", "openai"]
    return made
