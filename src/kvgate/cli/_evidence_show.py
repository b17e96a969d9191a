"""Claims on a terminal: the answer first, then quotes from the nearest to the farthest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kvgate.core import recipe as recipes
from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe, Side
from kvgate.enginefacts.versions import version_of
from kvgate.evidence.caveat import WORDS, Caveat
from kvgate.evidence.claim import Claim, Number
from kvgate.evidence.family import Subject, families, plain_name, subject_of
from kvgate.evidence.load import Published, claims
from kvgate.evidence.match import NOT_TESTED, Asked, Match, Model, is_tested

_ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp")
_SPELLED = {"llama-cpp": "llama_cpp", "llamacpp": "llama_cpp", "llama.cpp": "llama_cpp", "tensorrt-llm": "trtllm"}
#: Claims shown without --all.
MOST_SHOWN = 10
_HEADS = {
    Model.SAME: "This model",
    Model.SAME_SIZE: "Same family and size, other training",
    Model.FAMILY: "Same family",
    Model.LAYERS: "Other families with the same kind of layers",
    Model.ANY: "Other models, same recipe",
}
_TRAITS = {
    "mla": "MLA",
    "windows": "sliding windows",
    "hybrid": "layers with a state",
    "moe": "mixture of experts",
    "shared": "shared layers",
}


def asked(model: str, kv: str | None, engine: str, version: str, context: int | None) -> Asked:
    """The question of a command line.

    Raises:
        UserError: MODEL, recipe, engine or version is none, or a version is of no engine.
    """
    known = _engine(engine) if engine else ""
    if version and not known:
        raise UserError("--engine-version without --engine", allowed=_ENGINES, fix="add --engine")
    if version:
        version_of(version, known)
    wanted = _recipe(kv, known) if kv is not None else None
    return Asked(subject(model), wanted, known, version, context)


def _recipe(text: str, engine: str) -> Recipe:
    """A recipe with each codec by its own name; an engine's word for it ("fp8") is taken too."""
    from kvgate.core import registry

    wanted = recipes.parse(text)
    if wanted.k is None or wanted.v is None:
        raise UserError("--kv native is the baseline, about which nothing is claimed", fix="give a quantized recipe")
    claimed = {s.codec for p in claims().values() if p.claim.recipe for _, s in recipes.parse(p.claim.recipe).sides()}
    known = {*registry.discover("codec"), *registry.discover("method"), *claimed} - {"none"}

    def named(side: Side) -> Side:
        if engine and (own := _spelled(engine, side.codec)):
            return replace(side, codec=own)
        if side.codec in known:
            return side
        found = {_spelled(e, side.codec) for e in _ENGINES} - {""}
        if len(found) != 1:
            raise UserError(f"unknown codec {side.codec[:40]!r} in --kv", allowed=sorted(known))
        return replace(side, codec=found.pop())

    return wanted.with_sides(named(wanted.k), named(wanted.v))


def _engine(text: str) -> str:
    given = text.strip().casefold().replace("tensorrt_llm", "tensorrt-llm")
    known = _SPELLED.get(given, given)
    if known not in _ENGINES:
        raise UserError(f"unknown engine {text[:40]!r}", allowed=_ENGINES)
    return known


def _spelled(engine: str, word: str) -> str:
    """The codec that an engine's word means; empty where it has none."""
    from kvgate.formats.spec import by_spelling

    try:
        return by_spelling(engine, word)
    except UserError:
        return ""


def subject(text: str) -> Subject:
    """MODEL by its files where it has any here, else by its name alone; nothing is fetched.

    Raises:
        UserError: a URL, a path that is not there, a file that is no model, or a bare name nobody published on.
    """
    given = text.strip()
    if not given or "\0" in given or len(given) > 4096:
        raise UserError(f"MODEL {given[:40]!r} is empty, or no name or path at all", fix="give a hub id or a path")
    if "://" in given:
        raise UserError(f"MODEL {given[:80]!r} is a URL", fix="give the model's name, e.g. Qwen/Qwen3-32B")
    from kvgate.models.hub import is_hub_id

    path = _existing(given)
    if path is not None:
        from kvgate.models.plan_model import plan_model_of_path

        found = plan_model_of_path(path)
        return subject_of(found.name, found.geometry)
    if is_hub_id(given):
        return _by_hub_id(given)
    if "/" in given or given.startswith(("~", ".")) or given.endswith((".gguf", ".json", ".safetensors")):
        raise UserError(f"there is no file or folder {given[:200]!r}", fix="give a hub id such as Qwen/Qwen3-32B")
    named = subject_of(given)
    if not named.family:
        near = get_close_matches(plain_name(given), _known_names(), n=3)
        raise UserError(
            f"unknown model {given[:80]!r}", allowed=near, fix="give its hub id, OWNER/NAME, or the path of its files"
        )
    return named


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a name too long for the file system, ~somebody whom nobody knows
        return None


