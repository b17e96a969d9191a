"""What a method is to the planner and to a cache: its place in a recipe, its parameters, its bytes and its arithmetic.

A method is one file in `methods/` with attribute METHOD (one object or a tuple). A `storage` method stands in the
codec's place (`kivi:bits=2:group=32`, `turboquant_4bit_nc`); a `transform` is written behind a codec (`q8_0+hadamard`)
and changes what is stored, not how much of it. Sizes are answered without numpy.

Arithmetic. K and V are (batch, kv_heads, tokens, head_dim), numpy arrays or torch tensors. One side of one layer is a
`SideStream`: tokens are appended as they come, one by one or in chunks, and the bytes held never depend on how they
were cut nor on tokens that come later. What a method holds for one group of tokens is a `Coder`'s; which tokens are
held native (sinks, the residual window, a group that is not full yet) is `residual_window`'s. `stream.open_layer` puts
both sides of a recipe together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide, codecs

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

Role = Literal["storage", "transform"]
#: When tokens leave the residual window. "slide": the oldest group goes as soon as it is full and out of the window.
#: "flush": nothing goes until the window is full, then all of it goes (KIVI's keys).
Flush = Literal["slide", "flush"]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are held native although the side is quantized.

    Attributes:
        residual_tokens: the most recent ones; None is the method's own default.
        sink_tokens: the first ones, for good; None is the method's own default (mostly none).
        native_bytes: bytes of one element held native (2 for f16 and bf16); sizes only.
        warmup_tokens: tokens that must be there before the first is encoded (a transform that freezes a mean of them).
        channel_bytes: bytes per head and channel that such a transform keeps for good.
    """

    residual_tokens: int | None = None
    sink_tokens: int | None = None
    native_bytes: int = 2
    warmup_tokens: int = 0
    channel_bytes: int = 0


class Storage(Protocol):
    """Bytes of K or of V in one layer. A `CodecSpec` is one; a method with its parameters is another."""

    @property
    def name(self) -> str: ...

    def row_bytes(self, dim: int) -> int:
        """Bytes of one head of one token of `dim` elements; UserError where the dimension does not fit."""
        ...

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        """Bytes that one token takes in one layer, all heads; amortised over a group where tokens share scales."""
        ...

    def fixed_bytes(self, layer: LayerGeometry) -> int:
        """Bytes per sequence and layer that do not grow with tokens (a residual window, codebooks, sinks)."""
        ...


