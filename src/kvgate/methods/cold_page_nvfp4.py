"""Cold-page NVFP4: the GPU's cache stays as it is; pages moved to host or disk are encoded, and decoded on return.

    cold_page_nvfp4:page=32/residual=64/sink=32

A page is `page` consecutive tokens of one layer. Off the GPU it is held as `nvfp4` (E2M1 elements, an E4M3 scale per
16, the checkpoint's global scale or 1.0); back on the GPU it has the hot dtype again. `/sink=` and `/residual=` keep
the first and the most recent tokens out of this, rounded up to whole pages; a page that is not full is never moved.

`open` gives the stream after one such cycle of every page that may move: what attention sees once all of them have been
away. `PageTier` moves pages one by one, any number of times, and counts bytes on both sides.

Shapes: (batch, kv_heads, tokens, head_dim), head_dim a multiple of 16. Bytes: on the GPU those of the hot dtype, which
is what the planner counts (`slot_bytes`); on the host 9/16 of an element's byte (`cold_row_bytes`).

Many cycles: each return is encoded anew, and from the second trip on nothing changes. With a hot dtype of f32, f16 or
bf16 a decoded element (at most 6 significant bits) is exact, and its block finds the same scale again; FP8 rounds it
once, by too little to change a scale or a code. The exception are blocks whose largest magnitude is below 0.094 of the
global scale, where the E4M3 scale is subnormal and may fall for some trips. Measured in
`tests/methods/test_cold_pages.py`.

Departs: TensorRT-LLM decides which pages move by its block reuse; here the caller does, or `open` moves all.
Source: TensorRT-LLM docs/source/features/kv-cache-compression.md (pull request 18091, merged 2026-09-01), options
mixed_precision_first_n and mixed_precision_last_n; formats/blocks/nvfp4.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide, codec
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._native import NATIVE, from_bytes, native_of, to_bytes
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

CODEC = "nvfp4"
#: What hot pages may be held in.
HOT = (*NATIVE, "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz")


@dataclass(frozen=True)
class PageStorage(TokenStorage):
    """Bytes on the GPU (slots) and on the host (groups)."""

    page: int

    @property
    def group_tokens(self) -> int:
        return self.page

    def group_bytes(self, dim: int) -> int:
        return self.page * self.cold_row_bytes(dim)

    def cold_row_bytes(self, dim: int) -> int:
        """One head of one token on the host."""
        return codec(CODEC).row_bytes(dim)

    def row_bytes(self, dim: int) -> int:
        self.cold_row_bytes(dim)  # refuses heads that a page cannot hold
        return dim * self.window.native_bytes

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        if side != self.side:
            raise TypeError(f"this storage is for {self.side}")
        return layer.kv_heads * self.row_bytes(self.dim(layer))

    def fixed_bytes(self, layer: LayerGeometry) -> int:
        """Nothing is held beyond the hot rows."""
        return 0

    def windowed(self, window: Window) -> TokenStorage:
        sink = -(-(window.sink_tokens or 0) // self.page) * self.page
        residual = -(-(window.residual_tokens or 0) // self.page) * self.page
        return super().windowed(replace(window, residual_tokens=residual, sink_tokens=sink))


class PageCoder(GroupCoder):
    """Whole pages."""

    def __init__(self, page: int, scale: Any = None) -> None:
        from kvgate.formats.codec import codecs

        self.group_tokens, self.codec, self.scale = page, codecs[CODEC], scale

    def encode(self, x: Array, tables: Packed) -> Packed:
        rows = self.codec.encode(x, scale=self.scale)
        return {"pages": rows.reshape(*x.shape[:2], x.shape[2] // self.group_tokens, -1)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        pages = packed["pages"]
        batch, heads, count, size = pages.shape
        rows = pages.reshape(batch, heads, count * self.group_tokens, size // self.group_tokens)
        return self.codec.decode(rows, scale=self.scale)


class PageTier:
    """One side of one layer as pages that are hot or cold.

    Args:
        hot: codec of hot pages: "f32", "f16", "bf16", or an FP8 codec without a scale; by default that of `x`.
        scale: NVFP4's global scale.

    Raises:
        UserError: no whole pages of float32, float16 or bfloat16, or of heads that NVFP4 stores; or another hot codec.
    """

    def __init__(self, x: Array, *, page: int = 32, hot: str | None = None, scale: Any = None) -> None:
        from kvgate.formats.xp import namespace

        self._xp, own = namespace(x), native_of(x, "a page")
        if page < 1:
            raise UserError(f"a page of {page} tokens does not exist")
        if x.ndim != 4:
            raise UserError(f"pages are (batch, kv_heads, tokens, head_dim), and the array is {tuple(x.shape)}")
        if not x.shape[2] or x.shape[2] % page:
            raise UserError(f"{x.shape[2]} tokens are not whole pages of {page}", fix="give full pages only")
        self.page, self.hot = page, hot or own
        if self.hot not in HOT:
            raise UserError(f"pages cannot be hot in {self.hot!r}", allowed=HOT)
        codec(CODEC).row_bytes(int(x.shape[3]))
        self._coder = PageCoder(page, scale)
        self._pages: list[Array] = [self._freeze(x[:, :, i : i + page]) for i in range(0, x.shape[2], page)]
        self._cold: set[int] = set()

    def offload(self, pages: Iterable[int]) -> None:
        """Encode these pages; one that is cold already stays as it is."""
        for i in self._known(pages) - self._cold:
            self._pages[i] = self._coder.encode(self._thaw(self._pages[i]), {})["pages"]
            self._cold.add(i)

    def onboard(self, pages: Iterable[int]) -> None:
        """Decode these pages into the hot dtype."""
        for i in self._known(pages) & self._cold:
            self._pages[i] = self._freeze(self._coder.decode({"pages": self._pages[i]}, {}))
            self._cold.discard(i)

    def read(self) -> Array:
        """float32 of all pages, cold ones as they would come back."""
        from kvgate.methods._arrays import join

        parts = []
        for i, held in enumerate(self._pages):
            back = self._freeze(self._coder.decode({"pages": held}, {})) if i in self._cold else held
            parts.append(self._thaw(back))
        return join(self._xp, parts, 2)

    @property
    def count(self) -> int:
        return len(self._pages)

    def hot_bytes(self) -> int:
        return sum(_size(p) for i, p in enumerate(self._pages) if i not in self._cold)

    def cold_bytes(self) -> int:
        return sum(_size(p) for i, p in enumerate(self._pages) if i in self._cold)

    def _known(self, pages: Iterable[int]) -> set[int]:
        """UserError where there is no such page."""
        named = set(pages)
        wrong = sorted(i for i in named if not 0 <= i < self.count)
        if wrong:
            raise UserError(f"there is no page {wrong[0]}", allowed=(f"0 to {self.count - 1}",))
        return named

    def _freeze(self, x: Array) -> Array:
        if self.hot in NATIVE:
            return to_bytes(self._xp, x, self.hot)
        from kvgate.formats.codec import codecs

        return codecs[self.hot].encode(self._xp.widen(self._xp.plain(x)))

    def _thaw(self, held: Array) -> Array:
        if self.hot in NATIVE:
            return from_bytes(self._xp, held, self.hot)
        from kvgate.formats.codec import codecs

        return codecs[self.hot].decode(held)


def _size(a: Array) -> int:
    size = 1
    for n in a.shape:
        size *= int(n)
    return size


class ColdPageNvfp4(StorageMethod):
    """Pages in NVFP4 off the GPU."""

    name = "cold_page_nvfp4"
    description = "hot cache as it is; pages moved to host or disk are NVFP4 there, decoded on return (TensorRT-LLM)"
    source = Source(
        "spec", "TensorRT-LLM docs/source/features/kv-cache-compression.md", "pull request 18091, 2026-09-01"
    )
    parameters = (Parameter("page", 32, allowed=(16, 32, 64, 128)),)
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({}, {"page": "64"})
    own_raw = True

    def sized(self, side: KVSide, values: Mapping[str, int]) -> PageStorage:
        return PageStorage(self.name, side, Window(0), values["page"])

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> PageCoder:
        return PageCoder(values["page"], tables)

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        return block_db()


@cache
def block_db() -> float:
    """SQNR of N(0, 1) values in blocks of 16 whose largest becomes 6, the scale rounded to E4M3."""
    from math import floor, log2

    from kvgate.methods.lloyd_max import grid_db

    def scale(largest: float) -> float:
        step = 2.0 ** (floor(log2(largest / 6)) - 3)
        return round(largest / 6 / step) * step

    return grid_db((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), 16, scale)


METHOD = ColdPageNvfp4()
