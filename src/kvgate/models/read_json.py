"""Reads JSON that somebody else wrote, with bounds: size, nesting, names given twice, numbers that are none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from kvgate.core.errors import UserError
from kvgate.core.text import one_line

#: Configurations are kilobytes; those with long label tables stay under a megabyte.
MAX_CONFIG_BYTES: Final = 8 << 20


class _Refused(ValueError):
    """What the standard parser takes and we do not."""


def read_json_object(
    path: Path, *, max_bytes: int = MAX_CONFIG_BYTES, fix: str = "get the file again"
) -> dict[str, object]:
    """The object that a file holds. At most `max_bytes` are read, whatever the file's size.

    Raises:
        UserError: the file cannot be read, is too big, or is no JSON object; one line that says which and where.
    """
    try:
        with path.open("rb") as file:
            # Asking for the cap would set the cap's memory aside, whatever the file's size.
            data = file.read(min(path.stat().st_size, max_bytes) + 1)
    except (OSError, ValueError) as e:
        raise UserError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > max_bytes:
        raise UserError(f"{path} has more than {max_bytes:,} bytes, too many for what it should be", fix=fix)
    return parse_json_object(data, str(path), fix=fix)


def parse_json_object(data: bytes, what: str, *, fix: str = "") -> dict[str, object]:
    """The object in `data`; `what` names its origin in messages.

    Raises:
        UserError: no UTF-8, no JSON, no object, nested too deeply, a key twice, or NaN and Infinity.
    """
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
        )
    except UnicodeDecodeError as e:
        raise UserError(f"{what} is not JSON: byte {e.start} is not UTF-8", fix=fix) from None
    except json.JSONDecodeError as e:
        raise UserError(f"{what} is not JSON: {e.msg} (line {e.lineno}, column {e.colno})", fix=fix) from None
    except _Refused as e:
        raise UserError(f"{what} cannot be used: {e}", fix=fix) from None
    except RecursionError:
        raise UserError(f"{what} is nested too deeply", fix=fix) from None
    except ValueError:
        # Python's own bound on the digits of a number.
        raise UserError(f"{what} holds a number with too many digits", fix=fix) from None
    if not isinstance(value, dict):
        raise UserError(f"{what} holds a JSON {type(value).__name__}, not an object", fix=fix)
    return value


def whole_number(values: Mapping[str, object], name: str) -> int | None:
    """A whole number above zero, None for anything else."""
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Refused(f"the key {one_line(name, 60)!r} comes twice")
            seen.add(name)
    return found


def _constant(word: str) -> NoReturn:
    raise _Refused(f"it holds {word}, which is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"it holds the number {one_line(text, 40)}, which is too big")
    return value
