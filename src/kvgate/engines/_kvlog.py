"""What a load log says about the KV cache, for logs of servers that somebody else started (and of the fake one).

Only lines of known form count; anything else leaves the type unknown. Sources: llama.cpp `llama_kv_cache: size` and
`n_rot_k`, vLLM's and SGLang's `kv_cache_dtype=...` of the start-up argument dump, our own fake server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvgate.core.deployment import CachePart, Consequence
from kvgate.core.errors import UserError

MAX_LOG_BYTES = 64 * 2**20

_SIZE = re.compile(
    r"(?:llama_kv_cache|fake_kv_cache): size =\s*(?P<mib>[\d.]+) MiB "
    r"\(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers.*?"
    r"K \((?P<k>\w+)\):\s*(?P<k_mib>[\d.]+) MiB, V \((?P<v>\w+)\):\s*(?P<v_mib>[\d.]+) MiB"
)
#: A log that was appended to over restarts counts from the last of these on.
_LOAD_STARTS = ("llama_model_loader: loaded meta data", "fake_model: name =")
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
    """Facts of a log's text, from the last load on. Sizes of several caches are added up."""
    text = text[max(0, *(text.rfind(mark) for mark in _LOAD_STARTS)) :]
    found: dict[str, object] = {}
    parts: list[CachePart] = []
    lines: list[str] = []
    for line in text.splitlines():
        if m := _SIZE.search(line):
            parts.append(_part(m))
        elif m := _ROTATION.search(line):
            found[f"{m['side']}_rotation"] = int(m["size"])
        elif m := _ARGUMENT.search(line):
            codec = _ARGUMENT_CODEC.get(m["name"].lower(), m["name"].lower())
            found |= {"k_codec": codec, "v_codec": codec}
        else:
            continue
        lines.append(line.strip()[:500])
    return LogFacts(Consequence.model_validate(found | _summed(parts)), tuple(lines))


def _part(m: re.Match[str]) -> CachePart:
    return CachePart(
        kind="full_attention",
        cells=int(m["cells"]),
        layers=int(m["layers"]),
        k_codec=_CODEC.get(m["k"], m["k"]) or m["k"],
        v_codec=_CODEC.get(m["v"], m["v"]) or m["v"],
        k_mib=float(m["k_mib"]),
        v_mib=float(m["v_mib"]),
    )


def _summed(parts: list[CachePart]) -> dict[str, object]:
    if not parts:
        return {}
    # Caches of different types in one engine have no single codec: unknown.
    k, v = ({p.k_codec for p in parts}, {p.v_codec for p in parts})
    return {
        "parts": tuple(parts),
        "k_codec": k.pop() if len(k) == 1 else None,
        "v_codec": v.pop() if len(v) == 1 else None,
        "kv_mib": round(sum(p.k_mib + p.v_mib for p in parts), 2),
        "cells": max(p.cells for p in parts),
        "layers": sum(p.layers for p in parts),
    }
