"""mxfp4: OCP microscaling FP4: 32 E2M1 elements with a power-of-two scale per block.

Layout (17 bytes): shared exponent E8M0 | 16 bytes of nibbles, neighbours share a byte, the first one low.
"""

from kvgate.core.source import Source
from kvgate.formats.e2m1 import E2M1
from kvgate.formats.mx import Mx
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="mxfp4",
        block=32,
        block_bytes=17,
        description="OCP microscaling FP4: 32 E2M1 elements and one E8M0 scale",
        source=Source("spec", "OCP Microscaling Formats (MX) Specification", "1.0"),
        numerics=Mx(E2M1),
    ),
)
