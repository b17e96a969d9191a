"""`kvgate formats compare`: a tensor through several codecs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from kvgate.cli._columns import columns
from kvgate.cli._formats_names import canonical
from kvgate.cli._terminal import out_console
from kvgate.core.errors import UserError
from kvgate.core.recipe import Side, parse
from kvgate.core.text import one_line
from kvgate.core.units import number_text
from kvgate.formats.compare import Channel, Distance, worst_channels
from kvgate.formats.spec import KVSide
from kvgate.methods.compare import AMAX, UNIT, SideComparison, check_side, compare_side, side_of, takes_scale
from kvgate.methods.spec import Window
from kvgate.models.read_tensor import open_tensor

_NOTES = {
    "exact": "exact",
    "lost": "none: values came back as NaN or infinity",
    "no signal": "none: all values are 0, and some came back as others",
    "empty": "none",
}


@dataclass(frozen=True)
class Compared:
    """One tensor and what each codec made of it, in the order asked for."""

    path: Path
    key: str
    shape: tuple[int, ...]
    native: str
    side: KVSide
    scale: str | float
    channels: int
    results: dict[str, SideComparison]


def run(path: Path, key: str | None, names: tuple[str, ...], side: str, scale: str, channels: int) -> Compared:
    """Read, encode, decode, compare.

    Raises:
        UserError: anything about the file, the codecs or the options; before the first slice is read where possible.
    """
    if not names:
        raise UserError("no codec to compare", fix="write --codec q8_0 --codec fp8_e4m3, as many as you like")
    if side not in ("k", "v"):
        raise UserError(f"unknown side {side!r}", allowed=("k", "v"))
    if channels < 0:
        raise UserError(f"--channels {channels} is negative", fix="give how many of the worst to show")
    kv = cast(KVSide, side)
    asked = {name: _asked(name, kv) for name in names}
    factor = _factor(scale)
    if factor != UNIT and not any(takes_scale(s.codec) for s, _ in asked.values()):
        raise UserError(f"none of these codecs takes --scale {scale}", fix="leave it out")
    tensor = open_tensor(path, key)
    for stored, window in asked.values():
        check_side(tensor.shape, stored, kv, window)
    results = {n: compare_side(tensor, s, kv, window=w, scale=factor) for n, (s, w) in asked.items()}
    return Compared(path, tensor.key, tensor.shape, tensor.native, kv, factor, channels, results)


def document(found: Compared) -> dict[str, object]:
    """`--json`; every figure is defined in `formats/compare.py`."""
    return {
        "schema": "kvgate.formats.compare/1",
        "file": str(found.path),
        "key": found.key,
        "shape": list(found.shape),
        "dtype": found.native,
        "side": found.side,
        "scale": found.scale,
        "results": [_result(name, r, found.channels) for name, r in found.results.items()],
    }


def print_page(found: Compared) -> None:
    """The table, and the worst channels of each codec."""
    any_result = next(iter(found.results.values())).comparison
    said = f"{one_line(found.key, 80)}: {list(found.shape)} {found.native}, largest magnitude "
    lines = [said + number_text(any_result.distance.max_abs)]
    if any_result.x_nan or any_result.x_inf:
        lines.append(f"{any_result.x_nan} NaN and {any_result.x_inf} infinite values are left out of all figures")
    rows: list[tuple[str, ...]] = [
        ("codec", "bits", "SQNR dB", "max error", "at", "clipped", "to zero", "NaN", "inf", "notes")
    ]
    rows += [_row(name, r) for name, r in found.results.items()]
    lines += ["", *columns(rows, right=(1, 2, 3, 5, 6, 7, 8)), ""]
    for name, r in found.results.items() if found.channels else ():
        lines += [f"{name}: worst channels", *_channel_lines(worst_channels(r.comparison, found.channels)), ""]
    for line in lines[:-1]:
        out_console().print(line, soft_wrap=True)


def _asked(name: str, kv: KVSide) -> tuple[Side, Window | None]:
    stored, window = side_of(parse(name), kv)
    return replace(stored, codec=canonical(stored.codec, role="storage")), window


def _factor(scale: str) -> str | float:
    word = scale.strip().lower()
    if word in (UNIT, AMAX):
        return word
    try:
        return float(word)
    except ValueError:
        raise UserError(f"unknown scale {scale!r}", allowed=(UNIT, AMAX, "a number")) from None


def _row(name: str, r: SideComparison) -> tuple[str, ...]:
    c, d = r.comparison, r.comparison.distance
    at = "" if c.at is None else "[" + ",".join(map(str, c.at)) + "]"
    clipped = "?" if c.clipped is None else _share(c.clipped)
    sqnr = f"{d.sqnr_db:.2f}" if d.sqnr_db is not None else "exact" if d.note == "exact" else "none"
    numbers = (number_text(d.max_error), at, clipped, _share(c.zeroed), str(c.y_nan), str(c.y_inf))
    return (name, f"{float(r.bits):.4g}", sqnr, *numbers, _notes(r))


def _notes(r: SideComparison) -> str:
    d, notes = r.comparison.distance, []
    if d.lost:
        notes.append(f"{d.lost} finite values came back as NaN or infinity")
    elif d.sqnr_db is None and d.note not in ("exact", "empty"):
        notes.append(_NOTES[d.note])
    if r.scale is not None:
        low, high = r.scale
        notes.append(f"scale {number_text(low)}" + (f" to {number_text(high)}" if high != low else ""))
    if r.encoded is not None and r.encoded_tokens != r.tokens:
        alone = "" if r.encoded.sqnr_db is None else f", {r.encoded.sqnr_db:.2f} dB among these"
        notes.append(f"{r.encoded_tokens} of {r.tokens} tokens encoded, the others native{alone}")
    return "; ".join(notes)


def _channel_lines(channels: tuple[Channel, ...]) -> list[str]:
    rows = [("head", "channel", "SQNR dB", "max error", "largest")]
    for c in channels:
        d = c.distance
        sqnr = f"{d.sqnr_db:.2f}" if d.sqnr_db is not None else d.note
        head = "" if c.head is None else str(c.head)
        rows.append((head, str(c.channel), sqnr, number_text(d.max_error), number_text(d.max_abs)))
    return [f"  {line}" for line in columns(rows, right=range(5))]


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.2%}" if value >= 5e-5 else f"{value:.0e}"


def _result(name: str, r: SideComparison, channels: int) -> dict[str, object]:
    c = r.comparison
    found: dict[str, object] = {
        "codec": name,
        "bits_per_element": float(r.bits),
        **_distance(c.distance),
        "max_error_at": None if c.at is None else list(c.at),
        "clipped_share": c.clipped,
        "zeroed_share": c.zeroed,
        "input_nan": c.x_nan,
        "input_inf": c.x_inf,
        "output_nan": c.y_nan,
        "output_inf": c.y_inf,
        "scale": None if r.scale is None else {"min": r.scale[0], "max": r.scale[1]},
        "tokens": r.tokens,
        "encoded_tokens": r.encoded_tokens,
        "encoded_sqnr_db": None if r.encoded is None else r.encoded.sqnr_db,
    }
    if channels:
        found["worst_channels"] = [
            {"head": w.head, "channel": w.channel, **_distance(w.distance)} for w in worst_channels(c, channels)
        ]
    return found


def _distance(d: Distance) -> dict[str, object]:
    return {
        "elements": d.elements,
        "sqnr_db": d.sqnr_db,
        "sqnr_note": d.note or None,
        "max_error": d.max_error,
        "max_abs": d.max_abs,
        "lost": d.lost,
    }
