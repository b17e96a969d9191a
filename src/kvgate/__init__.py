"""kvgate: may I store the KV cache in fewer bits, on my model, engine build and context lengths?

`kvgate.codecs["q4_0"].encode(x)` packs values as an engine would; see `kvgate.formats.codec`. Nothing heavy is imported
before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.formats.codec import codecs as codecs

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "codecs":
        from kvgate.formats.codec import codecs

        return codecs
    raise AttributeError(f"module 'kvgate' has no attribute {name!r}")
