"""Text and JSON that every database can hold, without losing a character.

Model output and file names may hold NUL and lone surrogates. SQLite cannot store a lone surrogate as text and
PostgreSQL neither of them, so both are escaped with ESC and four hex digits, and come back as they were.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from kvgate.core.errors import StoreError

#: A JSON document may not unpack to more than this; the longest answers are a few MB.
MAX_JSON_BYTES = 1 << 30

_ESCAPED = re.compile("\x1b([0-9a-f]{4})")
_AWKWARD = re.compile("[\x00\x1b\ud800-\udfff]")
_PASSWORD = re.compile(r"(://[^\s/:@\"']*):[^\s/\"']*@")


class NotJson(StoreError):
    """A value that JSON cannot hold (NaN, infinity, an object): nothing was written.

    Raised before the transaction, so the caller may record the answer as a failed one instead.
    """


def canonical(value: Any, what: str) -> str:
    """The one JSON text of a value: sorted keys, no blanks, no NaN. Equals that of `core.content_digest`.

    Raises:
        NotJson: NaN, infinity, a key that is not text, or an object; `what` names it.
    """
    try:
        plain = _plain(value, what)
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as e:
        raise NotJson(f"{what} cannot be stored: {e}") from e


def _plain(value: Any, what: str) -> Any:
    """Mappings as dicts: the JSON encoder takes no other. A key that is not text would come back changed: refused."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise NotJson(f"{what} cannot be stored: key {key!r} is not text")
        return {k: _plain(v, what) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, what) for v in value]
    return value


def pack_json(value: Any, what: str) -> bytes:
    """zlib of the canonical JSON in UTF-8; lone surrogates pass."""
    return zlib.compress(canonical(value, what).encode("utf-8", "surrogatepass"))


def pack_json_in_order(value: Any, what: str) -> bytes:
    """The same with keys in the order they have: an engine's grammar follows the order of a schema's properties."""
    canonical(value, what)  # raises for what is no JSON
    text = json.dumps(_plain(value, what), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return zlib.compress(text.encode("utf-8", "surrogatepass"))


def unpack_json(blob: bytes, where: str) -> Any:
    """The value back.

    Raises:
        StoreError: the bytes are damaged; `where` names the row.
    """
    try:
        text = inflate(blob, MAX_JSON_BYTES).decode("utf-8", "surrogatepass")
        return json.loads(text)
    except (zlib.error, ValueError) as e:
        raise StoreError(f"the store is damaged: {where}: {e}") from e


def inflate(blob: bytes, most_bytes: int) -> bytes:
    """Decompress, but never more than `most_bytes`, nor less than all.

    Raises:
        ValueError: it is longer, or cut off. zlib.error: it is damaged.
    """
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(blob, most_bytes)
    if not unpacker.eof:
        # The stream's own checksum is only read once all bytes are out; ask for one more.
        if unpacker.decompress(unpacker.unconsumed_tail, 1):
            raise ValueError(f"longer than {most_bytes} bytes")
        if not unpacker.eof:
            raise ValueError("cut off")
    return data


def without_passwords(value: Any) -> Any:
    """The JSON value with every `scheme://user:password@` reduced to `scheme://user:***@`."""
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", value)
    if isinstance(value, Mapping):
        return {k: without_passwords(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_passwords(v) for v in value]
    return value


class AnyText(sa.types.TypeDecorator[str]):
    """Text with NUL and lone surrogates escaped on the way in and restored on the way out."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or _AWKWARD.search(value) is None:
            return value
        return _AWKWARD.sub(lambda m: f"\x1b{ord(m.group()):04x}", value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or "\x1b" not in value:
            return value
        return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), value)


class JsonText(sa.types.TypeDecorator[Any]):
    """A small JSON value as canonical text, readable in any database shell."""

    impl = AnyText
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else canonical(value, "a row")

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as e:
            raise StoreError(f"the store is damaged: a column that should hold JSON holds {value[:40]!r}") from e
