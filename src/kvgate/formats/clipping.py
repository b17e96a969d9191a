"""Which elements a codec clips: those beyond the range that their stored scale spans, by more than half a step.

Half a step, because a value that rounds to the last code is as near to it as any other to its own. So E4M3 clips beyond
464 = 448 + 16, and q8_0, whose scale is made of the block's largest element, clips nothing. A block whose scale is 0
spans nothing and clips nothing: its elements are zeroed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.formats.codec import Codec
from kvgate.formats.probe import Ends, ends

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Whole-row layouts longer than this are not taken apart bit by bit: the time grows with the square, and no head is.
MOST_PROBED_DIM = 640


class Clipping:
    """Looks for clipped elements in rows of `dim` elements of one codec."""

    def __init__(self, codec: Codec, dim: int) -> None:
        self.codec = codec
        self._whole = _never_clips(codec)
        short = codec.spec.numerics is None or codec.spec.numerics.unit != "row" or dim <= MOST_PROBED_DIM
        self._ends: Ends | None = None if self._whole or not short else ends(codec.spec, dim)

    @property
    def known(self) -> bool:
        """Whether the codec's bytes show its range."""
        return self._whole or self._ends is not None

    def of(self, x: Array, packed: Array, scale: Any) -> Array | None:
        """bool [n, dim]: which of x [n, dim], stored as `packed`, are clipped."""
        import numpy as np

        if self._whole:
            return np.zeros(x.shape, bool)
        if self._ends is None:
            return None
        kept = packed & self._ends.keep
        a, a2, z2, z = (self.codec.decode(kept | put, scale=scale).astype(np.float64) for put in self._ends.put)
        with np.errstate(invalid="ignore"):
            # (a - a2) is minus the step there, also where a negative scale turns the range around.
            first, last = a + (a - a2) / 2, z + (z - z2) / 2
            beyond: Array = (a != z) & ((x < np.minimum(first, last)) | (x > np.maximum(first, last)))
        return beyond


def _never_clips(codec: Codec) -> bool:
    """Whether values are stored as floats of 16 bits or more: they become infinite, and are counted as that."""
    spec = codec.spec
    return spec.block == 1 and spec.block_bytes > 1 and not spec.row_extra_bytes
