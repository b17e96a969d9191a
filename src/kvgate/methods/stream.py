"""A recipe on one layer as a stream: `open_layer` joins codec or method, transforms, sinks and window of K and V.

`append` takes tokens, `read` gives all of them as the next step's attention sees them, `step` does both for the tokens
at hand: where an engine attends to what it has just stored (llama.cpp, vLLM's FP8), that is what was stored; where it
attends to fresh tokens as they came (KIVI, vLLM's TurboQuant in prefill), these tokens are raw and the earlier ones as
stored. `decode_view` tells which tokens a decoding step at each position sees encoded, so that one teacher-forced pass
with masks gives the same as token by token.

MLA layers keep one latent vector as K and no V: V is None throughout. A method with basis "pre_rope" is fed K before
RoPE and gives it back so; the caller applies RoPE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.formats.spec import KVSide, codecs
from kvgate.methods import spec
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._native import NATIVE
from kvgate.methods.residual_window import WindowedCodec, WindowStream
from kvgate.methods.spec import KV, BoundTransform, Packed, Transform, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array


class CodecCoder(GroupCoder):
    """A plain codec of `formats/`, token by token; what it makes of NaN and infinities is the codec's own matter.

    Args:
        scale: of a codec whose scale lies outside the cache: a number, or an array that broadcasts against
            (batch, kv_heads, tokens, 1).
    """

    finite_only = False

    def __init__(self, name: str, scale: Any = None) -> None:
        from kvgate.formats.codec import codecs as arithmetic

        self.codec, self.scale = arithmetic[name], scale

    def encode(self, x: Array, tables: Packed) -> Packed:
        return {"rows": self.codec.encode(x, scale=self.scale)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        return self.codec.decode(packed["rows"], scale=self.scale)


@dataclass(slots=True)
class LayerStream:
    """K and V of one layer. A `Stream`.

    Attributes:
        own_raw: see `StorageMethod.own_raw`; the stricter of the two sides.
    """

    k: WindowStream
    v: WindowStream | None
    own_raw: bool | int = False

    @property
    def tokens(self) -> int:
        return self.k.tokens

    def append(self, k: Array, v: Array | None) -> None:
        """Take further tokens, (batch, kv_heads, tokens, dim) each. What is refused changes neither side.

        Raises:
            UserError: V where the layer keeps none, or K and V of different lengths or devices; or a side refuses its
            array.
        """
        if (v is None) != (self.v is None):
            raise UserError("this layer keeps " + ("K only" if self.v is None else "K and V") + "; give what it keeps")
        self.k.check(k)
        if self.v is not None:
            self.v.check(v)
            _check_pair(k, v)
        self.k.append(k)
        if self.v is not None:
            self.v.append(v)

    def read(self) -> KV:
        return KV(self.k.read(), None if self.v is None else self.v.read())

    def step(self, k: Array, v: Array | None) -> KV:
        """Append, and give all tokens as attention of exactly these tokens sees them."""
        before = self.read() if self.tokens else None
        raw = self._sees_raw(self.tokens, int(k.shape[2]))
        self.append(k, v)
        return _with_raw(before, k, v) if raw else self.read()

    def stored_bytes(self) -> int:
        return self.k.stored_bytes() + (0 if self.v is None else self.v.stored_bytes())

    def packed(self) -> Packed:
        sides = {"k": self.k} | ({} if self.v is None else {"v": self.v})
        return {f"{s}.{name}": a for s, stream in sides.items() for name, a in stream.packed().items()}

    def decode_view(self, position: int, side: KVSide) -> range:
        """Tokens that a decoding step at `position` (counted from 0) sees encoded, of those before and itself."""
        stream = self.k if side == "k" or self.v is None else self.v
        return stream.encoded(position if self._sees_raw(position, 1) else position + 1)

    def _sees_raw(self, stored: int, fresh: int) -> bool:
        if isinstance(self.own_raw, bool):
            return self.own_raw
        return fresh > 1 and (stored == 0 or fresh > self.own_raw)


def _stricter(a: bool | int, b: bool | int) -> bool | int:
    """Of two rules of `own_raw` the one by which more tokens are seen raw."""
    if a is True or b is True:
        return True
    limits = [n for n in (a, b) if not isinstance(n, bool)]
    return min(limits) if limits else False


def _check_pair(k: Array, v: Array) -> None:
    from kvgate.formats.xp import namespace

    if namespace(k) is not namespace(v):
        raise UserError("K and V are of different libraries or devices", fix="give both from one device")
    if k.shape[0] != v.shape[0] or k.shape[2] != v.shape[2]:
        what = "sequences" if k.shape[0] != v.shape[0] else "tokens"
        at = 0 if what == "sequences" else 2
        raise UserError(f"K has {k.shape[at]} {what} and V has {v.shape[at]}")


def _with_raw(before: KV | None, k: Array, v: Array | None) -> KV:
    from kvgate.formats.xp import namespace
    from kvgate.methods._arrays import join

    xp = namespace(k)
    fresh = KV(xp.widen(xp.plain(k)), None if v is None else xp.widen(xp.plain(v)))
    if before is None:
        return fresh
    both = None if before.v is None else join(xp, [before.v, fresh.v], 2)
    return KV(join(xp, [before.k, fresh.k], 2), both)


def open_side(
    side: Side,
    kv: KVSide,
    layer: LayerGeometry,
    *,
    window: Window | None = None,
    native: str | None = None,
    tables: Any = None,
) -> tuple[WindowStream, bool | int]:
    """One side of a recipe on one layer, and its `own_raw`.

    Raises:
        UserError: unknown codec, method or transform; parameters or dimensions that do not fit.
    """
    storage = spec.storage_of(side, kv)
    window = spec.with_warmup(side, kv, window)
    dim = layer.k_dim if kv == "k" else layer.v_dim
    bound = transforms_of(side, kv, dim)
    params = spec.parameters(side)
    if any(c.name == side.codec for c in codecs()):
        _check_scale(side, params, tables)
        coder = CodecCoder(side.codec, tables)
        stream = WindowStream(WindowedCodec.of(storage, kv, window), coder, layer, native=native, transforms=bound)
        return stream, False
    method = spec.method(side.codec)
    if not isinstance(method, StorageMethod):
        raise UserError(f"{side.codec} has sizes but no arithmetic")
    if side.origin is not None and not (method.calibrated and side.origin.startswith("calibrated#")):
        raise UserError(f"{side}: {side.codec} takes no origin of scales", fix=f"leave out @{side.origin}")
    opened = method.open(kv, params, layer, window=window, native=native, tables=tables, transforms=bound)
    return opened, method.own_raw


def _check_scale(side: Side, params: Mapping[str, str], scale: Any) -> None:
    """UserError where a codec's parameters or the origin of its scale do not fit what was given."""
    from kvgate.formats.codec import codecs as arithmetic
    from kvgate.formats.numerics import ScaledNumerics

    extra = sorted(set(params) - {"scale"})
    if extra:
        raise UserError(f"{side}: a codec takes no {extra[0]!r}")
    if not isinstance(arithmetic[side.codec].spec.numerics, ScaledNumerics):
        if params or side.origin not in (None, "dynamic"):
            given = params.get("scale") or f"@{side.origin}"
            raise UserError(f"{side}: {side.codec} finds its own scales and takes no {given!r}")
        return
    if params.get("scale", "tensor") not in ("tensor", "head"):
        raise UserError(f"{side}: {side.codec} has one scale a tensor or a head", allowed=("tensor", "head"))
    if side.origin == "dynamic":
        raise UserError(
            f"{side}: {side.codec} has no dynamic scale", allowed=("@unit", "@checkpoint", "@calibrated#8hex")
        )
    if side.origin not in (None, "unit") and scale is None:
        raise UserError(f"{side}: no scale was given", fix="give tables={'k': scale, 'v': scale}, or write @unit")
    if side.origin == "unit" and scale is not None:
        raise UserError(f"{side}: a scale was given, and the recipe says @unit")


