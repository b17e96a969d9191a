"""`kvgate formats show`: one codec or method in full."""

from __future__ import annotations

from math import isfinite, isnan

from kvgate.cli._columns import columns
from kvgate.cli._formats_names import canonical
from kvgate.cli._terminal import out_console
from kvgate.formats import describe
from kvgate.formats.describe import Drawn
from kvgate.formats.listing import CodecRow, codec_row
from kvgate.formats.probe import CodeTable
from kvgate.formats.spec import codec
from kvgate.methods.listing import HEAD_DIMS, SIDES, MethodRow, method_row
from kvgate.methods.spec import methods

#: Values of a code table on one line, and on one where none is long.
_A_LINE, _SHORT_A_LINE, _SHORT = 8, 16, 5
#: Only 8-bit tables are cut in half. Values are printed exactly up to this length, and below this size without a point.
_MIRRORED_BITS, _LONGEST, _WHOLE = 8, 12, 1e7


def find(name: str) -> CodecRow | MethodRow:
    """The codec or method of this name; words that mean a codec everywhere ("fp8", "float16") count.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    word = canonical(name)
    other = {m.name: m for m in methods()}
    return method_row(other[word]) if word in other else codec_row(codec(word))


def document(found: CodecRow | MethodRow) -> dict[str, object]:
    """`--json`."""
    said: dict[str, object] = {"schema": "kvgate.formats.show/1"}
    if isinstance(found, MethodRow):
        return said | {"kind": "method", **found.document(), "text": found.words}
    rules = describe.rules(found.spec)
    said |= {"kind": "codec", **found.document()}
    said["layouts"] = [
        {
            "dim": d.dim,
            "row_bytes": d.row_bytes,
            "bytes": [{"first": line.first, "last": line.last, "what": line.what} for line in d.lines],
            "code_bits": d.codes.bits if d.codes else None,
            "codes": None if d.codes is None else [_json_value(v) for v in d.codes.values],
        }
        for d in describe.drawings(found.spec)
    ]
    if rules is not None:
        said["rules"] = {
            "nonfinite": rules.nonfinite,
            "overflow": list(rules.overflow),
            "outside_scale": rules.outside_scale,
            "idempotent": rules.idempotent,
        }
    return said | {"text": list(describe.words(found.spec))}


def print_page(found: CodecRow | MethodRow) -> None:
    """The page on a terminal."""
    for line in _method_lines(found) if isinstance(found, MethodRow) else _codec_lines(found):
        out_console().print(line, soft_wrap=True)


def _codec_lines(row: CodecRow) -> list[str]:
    s = row.spec
    facts = [
        ("size", f"{row.bits:.4g} bits per element in rows of {row.dim}; {row.block}"),
        ("scales", row.scales),
        ("magnitudes", f"{row.range}" + (" at scale 1" if "outside" in row.scales else "")),
        ("engines", row.engine_words or "none names it"),
    ]
    if s.lossless_from:
        facts.append(("exact for", ", ".join(s.lossless_from)))
    rules = describe.rules(s)
    if rules is not None:
        facts.append(("NaN, infinity", rules.nonfinite))
        if rules.outside_scale:
            facts.append(("overflow", f"{', '.join(rules.overflow)} (the caller's choice; engines saturate)"))
        again = "stores the same bytes" if rules.idempotent else "may store other bytes"
        facts.append(("stored again", f"what was read back {again} (ordinary values)"))
    facts.append(("source", str(s.source)))
    lines = [f"{s.name}: {s.description}", "", *columns(facts), ""]
    before: CodeTable | None = None
    for drawn in describe.drawings(s):
        lines += _layout_lines(drawn, before)
        before = drawn.codes
    for text in describe.words(s):
        lines += [*text.splitlines(), ""]
    return lines[:-1]


def _layout_lines(drawn: Drawn, before: CodeTable | None) -> list[str]:
    """Bytes in order, and the codes, unless they are those of the layout before."""
    what = f"{drawn.dim} elements" if drawn.dim > 1 else "an element"
    size = f"{drawn.row_bytes} byte" + ("s" if drawn.row_bytes > 1 else "")
    lines = [f"Layout of {what} in {size} (found by flipping every bit)"]
    lines += [f"  {line}" for line in columns([(line.where, line.what) for line in drawn.lines])] + [""]
    if drawn.codes is not None and not (before and _cells(before.values) == _cells(drawn.codes.values)):
        lines += [*_code_lines(drawn.codes), ""]
    return lines


def _code_lines(codes: CodeTable) -> list[str]:
    """A grid whose lines begin with their first code in hexadecimal; one half where the other has minus signs."""
    at = " at scale 1" if codes.scale else ""
    at += " and offset 0" if "offset" in codes.scale else ""
    cells = _cells(codes.values)
    half, digits = len(cells) // 2, (codes.bits + 3) // 4
    mirrored = codes.bits == _MIRRORED_BITS and all(_mirrored(codes.values, c) for c in range(1, half))
    lines = [f"The {len(cells)} codes of an element{at}" + (" (--json has every digit)" if codes.bits > 4 else "")]
    shown = cells[:half] if mirrored else cells
    a_line = _SHORT_A_LINE if max(map(len, shown)) <= _SHORT else _A_LINE
    rows = [(f"0x{i:0{digits}X}", *shown[i : i + a_line]) for i in range(0, len(shown), a_line)]
    lines += [f"  {line}" for line in columns(rows, right=range(1, len(rows[0])))]
    if mirrored:
        lines.append(
            f"  0x{half:0{digits}X} is {cells[half]}; from 0x{half + 1:0{digits}X} on the same, with a minus sign"
        )
    return lines


def _mirrored(values: tuple[float, ...], code: int) -> bool:
    a, b = values[code], values[code + len(values) // 2]
    return a == -b or (isnan(a) and isnan(b))


def _cells(values: tuple[float, ...]) -> list[str]:
    return [_value(v) for v in values]


def _value(v: float) -> str:
    if not isfinite(v):
        return "NaN" if isnan(v) else "inf" if v > 0 else "-inf"
    if v == round(v) and abs(v) < _WHOLE:
        return f"{v:.0f}"  # -0 keeps its sign
    return str(v) if len(str(v)) <= _LONGEST else f"{v:.6g}"


def _json_value(v: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return v if isfinite(v) else _value(v)


def _method_lines(row: MethodRow) -> list[str]:
    m = row.method
    facts = [("role", "stores K and V itself" if row.bits else "a transform, behind a codec as in q8_0+" + m.name)]
    for side in SIDES if row.bits else ():
        sizes = ((dim, row.bits[side, dim]) for dim in HEAD_DIMS)
        said = ", ".join(f"{bits:.4g} bits at head_dim {dim}" for dim, bits in sizes if bits is not None)
        facts.append((side.upper(), said or "no usual head fits"))
    for name, (values, default) in row.parameters.items():
        facts.append((f":{name}=", f"{values}, default {default}"))
    if row.calibrated:
        facts.append(("tables", "needs some from a calibration"))
    facts.append(("source", str(m.source)))
    return [f"{m.name}: {m.description}", "", *columns(facts), "", *row.words.splitlines()]
