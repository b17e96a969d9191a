"""From what a person typed to a question: sizes, devices, recipes and lengths are read and checked here.

The command line only passes its words on. Reads files' headers; starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.units import gb_text, parse_bytes, parse_tokens
from kvgate.hardware.device import Device, device
from kvgate.models.plan_model import PlanModel, gguf_parts
from kvgate.models.read_gguf import read_gguf
from kvgate.models.read_safetensors import read_safetensors
from kvgate.models.resolve import resolve_plan_model
from kvgate.models.weights import Weights, gguf_weights, weights_bytes
from kvgate.plan.budget import check_fraction
from kvgate.plan.lengths import read_lengths
from kvgate.plan.question import DeviceMemory, Draft, Question
from kvgate.plan.spelled import engine_id, recipe_of
from kvgate.plan.terms import Serving

#: Engine of a plan that names none: most hub ids are served by it, and its rule prints what it will say.
DEFAULT_ENGINE = "vllm"
_GIVEN = Source("spec", "given on the command line")
_GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Typed:
    """Words of the command line; None is left out. Sizes are text with their units, a context may be ("32K")."""

    model: str
    kv: Sequence[str] = ()
    device: str | None = None
    device_memory: str | None = None
    context_tokens: int | str | None = None
    engine: str | None = None
    engine_version: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    weights: str | None = None
    overhead: str | None = None
    fraction: float | None = None
    slots: int | None = None
    batched_tokens: int | None = None
    block_tokens: int | None = None
    lengths: Path | None = None
    prefix_tokens: int = 0
    draft: str | None = None
    mtp: bool = False
    replicas: int = 1
    options: Sequence[str] = field(default=())


def question(typed: Typed) -> Question:
    """Read everything and put it together.

    Raises:
        UserError: anything that cannot be read or does not fit; one line with the way on.
    """
    model = resolve_plan_model(typed.model)
    engine = engine_id(typed.engine) if typed.engine is not None else _default_engine(model)
    memory = device_memory(typed.device, typed.device_memory)
    weights, how = _weights(typed.weights, model)
    geometry = model.geometry
    kv = tuple(typed.kv) or ("native", "q8_0" if engine == "llama_cpp" else "fp8_e4m3")
    if typed.fraction is not None:
        check_fraction(typed.fraction)
    return Question(
        geometry=geometry,
        name=model.name,
        recipes=tuple(recipe_of(text, engine=engine, geometry=geometry) for text in kv),
        serving=Serving(
            engine=engine,
            version=typed.engine_version.removeprefix("v"),
            context_tokens=_context(typed, model),
            tp=typed.tp,
            pp=typed.pp,
            dp=typed.dp,
            dcp=typed.dcp,
            slots=_positive(typed.slots, "--slots"),
            batched_tokens=_positive(typed.batched_tokens, "--batched-tokens"),
            block_tokens=_positive(typed.block_tokens, "--block-tokens"),
            memory_fraction=typed.fraction,
            mtp=typed.mtp,
            options=_options(typed, memory),
        ),
        weights_bytes=weights,
        weights_how=how,
        device=memory,
        overhead_bytes=None if typed.overhead is None else parse_bytes(typed.overhead, "--overhead", zero=True),
        lengths=None if typed.lengths is None else read_lengths(typed.lengths),
        prefix_tokens=typed.prefix_tokens,
        draft=None if typed.draft is None else _draft(typed.draft),
        replicas=typed.replicas,
        engine_named=typed.engine is not None,
        origin=model.origin,
    )


def device_memory(name: str | None, given: str | None) -> DeviceMemory | None:
    """The device's memory: as given, else as the device reports it, else the marketing figure, which is then said.

    Raises:
        UserError: an unknown device, a size that is none, or a device whose memory nobody can know.
    """
    found = None if name is None else device(name, otherwise="leave --device out and give --device-memory 24GB")
    size = None if given is None else parse_bytes(given, "--device-memory")
    if found is None:
        return None if size is None else DeviceMemory("a device of this size", size, _GIVEN)
    memory = found.memory
    if size is None and memory is None:
        raise UserError(
            f"the memory of {found.name} is not known: {found.note or 'no source has it'}",
            fix="give --device-memory 12GB",
        )
    source = _GIVEN
    if size is None and memory is not None:
        which = "device-reported" if memory is found.reported else "marketing figure, the reported size is not known"
        source = Source("spec", f"{which}: {memory.source}" + (" (unverified)" if memory.unverified else ""))
    bandwidth = found.bandwidth
    return DeviceMemory(
        found.name,
        size if size is not None else memory.bytes if memory is not None else 0,
        source,
        bytes_per_s=None if bandwidth is None else bandwidth.bytes_per_s,
        bandwidth_source=""
        if bandwidth is None
        else bandwidth.source + (" (unverified)" if bandwidth.unverified else ""),
        architecture=found.architecture,
        other=_other_sizes(found),
        id=found.id,
    )


def _other_sizes(found: Device) -> tuple[str, ...]:
    sizes = (("marketing", found.marketing), ("device-reported", found.reported), ("runtime", found.runtime))
    return tuple(f"{label} {gb_text(m.bytes)}" for label, m in sizes if m is not None)


def _default_engine(model: PlanModel) -> str:
    return "llama_cpp" if Path(model.geometry.source.ref).suffix.lower() == _GGUF else DEFAULT_ENGINE


def _context(typed: Typed, model: PlanModel) -> int:
    if isinstance(typed.context_tokens, str):
        return parse_tokens(typed.context_tokens, "--context")
    if typed.context_tokens is not None:
        return typed.context_tokens
    if model.geometry.context_tokens <= 0:
        raise UserError(f"{model.name} does not say its context", fix="give --context 32768")
    return model.geometry.context_tokens


def _positive(value: int | None, flag: str) -> int | None:
    if value is not None and value < 1:
        raise UserError(f"{flag} {value} is not a count", fix="give 1 or more")
    return value


def _options(typed: Typed, memory: DeviceMemory | None) -> Mapping[str, str]:
    """The engine's own settings as NAME=VALUE, and what its rule must know of the device."""
    found = {}
    if memory is not None:
        found["device-memory"] = str(memory.bytes)
        if memory.id:
            found["device"] = memory.id
    for text in typed.options:
        name, eq, value = text.partition("=")
        if not name.strip() or not eq:
            raise UserError(f"--option {text[:60]!r} is not NAME=VALUE", fix="write e.g. --option enforce-eager=true")
        found[name.strip().lstrip("-")] = value
    return found


