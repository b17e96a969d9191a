"""From what a person types to the commands of one engine."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.core.text import one_line
from kvgate.enginefacts.versions import version_of
from kvgate.hardware.device import device as device_of
from kvgate.launch.calibration import with_calibration
from kvgate.launch.commands import Ask, Commands, Writer
from kvgate.models.attention_sinks import has_sinks
from kvgate.models.hub_catalogue import hub_config
from kvgate.models.plan_model import PlanModel
from kvgate.models.read_config import read_config
from kvgate.models.resolve import resolve_plan_model


def writers() -> Mapping[str, Writer]:
    """Every engine that launch writes commands for, by id."""
    return registry.discover("launch_writer")


def writer_of(engine: str) -> Writer:
    """The writer of an engine.

    Raises:
        UserError: there is none of that name; the message lists what there is.
    """
    word = engine.strip().lower()
    for found in writers().values():
        if word == found.name or word in found.aliases:
            return found
    raise UserError(f"launch writes no commands for {one_line(engine, 40)!r} yet", allowed=writers())


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model as it was typed, with what was read of it."""

    text: str
    plan: PlanModel
    config: Mapping[str, object]


def resolve(model: str) -> Resolved:
    """Find a model and its configuration.

    Raises:
        UserError: there is no such model, it cannot be sized, or its name cannot be shown.
    """
    text = model.strip()
    if any(unicodedata.category(c)[0] == "C" for c in text):
        raise UserError(
            f"MODEL {one_line(model, 60)!r} holds a control character, which no terminal shows", fix="rename the folder"
        )
    found = resolve_plan_model(text)
    return Resolved(text, found, _config(text, found))


def launch(
    engine: str,
    model: str | Resolved,
    kv: str,
    *,
    version: str = "",
    device: str = "",
    context_tokens: int = 0,
    tp: int = 0,
    calibrate: str = "",
    cold_pages: str = "",
    host_cache_bytes: int = 0,
    helix: bool = False,
) -> Commands:
    """Commands that serve `kv` on `model`, its baseline, and the way back.

    Args:
        model: folder, config.json, GGUF file or hub id; or one that was resolved before. kv: a recipe.
        calibrate: name of a calibrator to write a checkpoint with scales first; "" where the recipe decides.
        cold_pages, host_cache_bytes, helix: as in `Ask`; TensorRT-LLM alone has them.

    Raises:
        UserError: an unknown engine, model, device, version or recipe, or one that the engine does not serve.
    """
    writer = writer_of(engine)
    if version:
        version_of(version, writer.name)
    recipe = parse(kv)
    where = device_of(device) if device else None
    found = model if isinstance(model, Resolved) else resolve(model)
    ask = Ask(
        model=_served(found, writer),
        geometry=found.plan.geometry,
        recipe=recipe,
        version=version,
        device=where,
        sinks=has_sinks(found.config or {"model_type": found.plan.geometry.architecture}),
        context_tokens=_positive(context_tokens, "--context"),
        tp=_positive(tp, "--tp"),
        config=found.config,
        cold_pages=cold_pages.strip().lower(),
        host_cache_bytes=_positive(host_cache_bytes, "--host-cache"),
        helix=helix,
    )
    ask, steps = with_calibration(ask, writer, calibrate.strip().lower())
    answer = writer.write(ask)
    trained = ask.geometry.context_tokens
    # llama.cpp runs on beyond it, with a line in its log.
    if 0 < trained < ask.context_tokens and writer.name != "llama_cpp":
        said = f"trained for {trained:,} tokens: an engine refuses {ask.context_tokens:,} unless the config scales RoPE"
        answer = replace(answer, loud=(*answer.loud, said))
    if steps is None:
        return answer
    return replace(
        answer,
        calibrate=steps.commands,
        files={**steps.files, **answer.files},
        loud=(*answer.loud, *steps.loud),
        notes=(*answer.notes, *steps.notes),
    )


def _served(model: Resolved, writer: Writer) -> str:
    """What the engine is given: a GGUF file, the folder of a config.json, and anything else as it was typed.

    Raises:
        UserError: a GGUF file for an engine that is given folders, or the other way round.
    """
    text, files = model.text, model.plan.files
    gguf = any(path.suffix.lower() == ".gguf" for path in files)
    if writer.model == "gguf" and not gguf:
        raise UserError(
            f"{one_line(text, 80)!r} is no GGUF file, and {writer.title} needs one", fix="give the path of a .gguf file"
        )
    if writer.model == "folder" and gguf:
        raise UserError(
            f"{one_line(text, 80)!r} is a GGUF file: what {writer.title} does with one was not read",
            fix="give a folder with config.json, or a hub id; llama_cpp takes GGUF files",
        )
    if gguf:
        text = str(files[0])
    elif files and (text.endswith("config.json") or text.startswith("~")):
        text = str(files[0].parent)
    # An engine would take a folder called "-x" for an option.
    return f"./{text}" if text.startswith("-") else text


def _config(model: str, found: PlanModel) -> Mapping[str, object]:
    """The model's configuration; empty where nobody has it here."""
    if found.files:
        first = found.files[0]
        return read_config(first) if first.suffix.lower() == ".json" else {}
    shipped = hub_config(model)
    return shipped.config if shipped is not None else {}


def _positive(value: int, option: str) -> int:
    if value < 0:
        raise UserError(f"{option} is {value}", fix="give a number above 0")
    return value