def _by_hub_id(given: str) -> Subject:
    """Its layers from the shipped catalogue, if it is there; the name alone must do otherwise."""
    from kvgate.models.geometry_from_config import geometry_from_config
    from kvgate.models.hub_catalogue import hub_config

    known = hub_config(given)
    if known is None:
        return subject_of(given)
    from kvgate.core.source import Source

    try:
        geometry = geometry_from_config(known.config, given, Source("file", known.source))
    except UserError:  # no KV cache that can be sized: what is published is found by the name
        return subject_of(given)
    return subject_of(given, geometry)


def _known_names() -> list[str]:
    names = {plain_name(n) for p in claims().values() for n in (p.claim.model, *p.claim.also) if n}
    return sorted(names)


def print_matches(console: Console, question: Asked, found: Sequence[Match], *, everything: bool) -> None:
    """The answer in one line, then quotes under a heading a distance."""
    console.print(Text(_about(question.subject), style="dim"))
    if question.recipe is not None:
        what = f"{question.subject.name} with {question.recipe}"
        tested = is_tested(found)
        near = "; what comes near is below, with how far it carries" if found else ""
        said = "tested by others: see below, and how far it carries" if tested else f"{NOT_TESTED}{near}"
        console.print(Text.assemble((f"{what}: ", "bold"), said))
    elif not found:
        console.print(Text(f"{question.subject.name}: {NOT_TESTED}"))
    shown = found if everything else found[:MOST_SHOWN]
    # One heading for each distance of the model, the nearest first; within it the order stays.
    shown = sorted(shown, key=lambda m: list(_HEADS).index(m.model))
    head: Model | None = None
    for m in shown:
        if m.model is not head:
            head = m.model
            console.print(Text(f"\n{_HEADS[head]}", style="bold"))
        _print_claim(console, m.claim, m.published.title, m.carries)
    if len(shown) < len(found):
        console.print(Text(f"\n{len(found) - len(shown)} more claims carry less: --all shows them", style="dim"))
    _print_caveats(console, [m.claim for m in shown])
    if found:
        console.print(Text("\nQuoted from others, never averaged. Your own answer: kvgate check", style="dim"))


def print_list(console: Console, found: Iterable[Published]) -> None:
    """Every claim under its publication."""
    head, listed = "", sorted(found, key=lambda p: (p.file, p.claim.id))
    for p in listed:
        if p.title != head:
            head = p.title
            console.print(Text(f"\n{head}", style="bold"))
        _print_claim(console, p.claim, "", ())
    _print_caveats(console, [p.claim for p in listed])


def _print_caveats(console: Console, shown: Sequence[Claim]) -> None:
    used = [c for c in Caveat if any(c in claim.caveats for claim in shown)]
    if used:
        console.print(Text("\nCaveats", style="bold"))
    for c in used:
        console.print(Padding(Text(f"{c.value}: {WORDS[c]}"), (0, 0, 0, 2), expand=False))


def _about(subject: Subject) -> str:
    family = families()[subject.family].title if subject.family else "no family that we know claims of"
    layers = ", ".join(_TRAITS[t] for t in subject.traits) or "nothing special"
    how = "read from its files" if subject.traits_read else "by its name"
    return f"{subject.name}: {family}; layers ({how}): {layers}"


def _print_claim(console: Console, claim: Claim, title: str, carries: Sequence[str]) -> None:
    console.print(Text(f"  {claim.id}", style="cyan"))
    lines = [Text(claim.statement)]
    lines += [Text(f"{number_line(n)}") for n in claim.numbers]
    if claim.effect:
        lines.append(Text(claim.effect))
    if carries:
        lines.append(Text("carries: " + "; ".join(carries), style="bold"))
    if claim.scope:
        lines.append(Text("scope: " + claim.scope))
    if claim.caveats:
        lines.append(Text("caveats: " + ", ".join(claim.caveats), style="yellow"))
    if claim.contradicted_by:
        lines.append(Text("contradicted by: " + ", ".join(claim.contradicted_by), style="yellow"))
    if claim.correction is not None:
        lines.append(Text("now: " + claim.correction.now))
    where = f"{title} | " if title else ""
    lines.append(Text(f"{where}{claim.source.as_source()}", style="dim"))
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 4), expand=False))


def number_line(n: Number) -> str:
    """'AIME25, accuracy: 0.7733 -> 0.7333 (30 items, 10 runs)'."""
    unit = f" {n.unit}" if n.unit else ""
    value = f"{n.candidate:.9g}" + (f" to {n.candidate_to:.9g}" if n.candidate_to is not None else "")
    value = f"under {value}" if n.below else value
    pair = f"{n.baseline:.9g} -> {value}" if n.baseline is not None else value
    counts = [f"{n.n} items" if n.n else "", f"{n.repeats} runs each" if n.repeats else ""]
    told = ", ".join(c for c in counts if c)
    return f"{n.task}, {n.metric}: {pair}{unit}" + (f" ({told})" if told else "")
