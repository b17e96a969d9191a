"""Text of unknown origin made safe to print: one line, no control characters, no tricks with direction."""

from __future__ import annotations

import unicodedata


def one_line(text: str, max_chars: int = 2000) -> str:
    """`text` without line breaks, control, format and surrogate characters, cut at `max_chars`.

    A terminal acts on escape sequences and a bidi override reorders what a person reads; both reach us from file names,
    logs and model output.
    """
    kept = "".join(" " if c in "\r\n\t" else c for c in text if c in "\r\n\t" or unicodedata.category(c)[0] != "C")
    kept = " ".join(kept.split())
    return kept if len(kept) <= max_chars else kept[: max_chars - 1] + "…"
