"""What a load log says about the KV cache, for logs of servers that somebody else started (and of the fake one).

Only lines of known form count; anything else leaves the type unknown. Sources: llama.cpp `llama_kv_cache: size` and
`n_rot_k`, vLLM's and SGLang's `kv_cache_dtype=...` of the start-up argument dump, our own fake server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvgate.core.deployment import Consequence
from kvgate.core.errors import UserError

MAX_LOG_BYTES = 64 * 2**20

_SIZE = re.compile(
    r"(?:llama_kv_cache|fake_kv_cache): size =\s*(?P<mib>[\d.]+) MiB "
    r"\(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers.*?K \((?P<k>\w+)\).*?V \((?P<v>\w+)\)"
)
_ROTATION = re.compile(r"llama_kv_cache: n_rot_(?P<side>[kv]) = (?P<size>\d+)")
_ARGUMENT = re.compile(r"""\bkv_cache_dtype['"]?\s*[=:]\s*['"]?(?:torch\.)?(?P<name>[A-Za-z0-9_]+)""")
#: Spellings of servers that are not codec ids; None is unknown ("auto" is whatever the model is).
_CODEC: dict[str, str | None] = {
    "auto": None,
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "mxfp4": "ggml_mxfp4",
    "nvfp4": "ggml_nvfp4",
}
#: The same word means another layout in vLLM's and SGLang's arguments than in a ggml log.
_ARGUMENT_CODEC = {**_CODEC, "mxfp4": "mxfp4", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Consequences and the lines that say so."""

    consequence: Consequence
    lines: tuple[str, ...]


def read_log(path: Path) -> LogFacts:
    """Facts of a log file.

    Raises:
        UserError: it cannot be read or is over `MAX_LOG_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise UserError(f"log {path} is over {MAX_LOG_BYTES} bytes", fix="cut it to the start-up part")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise UserError(f"log {path} cannot be read: {e.strerror}") from None
    return facts_of(text)


def facts_of(text: str) -> LogFacts:
    """Facts of a log's text; the last line of each form counts, because a restart appends."""
    found: dict[str, object] = {}
    lines: dict[str, str] = {}
    for line in text.splitlines():
        if m := _SIZE.search(line):
            found |= {"kv_mib": float(m["mib"]), "cells": int(m["cells"]), "layers": int(m["layers"])}
            found |= {"k_codec": _CODEC.get(m["k"], m["k"]), "v_codec": _CODEC.get(m["v"], m["v"])}
            lines["size"] = line.strip()
        elif m := _ROTATION.search(line):
            found[f"{m['side']}_rotation"] = int(m["size"])
            lines["rotation " + m["side"]] = line.strip()
        elif m := _ARGUMENT.search(line):
            name = m["name"].lower()
            codec = _ARGUMENT_CODEC.get(name, name)
            found |= {"k_codec": codec, "v_codec": codec}
            lines["argument"] = line.strip()[:500]
    return LogFacts(Consequence.model_validate(found), tuple(lines.values()))