def transforms_of(side: Side, kv: KVSide, dim: int) -> tuple[BoundTransform, ...]:
    """The transforms of a side that apply to heads of `dim` elements, first to last.

    Raises:
        UserError: as `spec.check_transforms`.
    """
    spec.check_transforms(side)
    bound = [cast(Transform, spec.method(name)).bind(kv, dim, side.codec) for name in side.transforms]
    return tuple(b for b in bound if not b.why_not)


def open_layer(
    recipe: Recipe,
    layer: LayerGeometry,
    *,
    native: str | None = None,
    tables: Mapping[KVSide, Any] | None = None,
    keep_decoded: bool = False,
) -> LayerStream:
    """An empty stream of one layer under a recipe; `native` layers hold their tokens as they come.

    Args:
        recipe: of this layer (see `mixed.layer_recipes` for `keep=` and boundary layers).
        native: codec of native tokens ("bf16"); None takes the dtype of the first tokens, and float32 for a layer that
            is native as a whole.
        tables: per side, what a calibration gave: a scale for fp8 and nvfp4, a method's own tables.
        keep_decoded: see `WindowStream`; for loops that read after every token.

    Raises:
        UserError: anything in the recipe that does not fit this layer.
    """
    window = spec.window_of(recipe)
    given = tables or {}
    if recipe.k is None or recipe.v is None:
        name = native or "f32"
        if name not in NATIVE:
            raise UserError(f"native tokens cannot be held in {name!r}", allowed=NATIVE)
        recipe = Recipe(Side(name), Side(name))
        window = Window()
    assert recipe.k is not None and recipe.v is not None  # noqa: S101  (both or none: Recipe's own rule)
    asked = window if window != Window() else None
    k, k_raw = open_side(recipe.k, "k", layer, window=asked, native=native, tables=given.get("k"))
    k.keep_decoded = keep_decoded
    if not layer.v_dim:
        return LayerStream(k, None, k_raw)
    v, v_raw = open_side(recipe.v, "v", layer, window=asked, native=native, tables=given.get("v"))
    v.keep_decoded = keep_decoded
    return LayerStream(k, v, _stricter(k_raw, v_raw))
