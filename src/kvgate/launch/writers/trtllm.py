"""TensorRT-LLM: `trtllm-serve MODEL --config FILE`, and the files. Everything about the cache stands in the file.

Known from its documentation and pull requests (1.2.1 to 1.4.0rc4), not from a run: what was not verified is said in
notes. `auto` follows a ModelOpt checkpoint, and whether `dtype` takes a 16-bit word was not verified, so that such a
checkpoint has no baseline here and no way back but its 16-bit original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.formats.spec import by_spelling
from kvgate.launch.checkpoint_kv import CheckpointKv, checkpoint_kv
from kvgate.launch.commands import Ask, Commands, Serve, Writer, refuse_auto, refuse_research_options
from kvgate.launch.kept_layers import refuse_kept
from kvgate.launch.known_trouble import refuse_known_trouble
from kvgate.launch.read_range import version_notes
from kvgate.launch.tensor_parallel import check_tp
from kvgate.launch.writers._trtllm_cold import cold_notes, cold_pages
from kvgate.launch.writers._trtllm_windows import windows
from kvgate.launch.yaml_file import yaml_text

_NATIVE = "auto"
_CANDIDATE, _BASELINE = "candidate.yaml", "baseline.yaml"
#: KvCacheConfig's own defaults, written out so that both arms have them (llmapi/llm_args.py, 1.4.0rc4).
_DEFAULTS: Mapping[str, Any] = {"free_gpu_memory_fraction": 0.9, "tokens_per_block": 32}
#: docs/source/features/quantization.md, 1.4.0rc4: Ampere, Ada, Hopper, 10.0, 10.3, 12.0.
_FP8_ON, _NVFP4_ON = ("8", "9", "10.0", "10.3", "12.0"), ("10.0", "10.3")


def commands(ask: Ask) -> Commands:
    """Candidate, baseline and rollback, with the files that they name.

    Raises:
        UserError: the recipe cannot be served by TensorRT-LLM; one line with what can.
    """
    facts, checkpoint = load("trtllm"), checkpoint_kv(ask)
    refuse_research_options(ask.recipe, "TensorRT-LLM")
    refuse_kept(ask, "TensorRT-LLM")
    if ask.vendor not in ("", "nvidia"):
        raise UserError(f"TensorRT-LLM runs on NVIDIA GPUs, not on {ask.where}", fix="take vllm or sglang")
    notes = [*version_notes(ask.version, facts), *check_tp(ask)]
    loud: list[str] = []
    word = _word(ask, facts, checkpoint, notes, loud)
    if word != _NATIVE:
        refuse_known_trouble(ask, facts, word)
    cold, compression = cold_pages(ask, word)
    base = {**_DEFAULTS, **windows(ask, notes), **cold}
    why, why_not_back = _no_native(ask, checkpoint)
    if word == _NATIVE and why:
        raise UserError(f"native: {why}", fix="write fp8_e4m3, or serve the 16-bit original")
    notes += [*cold_notes(ask), *_unverified(ask)]
    files = {_CANDIDATE: yaml_text(_file(ask, word, base, compression))}
    if not (why and why_not_back):
        files[_BASELINE] = yaml_text(_file(ask, _NATIVE, base, {}))
    return Commands(
        "trtllm",
        _serve(ask.served, _CANDIDATE),
        None if why else _serve(ask.served, _BASELINE),
        None if why_not_back else _serve(ask.model, _BASELINE),
        why and f"no baseline: {why}",
        why_not_back and f"no known rollback: {why_not_back}",
        loud=tuple(loud),
        notes=tuple(dict.fromkeys(notes)),
        files=files,
    )


def _no_native(ask: Ask, checkpoint: CheckpointKv) -> tuple[str, str]:
    """Why there is no baseline, and no rollback; "" where there is."""
    word = "and whether dtype takes a 16-bit word was not verified (ModelOpt issue 763)"
    if checkpoint.asks:
        why = f"auto follows this checkpoint into {checkpoint.name or checkpoint.algorithm or 'its KV scheme'}, {word}"
        return why, f"{why}; serve the 16-bit original"
    if ask.calibrated_as:
        return f"auto would follow {ask.calibrated_as}, {word}", ""
    return "", ""


def _word(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, notes: list[str], loud: list[str]) -> str:
    """The value of kv_cache_config.dtype.

    Raises:
        UserError: TensorRT-LLM has no such type, or not on this device; the message names the nearest that it has.
    """
    recipe = ask.recipe
    refuse_auto(recipe)
    if recipe.k is None or recipe.v is None:
        return _NATIVE
    if recipe.k != recipe.v:
        raise UserError(f"KV recipe {str(recipe)!r}: TensorRT-LLM has one type for K and V", fix="write one codec")
    side = recipe.k
    if side.transforms and side.transforms != ("none",):
        raise UserError(f"KV recipe {str(recipe)!r}: TensorRT-LLM has no transform to ask for", fix="leave + out")
    if side.params and side.params != ("tensor",):
        raise UserError(f"{side}: TensorRT-LLM has one scale for a layer", fix=f"write {side.codec}")
    word = _spelled(side, facts, ask)
    if word == _NATIVE:
        return word
    # First what no checkpoint can mend.
    _refuse_device(ask, word)
    if word == "nvfp4":
        if not (checkpoint.algorithm.startswith("NVFP4") or checkpoint.name == "nvfp4" or ask.calibrated_as):
            raise UserError(
                "an NVFP4 cache needs a checkpoint that ModelOpt made for it",
                fix="add --calibrate modelopt, or write fp8",
            )
        return word
    if side.origin == "dynamic":
        raise UserError(f"{side}: TensorRT-LLM computes no FP8 scales while it serves", fix="write @unit")
    said = "the PyTorch backend builds FP8 KV scales as 1.0, and whether it reads a checkpoint's was not verified"
    (loud if side.origin not in (None, "unit") else notes).append(said)
    return word


def _spelled(side: Side, facts: EngineFacts, ask: Ask) -> str:
    words = [d.codec for d in facts.dtype]
    if side.codec in ("bf16", "f16", "bfloat16", "float16", "fp16"):
        if by_spelling("vllm", side.codec) == ask.geometry.native_dtype:
            return _NATIVE
        raise UserError(f"{side.codec} on TensorRT-LLM: whether dtype takes it was not verified", fix="write native")
    try:
        name = by_spelling("trtllm", side.codec)
    except UserError:
        refused = facts.refusal_of(side.codec)
        if refused is not None:
            raise UserError(f"{side.codec} on TensorRT-LLM: {refused.why}", fix="write fp8_e4m3") from None
        raise UserError(f"TensorRT-LLM does not store {side.codec}", allowed=words) from None
    row = facts.dtype_of(name)
    if row is None:
        raise UserError(f"TensorRT-LLM does not store {name}", allowed=words)
    return row.spelling


def _refuse_device(ask: Ask, word: str) -> None:
    if ask.device is None:
        return
    wanted = _NVFP4_ON if word == "nvfp4" else _FP8_ON
    if not any(ask.capability == w or ask.capability.split(".")[0] == w for w in wanted):
        fix = "write fp8_e4m3" if word == "nvfp4" else "write native"
        raise UserError(
            f"TensorRT-LLM's hardware table marks {word} for {', '.join(wanted)}, and not for {ask.capability}", fix=fix
        )


def _unverified(ask: Ask) -> tuple[str, ...]:
    found = [
        "the attention backend is TensorRT-LLM's own on both arms: nothing to pin",
        "written from the documentation (1.4.0rc4), not run; free_gpu_memory_fraction is a share of what is free after "
        "loading",
    ]
    if ask.model_type.startswith("deepseek_v4"):
        found.append("DeepSeek-V4 has cache roles of its own: what dtype does to them was not read")
    if bool(ask.config.get("is_encoder_decoder")):
        found.append("of an encoder-decoder only the decoder's self-attention is quantized")
    return tuple(found)


def _file(ask: Ask, word: str, base: Mapping[str, Any], compression: Mapping[str, Any]) -> dict[str, Any]:
    """The whole file; the two arms' differ in dtype, and in the compression of cold pages where it is asked for."""
    found: dict[str, Any] = {"backend": "pytorch"}
    if ask.tp:
        found["tensor_parallel_size"] = ask.tp
    if ask.context_tokens:
        found["max_seq_len"] = ask.context_tokens
    found["kv_cache_config"] = {"dtype": word, **base}
    if compression:
        found["kv_cache_compression_config"] = dict(compression)
    return found


def _serve(model: str, file: str) -> Serve:
    return Serve(("trtllm-serve", model, "--config", file))


WRITER = Writer(
    "trtllm",
    "TensorRT-LLM",
    commands,
    ("tensorrt-llm", "tensorrt_llm", "trt-llm"),
    calibrator="modelopt",
)
