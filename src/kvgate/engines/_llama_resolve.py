"""Recipe -> what llama.cpp is started with, and what it must then report. Pure; the engine's package is not imported.

This engine has a type for all of K and one for all of V: no layers left out, no windows, no scales. Quantized types are
rotated where the head size allows it, so `q8_0` runs as `q8_0+hadamard`, and `q8_0+none` sets a variable that takes
rotation out of the whole context.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kvgate.core.deployment import Expected
from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.enginefacts.facts import load
from kvgate.engines._llama_rotation import DISABLE, PLAIN_CODECS, is_forced, rotations
from kvgate.formats.spec import by_spelling, codec, codecs, storable_codecs
from kvgate.plan.engine_rules.llama_cpp import cache_parts, room

ENGINE = "llama_cpp"
SERVER_WORKER = Path(__file__).parent / "workers" / "llama_cpp_server.py"
NATIVE = Side("f16")
TRANSFORMS = ("hadamard", "none")
#: Types whose difference this engine's CPU path does not show. Seen: KL exactly 0 at 3,072 prefill and 64 decode
#: positions.
_EQUAL = frozenset({"f16", "f32"})
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Both sides as canonical codecs, and whether rotation is taken out of the context."""

    k: str
    v: str
    disabled: bool
    effective: Recipe


def resolve(want: Request) -> Launch:
    """A launch of this engine for a recipe.

    Raises:
        UserError: the engine cannot do this; names the part, what is allowed and the fix.
    """
    geometry, settings = want.model.geometry, want.settings
    _check_settings(geometry, settings)
    plan = _plan(want)
    facts = load(ENGINE)
    n_slot = room(geometry.context_tokens, context_tokens=settings.context_tokens).sequence_tokens
    # The engine caps the batch at the context of all slots: capped here at one slot's, it is the same for any number.
    n_batch = min(settings.batch_tokens, n_slot)
    n_ubatch = min(settings.ubatch_tokens, n_batch)
    env = dict(settings.env)
    if plan.disabled:
        env[DISABLE] = "1"
    options = {
        "model": str(want.model.path),
        "n_vocab": geometry.vocab_size,
        "n_ctx": n_slot * settings.slots,
        "n_parallel": settings.slots,
        "type_k": _number(plan.k),
        "type_v": _number(plan.v),
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "n_threads": settings.threads,
        "n_ctx_checkpoints": settings.checkpoints,
        "rotation_disabled": plan.disabled,
    }
    return Launch(
        engine=ENGINE,
        request=want,
        argv=(str(want.python or sys.executable), str(SERVER_WORKER)),
        env=env,
        engine_options=options,
        expected=_expected(geometry, settings, plan, n_ubatch, predict=not is_forced(geometry, facts)),
        effective=plan.effective,
    )


def _plan(want: Request) -> _Plan:
    recipe, geometry = want.recipe, want.model.geometry
    given = want.spelling or str(recipe)
    _refuse_options(recipe, given)
    sides = dict(recipe.sides()) or {"k": NATIVE, "v": NATIVE}
    names = {side: _codec(s, geometry, given, side) for side, s in sides.items()}
    by_env = _is_set(want.settings.env)
    turns = dict(zip("kv", _turned(geometry, names), strict=True))
    disabled = False
    for side, s in sides.items():
        if "none" in s.transforms and turns[side]:
            disabled = True
        if "hadamard" in s.transforms:
            _refuse_hadamard(geometry, names[side], side, given, turns=turns[side], by_env=by_env)
    disabled = disabled or by_env
    for side, s in sides.items():
        if disabled and not by_env and turns[side] and "none" not in s.transforms:
            raise UserError(
                f"KV recipe {given!r}: llama.cpp turns rotation off for K and V together",
                fix="write +none on both sides, or on none",
            )
    k, v = (Side(names[x], transforms=_transform(turns[x], disabled)) for x in "kv")
    return _Plan(names["k"], names["v"], disabled, Recipe(k, v))


