"""The codec or method that a person means."""

from __future__ import annotations

from difflib import get_close_matches

from kvgate.core.errors import UserError
from kvgate.formats.spec import by_spelling, codecs
from kvgate.methods.spec import methods


def canonical(name: str, *, role: str = "") -> str:
    """The registered name; words that mean one codec everywhere ("fp8", "float16") count.

    Args:
        role: "storage" leaves transforms out.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    word = name.strip().lower()
    names = [*(c.name for c in codecs()), *(m.name for m in methods() if role in ("", m.role))]
    if word in names:
        return word
    if any(word == m.name for m in methods()):
        raise UserError(f"{word} is a transform", fix=f"write it behind a codec, as q8_0+{word}")
    try:
        return by_spelling("lab", word)
    except UserError:
        near = [n for n in names if word and n.startswith(word)] or get_close_matches(word, names, n=1)
        fix = f"did you mean {near[0]!r}?" if near else "kvgate formats describes each"
        raise UserError(f"unknown codec or method {name!r}", allowed=names, fix=fix) from None
