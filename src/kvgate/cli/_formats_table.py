"""The table of `kvgate formats`."""

from __future__ import annotations

from kvgate.cli._columns import columns
from kvgate.cli._terminal import out_console
from kvgate.formats.listing import codec_rows
from kvgate.methods.listing import MethodRow, method_rows

#: The head size that a method's bits are shown for.
_DIM = 128


def document() -> dict[str, object]:
    """`--json`."""
    return {
        "schema": "kvgate.formats/1",
        "codecs": [row.document() for row in codec_rows()],
        "methods": [row.document() for row in method_rows()],
    }


def print_table() -> None:
    """Codecs, methods, transforms."""
    lines = [("codec", "bits", "block", "magnitudes", "scales", "engines")]
    lines += [(r.spec.name, f"{r.bits:.4g}", r.block, r.range, r.scales, r.engine_words) for r in codec_rows()]
    text = ["Codecs: bits per element with scales at head_dim 128, and the magnitudes that come back"]
    text += [*columns(lines, right=(1,)), ""]
    storage = [("method", "K bits", "V bits", "what")]
    storage += [(r.method.name, *method_bits(r), r.method.description) for r in method_rows() if r.bits]
    text += ["Methods: bits per element of a long sequence at head_dim 128, by default parameters"]
    text += [*columns(storage, right=(1, 2)), ""]
    transforms = [(r.method.name, r.method.description) for r in method_rows() if not r.bits]
    text += ["Transforms, behind a codec as in q8_0+hadamard", *columns(transforms), ""]
    text.append("kvgate formats show NAME draws one; kvgate formats compare FILE --codec NAME tries some on a tensor")
    for line in text:
        out_console().print(line, soft_wrap=True)


def method_bits(row: MethodRow) -> tuple[str, str]:
    """Bits of K and of V."""
    k, v = row.bits["k", _DIM], row.bits["v", _DIM]
    return "?" if k is None else f"{k:.4g}", "?" if v is None else f"{v:.4g}"
