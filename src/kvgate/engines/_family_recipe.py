"""Recipe -> one KV type for K and V of all layers, as engines store it that know nothing finer on their command line.

    native      the compute type spelled out; `auto` is refused, since it follows the checkpoint
    fp8_e4m3    the engine's word for it; scales are the checkpoint's where it has a KV scheme, else 1.0

Knows nothing of any engine beyond the spelling tables of the codecs.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.formats.spec import by_spelling, codec, storable_codecs
from kvgate.plan.price import native_codec

#: Types whose scales a checkpoint may bring.
_SCALED = ("fp8_e4m3", "fp8_e5m2", "nvfp4", "int8")
COMPUTE = {"bf16": "bfloat16", "f16": "float16"}
_WORDS = {"bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16", "half": "f16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """What an engine is to store.

    Attributes:
        codec: canonical id. native: the same of the compute type. spelling: the engine's word; "" for native.
        effective: the recipe as it will run, with the origin of its scales. priced: in words that the planner prices.
    """

    codec: str
    native: str
    spelling: str
    effective: Recipe
    priced: Recipe

    @property
    def compute(self) -> str:
        """The compute type in torch's words."""
        return COMPUTE[self.native]

    @property
    def is_native(self) -> bool:
        return self.codec == self.native


def one_type(
    recipe: Recipe, given: str, geometry: ModelGeometry, engine: str, *, allowed: tuple[str, ...] = ()
) -> Stored:
    """What `engine` stores for a recipe.

    Args:
        given: the recipe as the person wrote it, for messages.
        allowed: codecs beside the compute type; by default all that have a spelling of this engine.

    Raises:
        UserError: the engine cannot do this; names the part, what is allowed and the fix.
    """
    native = native_codec(geometry, engine)
    if native not in COMPUTE:
        raise UserError(
            f"{geometry.name} computes in {native}, which {engine}'s KV cache cannot be told to store",
            allowed=COMPUTE.values(),
            fix="correct the dtype in its config.json",
        )
    _refuse_options(recipe, given, engine)
    side = one_side(recipe, given, engine)
    name = native if side is None else _codec(side, given, geometry, native, engine, allowed)
    if side is None or name == native:
        if side is not None and (side.params or side.origin or side.transforms):
            raise UserError(f"KV recipe {given!r}: {native} has no scales and no transform", fix=f"write {native}")
        plain = Recipe(Side(native), Side(native))
        return Stored(native, native, "", plain, plain)
    if side.transforms:
        raise UserError(
            f"KV recipe {given!r}: {engine} cannot do +{side.transforms[0]}: its types are stored as they are",
            fix=f"write {side.codec}",
        )
    for param in side.params:
        if param != "tensor":
            raise UserError(
                f"KV recipe {given!r}: {engine} takes no {param!r} with {side.codec}: it has one scale a layer",
                fix="leave it out",
            )
    origin = _origin(side, name, geometry, given, engine)
    return Stored(
        codec=name,
        native=native,
        spelling=codec(name).spelling(engine),
        effective=Recipe(Side(name, origin=origin), Side(name, origin=origin)),
        priced=Recipe(Side(name), Side(name)),
    )


def _refuse_options(recipe: Recipe, given: str, engine: str) -> None:
    named = {"keep=": recipe.keep, "residual=": recipe.residual_tokens, "sink=": recipe.sink_tokens}
    for what, there in named.items():
        if there:
            raise UserError(
                f"KV recipe {given!r}: {engine} cannot do {what}: one type holds all tokens of all layers",
                fix="leave the option out",
            )


def one_side(recipe: Recipe, given: str, engine: str) -> Side | None:
    """The type of K and V alike; None is native, or a side that is."""
    if recipe.k is None or recipe.v is None:
        return None
    if recipe.k != recipe.v:
        raise UserError(
            f"KV recipe {given!r}: {engine} has one KV type for K and V together",
            fix=f"write {recipe.k.codec} or {recipe.v.codec}",
        )
    return recipe.k


def _codec(side: Side, given: str, geometry: ModelGeometry, native: str, engine: str, allowed: tuple[str, ...]) -> str:
    """The canonical codec; `auto` says nothing of itself."""
    if side.codec == "auto":
        scheme = geometry.kv_scheme
        why = (
            f"this checkpoint has a KV scheme, so that {engine} may start in {scheme} without a word"
            if scheme
            else "it follows the checkpoint, and another one may start in FP8 without a word"
        )
        raise UserError(f"KV recipe {given!r}: auto is refused: {why}", fix=f"write native ({native} spelled out)")
    compute = _WORDS.get(side.codec)
    name = compute or by_spelling(engine, side.codec)
    quantized = allowed or tuple(c for c in storable_codecs(engine) if c not in COMPUTE)
    if name not in (native, *quantized):
        why = f": {geometry.name} computes in {native}" if compute else ""
        raise UserError(f"KV recipe {given!r}: {engine} does not store {side.codec}{why}", allowed=(native, *quantized))
    return name


def _origin(side: Side, name: str, geometry: ModelGeometry, given: str, engine: str) -> str | None:
    """Where the scales come from; refuses an origin that the engine would not honour."""
    asked = side.origin
    if name not in _SCALED:
        if asked is not None:
            raise UserError(f"KV recipe {given!r}: {name} takes no scales from outside", fix=f"write {name}")
        return None
    own = "checkpoint" if geometry.kv_scheme else "unit"
    if asked in (None, own):
        return own
    why = {
        "unit": f"this checkpoint brings KV scales, and {engine} may load them whether asked or not",
        "checkpoint": f"this checkpoint has no KV scheme, so that {engine} scales by 1.0",
        "dynamic": f"{engine} makes no scales at run time",
    }.get(str(asked), f"{engine} reads scales from the checkpoint, not from a file of ours")
    raise UserError(f"KV recipe {given!r}: @{asked}: {why}", fix=f"write {name}@{own}")
