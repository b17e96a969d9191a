"""mxfp8: OCP microscaling FP8: 32 E4M3 elements with a power-of-two scale per block.

Layout (33 bytes): shared exponent E8M0 | 32 bytes of E4M3.
"""

from kvgate.core.source import Source
from kvgate.formats.mx import Mx
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="mxfp8",
        block=32,
        block_bytes=33,
        description="OCP microscaling FP8: 32 E4M3 elements and one E8M0 scale",
        source=Source("spec", "OCP Microscaling Formats (MX) Specification", "1.0"),
        spellings={"sglang": ("mxfp8",)},
        numerics=Mx(FLOAT_SPECS["e4m3fn"]),
    ),
)