class Method(Protocol):
    """One way to store or to transform K and V."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def description(self) -> str: ...

    @property
    def source(self) -> Source: ...

    def storage(self, side: KVSide, params: Mapping[str, str]) -> Storage:
        """Sizes for one side under these parameters; a transform has none and raises TypeError.

        Raises:
            UserError: an unknown parameter or a value outside its range; the message lists what there is.
        """
        ...

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        """Layer numbers that this method leaves native by itself (TurboQuant's first and last two)."""
        ...


def method(name: str) -> Method:
    """The method with this name.

    Raises:
        UserError: there is none; the message lists what there is and names the nearest.
    """
    found = registry.discover("method")
    if name not in found:
        raise _unknown("method", name, found)
    return cast(Method, found[name])


def methods() -> tuple[Method, ...]:
    """All registered methods in name order."""
    return tuple(registry.discover("method").values())


@runtime_checkable
class Fitted(Protocol):
    """A transform that is fitted to the first tokens of a sequence."""

    def warmup(self, kv: KVSide, codec: str) -> tuple[int, int]:
        """How many tokens it wants to see, and the bytes per head and channel that it keeps; (0, 0) for none."""
        ...


@runtime_checkable
class Windowed(Protocol):
    """A storage that knows its own window (every method's; plain codecs are wrapped)."""

    def windowed(self, window: Window) -> Storage:
        """The same storage with these sinks and this residual window in its `fixed_bytes`.

        Raises:
            UserError: the method cannot keep such a window; the message says what fits.
        """
        ...


def storage_of(side: Side, kv: KVSide, window: Window | None = None) -> Storage:
    """The storage that stands in a recipe's codec slot: a codec, or a storage method with its parameters.

    Args:
        window: the recipe's `/residual=` and `/sink=`; their bytes come under `fixed_bytes`. None is the method's own.

    Raises:
        UserError: no such codec, method or transform, or wrong parameters.
    """
    known = {c.name: c for c in codecs()}
    found: Storage
    check_transforms(side)
    if side.codec in known:
        extra = sorted(set(parameters(side)) - {"scale"})
        if extra:
            raise UserError(f"{side}: a codec takes no {extra[0]!r}")
        found = known[side.codec]
    else:  # methods are loaded only for a recipe that names one: most name none
        stored = {m.name: m for m in methods() if m.role == "storage"}
        if side.codec not in stored:
            raise _unknown("codec or method", side.codec, (*known, *stored))
        found = stored[side.codec].storage(kv, parameters(side))
    window = with_warmup(side, kv, window)
    if window is None:
        return found
    if isinstance(found, Windowed):
        return found.windowed(window)
    from kvgate.methods.residual_window import WindowedCodec

    return WindowedCodec.of(found, kv, window)


def check_transforms(side: Side) -> None:
    """Refuse what no transform can be.

    Raises:
        UserError: an unknown transform, one that is given twice (a rotation undoes itself), or `none` beside others.
    """
    if not side.transforms:
        return
    known = {m.name: m for m in methods()}
    turning = tuple(m.name for m in known.values() if m.role == "transform")
    for i, name in enumerate(side.transforms):
        if name not in known:
            raise _unknown("method", name, known)
        if name not in turning:
            raise UserError(f"{name} is no transform", allowed=turning)
        if name in side.transforms[:i]:
            raise UserError(f"{side}: {name} is given twice", fix="give it once")
        if name == "none" and len(side.transforms) > 1:
            raise UserError(f"{side}: none stands alone", fix="leave out +none, or the others")


def _unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    names = tuple(known)
    near = get_close_matches(name, names, n=1)
    return UserError(f"unknown {what} {name!r}", allowed=names, fix=f"did you mean {near[0]!r}?" if near else "")


def with_warmup(side: Side, kv: KVSide, window: Window | None) -> Window | None:
    """The window with what the side's transforms need to see first and keep."""
    if not side.transforms:
        return window
    known = {m.name: m for m in methods()}
    wanted = [known[t] for t in side.transforms if t in known and isinstance(known[t], Fitted)]
    costs = [m.warmup(kv, side.codec) for m in wanted if isinstance(m, Fitted)]
    if not any(tokens for tokens, _ in costs):
        return window
    return replace(
        window or Window(), warmup_tokens=max(t for t, _ in costs), channel_bytes=sum(size for _, size in costs)
    )


def window_of(recipe: Recipe, *, native_bytes: int = 2) -> Window:
    """The window that a recipe's options ask for."""
    return Window(recipe.residual_tokens, recipe.sink_tokens, native_bytes)


def parameters(side: Side) -> dict[str, str]:
    """`:key=value` parameters of a side; a bare granularity (`:head`) comes under the key "scale"."""
    found: dict[str, str] = {}
    for text in side.params:
        key, eq, value = text.partition("=")
        key, value = (key, value) if eq else ("scale", key)
        if key in found:
            raise UserError(f"{side}: parameter {key!r} is given twice", fix="give it once")
        found[key] = value
    return found


class KV(NamedTuple):
    """K and V as attention sees them: float32 (batch, kv_heads, tokens, dim); V is None where a layer keeps none."""

    k: Array
    v: Array | None


#: Named byte arrays (uint8, tokens or groups of tokens along axis -2): what one side really holds.
Packed = Mapping[str, Any]


class Coder(Protocol):
    """Values to bytes and back for whole groups of tokens of one side of one layer.

    Attributes:
        group_tokens: tokens that are encoded together; what is stored for one of them may depend on the others.
        warmup_tokens: tokens that `prepare` wants to see first (a frozen mean); 0 for none.
        finite_only: NaN and infinities are refused, because no code stands for them.
    """

    group_tokens: int
    warmup_tokens: int
    finite_only: bool

    def prepare(self, x: Array) -> Packed:
        """Look at the first `warmup_tokens` tokens, once; what is kept of them for good."""
        ...

    def encode(self, x: Array, tables: Packed) -> Packed:
        """float32 (batch, heads, groups * group_tokens, dim) to bytes with `groups` entries along axis -2.

        `tables` is what `prepare` gave; empty for a coder without warm-up.
        """
        ...

    def decode(self, packed: Packed, tables: Packed) -> Array:
        """The reverse of `encode`: float32, the same shape."""
        ...


class SideStream(Protocol):
    """K or V of one layer, growing with tokens. x is (batch, kv_heads, tokens, dim), float32, float16 or bfloat16."""

    @property
    def tokens(self) -> int: ...

    def append(self, x: Array) -> None: ...

    def read(self) -> Array:
        """All tokens as attention of the next step sees them: float32, in the basis of what was appended."""
        ...

    def packed(self) -> Packed:
        """What is held, by name."""
        ...

    def stored_bytes(self) -> int: ...

    def encoded(self, tokens: int) -> range:
        """Which tokens are encoded once so many have been appended; the others are held native."""
        ...


class Stream(Protocol):
    """Both sides of one layer."""

    def append(self, k: Array, v: Array | None) -> None:
        """Take further tokens of both sides."""
        ...

    def read(self) -> KV:
        """All tokens as the next step's attention sees them."""
        ...

    def step(self, k: Array, v: Array | None) -> KV:
        """Append, and give K and V as attention of exactly these tokens sees them."""
        ...

    def stored_bytes(self) -> int: ...


class BoundTransform(Protocol):
    """A transform on one side of one layer.

    Attributes:
        why_not: why it does nothing here; empty where it applies.
    """

    @property
    def why_not(self) -> str: ...

    def forward(self, x: Array) -> Array:
        """Model basis to the basis that is stored; the last axis is head_dim. Any float dtype, which is kept."""
        ...

    def inverse(self, x: Array) -> Array:
        """Back to the model's basis."""
        ...

    def query(self, q: Array) -> Array:
        """The query that meets stored keys: scores are those of the model's basis, up to one constant a query."""
        ...


@runtime_checkable
class Unfitted(Protocol):
    """A bound transform that must see the first tokens of a sequence."""

    def fit(self, x: Array) -> tuple[BoundTransform, Packed]:
        """The transform for this sequence and what it keeps, from float32 (batch, heads, tokens, dim)."""
        ...


class Transform(Method, Protocol):
    """A method of role "transform"."""

    def bind(self, kv: KVSide, dim: int, codec: str) -> BoundTransform:
        """The transform for heads of `dim` elements that are stored in `codec`."""
        ...


class StorageArithmetic(Method, Protocol):
    """A method of role "storage" with its arithmetic."""

    def open(
        self,
        kv: KVSide,
        params: Mapping[str, str],
        layer: LayerGeometry,
        *,
        window: Window | None = None,
        native: str | None = None,
        tables: Any = None,
        transforms: tuple[BoundTransform, ...] = (),
    ) -> SideStream:
        """An empty stream.

        Args:
            window: sinks and residual window; None is the method's own.
            native: codec of tokens held native; None takes the dtype of the first tokens.
            tables: what the method was given by a calibration (thresholds, codebooks); None where it needs none.
            transforms: applied to encoded tokens, first to last.

        Raises:
            UserError: parameters, dimensions or tables do not fit.
        """
        ...
