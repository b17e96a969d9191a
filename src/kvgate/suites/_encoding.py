"""What a file that is not UTF-8 seems to be, and how to convert it: a guess for a message, never for reading."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

#: By the name that `iconv` takes. The longer mark first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_LOOK_BYTES = 1 << 16
#: Letters beyond ASCII are rarer than this in the languages that Windows-1252 is for; a few words may be anything.
_MOST_HIGH_SHARE, _FEW = 0.25, 4
#: Controls that no text has; they mean an archive or a picture.
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def encoding_of(data: bytes) -> str | None:
    """The encoding of `data`, which is not UTF-8 text, as far as it shows: a name that `iconv` takes."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    look = data[:_LOOK_BYTES]
    for name, zeros, letters in (("UTF-16LE", look[1::2], look[::2]), ("UTF-16BE", look[::2], look[1::2])):
        # Half of the bytes of most languages in UTF-16 are zero, all on one side.
        if zeros.count(0) > len(zeros) / 2 and letters.count(0) == 0:
            return name
    if _NO_TEXT.search(look) or _mostly_utf8(look):
        return None
    high = sum(byte >= 0x80 for byte in look)
    if high > max(_FEW, _MOST_HIGH_SHARE * len(look)):
        return None
    try:
        look.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return "WINDOWS-1252"


def _mostly_utf8(data: bytes) -> bool:
    """Whether there are more whole characters of UTF-8 than broken ones: a damaged file, not another encoding."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    return sum(c > "\x7f" for c in text) - broken > broken


def how_to_convert(data: bytes, path: Path | str) -> tuple[str, str]:
    """What to say of a file that is not UTF-8 (", it seems to be Windows-1252", or nothing), and the fix."""
    name = encoding_of(data)
    if name is None:
        return "", "save it as UTF-8, or move it away"
    said = "Windows-1252" if name == "WINDOWS-1252" else name
    return f", it seems to be {said}", f"convert it: iconv -f {name} -t UTF-8 {shlex.quote(str(path))} > NEW.txt"