def _weights(given: str | None, model: PlanModel) -> tuple[int | None, str]:
    if given is None:
        return model.weights_bytes, model.weights_missing if model.weights is None else model.weights.how
    path = Path(given)
    if path.exists():
        found = _weights_in(path)
        return found.bytes, found.how
    return parse_bytes(given, "--weights"), "given on the command line"


def _weights_in(path: Path) -> Weights:
    if path.is_dir():
        found = weights_bytes(path)
        if found is None:
            raise UserError(f"{path} holds no safetensors files", fix="give --weights 65.52GB, or a GGUF file")
        return found
    if path.suffix.lower() == _GGUF:
        return gguf_weights([read_gguf(part) for part in gguf_parts(path)])
    if path.suffix.lower() == ".safetensors":
        header = read_safetensors(path)
        how = f"{len(header.tensors):,} tensors of one safetensors file"
        return Weights(header.tensor_bytes, how, Source("file", str(path)))
    raise UserError(
        f"--weights {str(path)!r} is neither a folder, a safetensors file nor a GGUF file", fix="give one, or a size"
    )


def _draft(text: str) -> Draft:
    """A size such as 2GB, or a model."""
    try:
        return Draft("draft", parse_bytes(text, "--draft"))
    except UserError:
        if text.strip()[:1].isdigit() and not Path(text).exists() and "/" not in text:
            raise
    model = resolve_plan_model(text)
    if model.weights_bytes is None:
        raise UserError(
            f"the weights of the draft model {model.name} are not known: {model.weights_missing}",
            fix="give a folder with its weights, or the bytes that it takes",
        )
    return Draft(model.name, model.weights_bytes, model.geometry)
