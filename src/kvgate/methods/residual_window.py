"""Which tokens are held native, and the stream that all methods share: `/residual=R`, `/sink=S`, unfinished groups.

Of n tokens, the first S (sinks) are native for good. Of the others, with groups of g tokens:

* "slide": a group is encoded once it is full and all of its tokens are older than the last R. With g = 1 the window
  moves token by token.
* "flush": nothing is encoded until R tokens wait, then all R are (KIVI's keys). R is a multiple of g.

The rule depends on n only, never on how the tokens were cut into chunks, so one by one, in chunks and at once hold the
same bytes; tokens pass through the native dtype in any case. What is stored for a token depends on its group and on
nothing later.

This is not HF transformers' QuantizedCache (5.23), which quantizes the whole cache anew every R tokens and lets the
first call attend to what it has not stored yet.
Source: KIVI, arXiv 2402.02750, section 4 (residual); StreamingLLM, arXiv 2309.17453 (sinks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import KVSide
from kvgate.methods._native import NATIVE, from_bytes, native_of, to_bytes
from kvgate.methods._storage import TokenStorage, encoded_range
from kvgate.methods.spec import BoundTransform, Coder, Packed, Storage, Unfitted, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


#: Elements that a method works on at once; its temporaries are up to some ten times as large.
CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class WindowedCodec(TokenStorage):
    """A plain codec behind sinks and a sliding residual window; sizes."""

    codec: Storage

    @classmethod
    def of(cls, codec: Storage, side: KVSide, window: Window | None) -> WindowedCodec:
        return cls(codec.name, side, window or Window(), codec)

    def group_bytes(self, dim: int) -> int:
        return self.codec.row_bytes(dim)


class WindowStream:
    """One side of one layer: sinks, encoded groups, and the native rest. A `SideStream`.

    Args:
        storage: the rule and the sizes. coder: values of whole groups to bytes. layer: checked against what comes.
        native: codec of native tokens; None takes the dtype of the first tokens.
        transforms: applied to encoded tokens, first to last; native tokens stay in the model's basis.

    Attributes:
        keep_decoded: hold float32 values beside the bytes, so that reading does not decode everything anew: for
            token-by-token loops, at the price of memory. Set it before the first append.
    """

    keep_decoded = False

    def __init__(
        self,
        storage: TokenStorage,
        coder: Coder,
        layer: LayerGeometry,
        *,
        native: str | None = None,
        transforms: tuple[BoundTransform, ...] = (),
    ) -> None:
        if native is not None and native not in NATIVE:
            raise UserError(f"{storage.name}: native tokens cannot be held in {native!r}", allowed=NATIVE)
        self.storage, self.coder, self.transforms = storage, coder, transforms
        self._heads, self._dim, self._layer = layer.kv_heads, storage.dim(layer), layer.index
        self._native, self._chosen = native, native is not None
        self._tokens = 0
        self._batch: int | None = None
        self._xp: Namespace | None = None
        self._sink: list[Array] = []
        self._recent: list[Array] = []
        self._encoded: dict[str, list[Array]] = {}
        self._decoded: list[Array] = []
        self._tables: Packed | None = None
        storage.group_bytes(self._dim)

    @property
    def tokens(self) -> int:
        return self._tokens

    def encoded(self, tokens: int) -> range:
        return encoded_range(self.storage, tokens)

    def check(self, x: Array) -> None:
        """What `append` would refuse, and nothing else.

        Raises:
            UserError: dtype, shape or device do not fit what the stream holds, or there is no code for a value.
        """
        from kvgate.formats.xp import namespace

        xp = namespace(x)
        self._check_shape(x)
        self._check_kind(xp, native_of(x, self.storage.name))
        if self.coder.finite_only and x.shape[2] and xp.any(~xp.isfinite(x)):
            raise UserError(
                f"{self.storage.name}: {self.storage.side} of layer {self._layer} holds a NaN or an infinity"
            )

    def append(self, x: Array) -> None:
        """Take further tokens, (batch, kv_heads, tokens, dim). What is refused changes nothing.

        Raises:
            UserError: as `check`.
        """
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import copied

        self.check(x)
        xp, native = namespace(x), self._native or native_of(x, self.storage.name)
        self._batch, self._xp, self._native = int(x.shape[0]), xp, native
        with xp.quiet():
            bytes_ = to_bytes(xp, x, native)
        before, self._tokens = self._tokens, self._tokens + int(x.shape[2])
        first = max(0, min(self.storage.sink_tokens - before, int(x.shape[2])))
        if first:
            self._sink.append(copied(xp, bytes_[:, :, :first]))  # a view would keep the whole chunk
        if first < x.shape[2]:
            self._recent.append(bytes_[:, :, first:])
        self._encode(len(self.encoded(self._tokens)) - len(self.encoded(before)), xp, native)

    def read(self) -> Array:
        from kvgate.methods._arrays import copied, join

        if self._xp is None or self._native is None:
            raise UserError(f"{self.storage.name}: nothing was appended yet")
        fresh = None
        parts = [from_bytes(self._xp, p, self._native) for p in self._sink]
        if self._decoded:
            self._decoded = [join(self._xp, self._decoded, 2)]
            parts += self._decoded
        elif self._encoded:
            fresh = self._decode_all(self._xp)
            parts.append(fresh)
        parts += [from_bytes(self._xp, p, self._native) for p in self._recent]
        parts = [p for p in parts if p.shape[2]]
        if not parts:
            return self._xp.empty((self._batch or 0, self._heads, 0, self._dim), "f32")
        if len(parts) == 1 and parts[0] is not fresh:
            return copied(self._xp, parts[0])  # the reader may write to it
        return join(self._xp, parts, 2)

    def packed(self) -> Packed:
        from kvgate.methods._arrays import join

        held = {f"encoded.{name}": value for name, value in self._joined().items()}
        held |= {f"table.{name}": value for name, value in (self._tables or {}).items()}
        for name, parts in (("sink", self._sink), ("recent", self._recent)):
            kept = [p for p in parts if p.shape[2]]
            if kept and self._xp is not None:
                held[name] = join(self._xp, kept, 2)
        return held

    def stored_bytes(self) -> int:
        """Bytes of everything in `packed()`."""
        total = 0
        for array in self.packed().values():
            size = 1
            for n in array.shape:
                size *= int(n)
            total += size
        return total

    def _encode(self, count: int, xp: Namespace, native: str) -> None:
        """Move the oldest `count` native tokens behind the sinks to the encoded ones."""
        if not count:
            return
        from kvgate.methods._arrays import copied, join

        waiting = join(xp, self._recent, 2)
        step = self._step(int(waiting.shape[0]))
        with xp.quiet():
            if self._tables is None:
                self._tables = self._fit(from_bytes(xp, waiting[:, :, : max(1, self.storage.warmup_tokens)], native))
            for at in range(0, count, step):
                x = self._forward(from_bytes(xp, waiting[:, :, at : min(at + step, count)], native))
                held = self.coder.encode(x, self._tables or {})
                for name, array in held.items():
                    self._encoded.setdefault(name, []).append(array)
                if self.keep_decoded:
                    self._decoded.append(self._decode(held))
        self._recent = [copied(xp, waiting[:, :, count:])]

    def _step(self, batch: int) -> int:
        """Tokens that are worked on at once: whole groups of about `CHUNK_ELEMENTS`, or one group."""
        group = self.storage.group_tokens
        return group * max(1, CHUNK_ELEMENTS // max(1, batch * self._heads * self._dim * group))

    def _decode_all(self, xp: Namespace) -> Array:
        """All encoded tokens, a chunk at a time: temporaries are many times what they decode to."""
        from kvgate.methods._arrays import join

        packed = self._joined()
        groups = next(iter(packed.values())).shape[-2]
        step = self._step(self._batch or 1) // self.storage.group_tokens
        chunks = ({n: a[..., i : i + step, :] for n, a in packed.items()} for i in range(0, groups, step))
        with xp.quiet():
            return join(xp, [self._decode(chunk) for chunk in chunks], 2)

    def _decode(self, packed: Packed) -> Array:
        x = self.coder.decode(packed, self._tables or {})
        for transform in reversed(self.transforms):
            x = transform.inverse(x)
        return x

    def _fit(self, first: Array) -> Packed:
        """Fit transforms and coder to the first tokens behind the sinks; what they keep for good."""
        held: dict[str, Array] = {}
        fitted: list[BoundTransform] = []
        for transform in self.transforms:
            now = transform
            if isinstance(transform, Unfitted):
                now, kept = transform.fit(first)
                held |= kept
            fitted.append(now)
            first = now.forward(first)
        self.transforms = tuple(fitted)
        return {**held, **self.coder.prepare(first)}

    def _forward(self, x: Array) -> Array:
        for transform in self.transforms:
            x = transform.forward(x)
        return x

    def _joined(self) -> dict[str, Array]:
        from kvgate.methods._arrays import join

        if self._xp is None:
            return {}
        for name, parts in self._encoded.items():
            if len(parts) > 1:
                self._encoded[name] = [join(self._xp, parts, -2)]
        return {name: parts[0] for name, parts in self._encoded.items()}

    def _check_shape(self, x: Array) -> None:
        name, wanted = self.storage.name, (self._heads, self._dim)
        if x.ndim != 4 or (int(x.shape[1]), int(x.shape[3])) != wanted:
            raise UserError(
                f"{name}: this layer's {self.storage.side} is (batch, {wanted[0]}, tokens, {wanted[1]}), "
                f"and the array is {tuple(x.shape)}"
            )
        if not x.shape[0]:
            raise UserError(f"{name}: the array {tuple(x.shape)} holds no sequence")
        if self._batch is not None and self._batch != x.shape[0]:
            raise UserError(f"{name}: the stream holds {self._batch} sequences, and the array has {x.shape[0]}")

    def _check_kind(self, xp: Namespace, own: str) -> None:
        name = self.storage.name
        if self._xp is not None and self._xp is not xp:
            raise UserError(f"{name}: the stream holds arrays of another library or device than the one appended")
        if not self._chosen and self._native not in (None, "f32", own):
            raise UserError(
                f"{name}: the stream holds native tokens in {self._native}, and the array is {own}",
                fix="convert it first, or open the stream with native=: nothing is cast silently",
            )
