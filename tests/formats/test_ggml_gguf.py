"""The block formats against gguf-py, the format owner's numpy implementation."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

import kvgate

#: gguf-py 0.19 encodes these and only decodes the others.
ENCODES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "ggml_mxfp4", "f32", "f16", "bf16")
DECODES = (*ENCODES, "iq4_nl", "ggml_nvfp4")


def kind(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[name.removeprefix("ggml_").upper()]


@pytest.mark.parametrize("name", ENCODES)
def test_encodes_like_gguf_py(name, rng):
    """Random rows at many scales give gguf-py's bytes, in the shape of a cache."""
    for decade in (-3, -1, 0, 1, 3):
        x = (rng.standard_normal((2, 3, 20, 128)) * 10.0**decade).astype(np.float32)
        theirs = quants.quantize(x, kind(name))

        ours = kvgate.codecs[name].encode(x)

        assert np.array_equal(ours, theirs.view(np.uint8))


@pytest.mark.parametrize("name", DECODES)
def test_decodes_like_gguf_py(name, rng):
    """Random bytes decode to gguf-py's values."""
    spec = kvgate.codecs[name].spec
    packed = rng.integers(0, 256, (500, 4 * spec.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = quants.dequantize(packed.copy(), kind(name)).reshape(500, -1)

    ours = kvgate.codecs[name].decode(packed)

    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs, equal_nan=True)