def _turned(geometry: ModelGeometry, names: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether K and V are rotated in any cache if nothing is said about it."""
    parts = rotations(geometry, names["k"], names["v"])
    return any(k for _, k, _ in parts), any(v for _, _, v in parts)


def _transform(turned: bool, disabled: bool) -> tuple[str, ...]:
    return () if not turned else ("none",) if disabled else ("hadamard",)


def _refuse_options(recipe: Recipe, given: str) -> None:
    for what, there in (
        ("keep=", bool(recipe.keep)),
        ("residual=", recipe.residual_tokens is not None),
        ("sink=", recipe.sink_tokens is not None),
    ):
        if there:
            raise UserError(
                f"KV recipe {given!r}: llama_cpp cannot do {what}: one type holds all layers and tokens",
                fix="leave the option out, or give K and V different types",
            )
    for side, s in recipe.sides():
        if s.params or s.origin:
            part = ":" + s.params[0] if s.params else "@" + str(s.origin)
            raise UserError(
                f"KV recipe {given!r}: llama_cpp takes no {part!r} on {side}: its types carry their scales in blocks",
                fix=f"write {s.codec}",
            )
        bad = [t for t in s.transforms if t not in TRANSFORMS]
        if bad:
            raise UserError(
                f"KV recipe {given!r}: llama_cpp cannot do +{bad[0]}", allowed=["+" + t for t in TRANSFORMS]
            )
        if len(s.transforms) > 1:
            raise UserError(f"KV recipe {given!r}: more than one transform on {side}", fix="write one of them")


def _cached(geometry: ModelGeometry) -> list[LayerGeometry]:
    """Layers with rows of K and V; a recurrent layer keeps only a state."""
    return [layer for layer in geometry.layers if layer.kv_heads > 0]


def _codec(side: Side, geometry: ModelGeometry, given: str, which: str) -> str:
    """The canonical codec id of one side, or a UserError that says why not."""
    refused = load(ENGINE).refusal_of(side.codec)
    if refused is not None:
        dims = sorted({layer.k_dim if which == "k" else layer.v_dim for layer in _cached(geometry)})
        misfits = [d for d in dims if refused.block and d % refused.block]
        why = refused.why
        if misfits:
            why = f"it stores blocks of {refused.block} elements, and head_dim {misfits[0]} is not a multiple of that"
        raise UserError(
            f"KV recipe {given!r}: llama_cpp does not store a KV cache in {side.codec!r}: {why}",
            allowed=_fitting(geometry),
            fix=refused.fix,
        )
    name = by_spelling(ENGINE, side.codec)
    if name not in _fitting(geometry):
        _refuse_block(name, geometry, given)
    return name


def _refuse_block(name: str, geometry: ModelGeometry, given: str) -> NoReturn:
    block = codec(name).block
    dim = next(d for layer in _cached(geometry) for d in (layer.k_dim, layer.v_dim) if d % block)
    raise UserError(
        f"KV recipe {given!r}: {name} stores blocks of {block} elements, and this model's head_dim {dim} is not a "
        f"multiple of {block}",
        fix="choose " + " or ".join(_fitting(geometry)),
    )


def _fitting(geometry: ModelGeometry) -> list[str]:
    """Codecs of this engine whose block divides every head of the model."""
    dims = {d for layer in _cached(geometry) for d in (layer.k_dim, layer.v_dim)}
    return [c for c in storable_codecs(ENGINE) if not any(d % codec(c).block for d in dims)]


def _refuse_hadamard(geometry: ModelGeometry, name: str, side: str, given: str, *, turns: bool, by_env: bool) -> None:
    if by_env and turns:
        why, fix = f"{DISABLE} is set for this arm", "take the variable away, or write +none"
    elif turns:
        return
    elif name in PLAIN_CODECS:
        why, fix = f"{name} is never rotated", f"write {name}"
    else:
        dims = sorted({layer.k_dim if side == "k" else layer.v_dim for layer in _cached(geometry)})
        why = (
            f"it rotates {side.upper()} only where 64 divides the head size, which is {', '.join(map(str, dims))} here"
        )
        fix = f"write {name}"
    raise UserError(f"KV recipe {given!r}: llama_cpp does not rotate here: {why}", fix=fix)


def _expected(
    geometry: ModelGeometry, settings: Settings, plan: _Plan, ubatch_tokens: int, *, predict: bool
) -> Expected:
    k, v = codec(plan.k), codec(plan.v)
    n_slot = room(geometry.context_tokens, context_tokens=settings.context_tokens).sequence_tokens
    parts = cache_parts(
        geometry,
        k,
        v,
        context_tokens=n_slot * settings.slots,
        slots=settings.slots,
        ubatch_tokens=ubatch_tokens,
    )
    turned = rotations(geometry, plan.k, plan.v, disabled=plan.disabled)
    return Expected(
        k_codec=plan.k,
        v_codec=plan.v,
        k_rotation=max(x for _, x, _ in turned) if predict else None,
        v_rotation=max(x for _, _, x in turned) if predict else None,
        bytes_per_token=sum(k.slot_bytes(layer, "k") + v.slot_bytes(layer, "v") for layer in geometry.layers),
        parts_mib=tuple((p.kind, p.cells, p.k_mib, p.v_mib) for p in parts),
        parts_rotation=turned if predict else (),
        lossless_against=_lossless(plan.k, plan.v),
    )


def _lossless(k: str, v: str) -> tuple[str, ...]:
    """Codecs that both sides hold unchanged, as far as this engine can tell."""

    def held(name: str) -> set[str]:
        return {*codec(name).lossless_from, name} | (_EQUAL if name in _EQUAL else set())

    both = held(k) & held(v)
    return tuple(c.name for c in codecs() if c.name in both)


def _number(name: str) -> int:
    row = load(ENGINE).dtype_of(name)
    if row is None or row.number is None:
        raise UserError(f"llama_cpp has no number for KV type {name!r}", allowed=[d.codec for d in load(ENGINE).dtype])
    return row.number


def _check_settings(geometry: ModelGeometry, settings: Settings) -> None:
    for name in ("context_tokens", "batch_tokens", "ubatch_tokens", "slots", "threads"):
        if getattr(settings, name) < 1:
            raise UserError(f"{name} is {getattr(settings, name)}", fix="give a positive number")
    if settings.checkpoints < 0:
        raise UserError(f"checkpoints is {settings.checkpoints}", fix="give 0 or more")
    if settings.context_tokens > geometry.context_tokens:
        raise UserError(
            f"a context of {settings.context_tokens} tokens is longer than {geometry.name} was trained for "
            f"({geometry.context_tokens})",
            fix=f"give at most --context {geometry.context_tokens}",
        )
    if not _cached(geometry):
        raise UserError(f"{geometry.name} keeps no KV cache", fix="there is nothing to store in another type")
    if any(layer.index_bytes_per_token for layer in geometry.layers):
        raise UserError(
            f"{geometry.name} keeps an indexer's cache beside K and V, whose size on llama.cpp has no verified rule",
            fix="check it on another engine",
        )
    for name, value in settings.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise UserError(f"environment variable {name!r} cannot be set", fix="write env.NAME=VALUE")


def _is_set(env: Mapping[str, str]) -> bool:
    """Whether the variable turns rotation off; the engine reads it with C's atoi."""
    m = re.match(r"\s*([+-]?\d+)", env.get(DISABLE, ""))
    return bool(m) and int(m[1]) != 0 if m else False
