"""From what a person types to the commands of one engine."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.hardware.device import device as device_of
from kvgate.launch import llama_cpp, vllm
from kvgate.launch.commands import Ask, Commands
from kvgate.models.attention_sinks import has_sinks
from kvgate.models.resolve import resolve_plan_model

_ENGINES = {"vllm": vllm.commands, "llama_cpp": llama_cpp.commands}
_ALIASES = {"llama.cpp": "llama_cpp", "llamacpp": "llama_cpp", "llama-cpp": "llama_cpp"}


def launch(
    engine: str,
    model: str,
    kv: str,
    *,
    version: str = "",
    device: str = "",
    context_tokens: int = 0,
    tp: int = 0,
) -> Commands:
    """Commands that serve `kv` on `model`, its baseline, and the way back.

    Args:
        model: folder, config.json, GGUF file or hub id. kv: a recipe.

    Raises:
        UserError: an unknown engine, model, device, version or recipe, or one that the engine does not serve.
    """
    name = _ALIASES.get(engine.strip().lower(), engine.strip().lower())
    if name not in _ENGINES:
        raise UserError(f"launch writes no commands for {engine[:40]!r} yet", allowed=tuple(_ENGINES))
    found = resolve_plan_model(model)
    if name == "llama_cpp" and not any(path.suffix.lower() == ".gguf" for path in found.files):
        raise UserError(f"{model[:80]!r} is no GGUF file, and llama.cpp needs one", fix="give the path of a .gguf file")
    ask = Ask(
        model=str(found.files[0]) if name == "llama_cpp" else model,
        geometry=found.geometry,
        recipe=parse(kv),
        version=version,
        device=device_of(device) if device else None,
        sinks=has_sinks({"model_type": found.geometry.architecture}),
        context_tokens=_positive(context_tokens, "--context"),
        tp=_positive(tp, "--tp"),
    )
    return _ENGINES[name](ask)


def _positive(value: int, option: str) -> int:
    if value < 0:
        raise UserError(f"{option} is {value}", fix="give a number above 0")
    return value
