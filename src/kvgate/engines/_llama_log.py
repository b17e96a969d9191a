"""Reads llama.cpp's load log. Patterns come from enginefacts by package version; anything not understood stays unknown.

Never raises on any text: a log is what another program wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvgate.core.deployment import CachePart
from kvgate.enginefacts.facts import EngineFacts

#: No line of interest is longer; hostile input must not cost more than its length.
MAX_LINE_CHARS = 300
MAX_PARTS = 64
#: "0.00.295.314 I " before each line of newer builds.
_PREFIX = re.compile(r"^\d+(?:\.\d+){3} [A-Z] ")
_KINDS = {"non-SWA": "full_attention", "SWA": "sliding_window"}
_FLAG_ON = -1  # "rotated", without a size, in builds whose log has only a flag


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What a load log says; None is unknown.

    Attributes:
        parts: one per cache; a rotation of None was not said. `mib`: the total that the log prints for each.
        rotation_flags: the log says of a rotation only whether it is on.
        numbers: slots, context_tokens, total_context_tokens, batch_tokens, ubatch_tokens, threads, checkpoints.
        words: flash_attention, unified, prompt_cache, speculation.
        devices: names of the buffers that hold the cache.
        lines: the lines that say so, without time stamps.
    """

    parts: tuple[CachePart, ...] = ()
    mib: tuple[float, ...] = ()
    rotation_flags: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def parse(lines: Iterable[str], facts: EngineFacts, version: str | None) -> ParsedLog:
    """Read the lines of one context's load.

    Args:
        lines: in order, with or without time stamps.
        version: of the engine's package; None reads with the newest patterns.
    """
    patterns = {name: re.compile(p) for name, p in facts.patterns(version).items()}
    reading = _Reading(facts)
    for line in lines:
        text = _PREFIX.sub("", line[:MAX_LINE_CHARS]).strip()
        for name, pattern in patterns.items():
            m = pattern.search(text)
            if m is not None:
                reading.take(name, m, text)
                break
    return reading.done()


def last_words(lines: Iterable[str]) -> str:
    """The line that best says why a load failed: the first error that is not a mere echo of another."""
    errors = [m[1] for line in lines if (m := _ERROR.search(line[:MAX_LINE_CHARS]))]
    told = [e for e in errors if not any(echo in e for echo in _ECHOES)]
    if told or errors:
        return (told or errors)[0].strip()
    rest = [_PREFIX.sub("", line[:MAX_LINE_CHARS]).strip() for line in lines]
    return next((r for r in reversed(rest) if r), "")


#: Error lines: level E, an assertion, or (without a level) the GGUF reader, which only speaks of errors.
_ERROR = re.compile(
    r"(?:^\d+(?:\.\d+){3} E |(?=\bGGML_ASSERT\b)|(?=\bgguf_\w+: )|(?=\bllama_\w+: (?:error|failed)))(.*)"
)
#: Errors that only say that a step above failed.
_ECHOES = ("failed to create context", "failed to load model,", "exiting due to", "failed to create_context")


class _Reading:
    """State while a log is read."""

    def __init__(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._parts: list[CachePart] = []
        self._mib: list[float] = []
        self._kind = "full_attention"
        self._flags = False
        self._numbers: dict[str, int] = {}
        self._words: dict[str, str] = {}
        self._devices: list[str] = []
        self._lines: list[str] = []

    def take(self, name: str, m: re.Match[str], line: str) -> None:
        if len(self._parts) >= MAX_PARTS:
            return
        self._lines.append(line)
        match name:
            case "size":
                self._size(m)
            case "part":
                self._kind = _KINDS[m["kind"]]
            case "buffer":
                device = m["device"].lower()
                if device not in self._devices:
                    self._devices.append(device)
            case "rotation":
                self._rotation(m["side"], int(m["size"]))
            case "rotation_flag":
                self._flags = True
                self._rotation(m["side"], _FLAG_ON if m["on"] == "1" else 0)
            case "checkpoints":
                self._numbers[name] = 0 if m["off"] else int(m["value"])
            case _ if "value" in m.re.groupindex:
                value = m["value"]
                if value.isdecimal():
                    self._numbers[name] = int(value)
                else:
                    self._words[name] = value

    def _size(self, m: re.Match[str]) -> None:
        self._mib.append(float(m["mib"]))
        self._parts.append(
            CachePart(
                kind=self._kind,
                cells=int(m["cells"]),
                layers=int(m["layers"]),
                k_codec=self._facts.codec_of(m["k"]) or m["k"],
                v_codec=self._facts.codec_of(m["v"]) or m["v"],
                k_mib=float(m["k_mib"]),
                v_mib=float(m["v_mib"]),
            )
        )

    def _rotation(self, side: str, size: int) -> None:
        # The lines of a cache follow its size line; one without a size line says nothing about any cache.
        if self._parts:
            self._parts[-1] = self._parts[-1].model_copy(update={f"{side}_rotation": size})

    def done(self) -> ParsedLog:
        return ParsedLog(
            tuple(self._parts),
            tuple(self._mib),
            self._flags,
            dict(self._numbers),
            dict(self._words),
            tuple(self._devices),
            tuple(self._lines),
        )


def with_rotation_sizes(log: ParsedLog, sizes: Mapping[str, tuple[int, int]]) -> ParsedLog:
    """The same log with flags replaced by the matrix size that the engine's rule gives.

    Args:
        sizes: kind of cache -> (k, v) size where rotation is on.
    """

    def sized(part: CachePart) -> CachePart:
        k, v = sizes.get(part.kind, (0, 0))
        seen = {"k_rotation": (part.k_rotation, k), "v_rotation": (part.v_rotation, v)}
        return part.model_copy(update={n: (rule if got == _FLAG_ON else got) for n, (got, rule) in seen.items()})

    return replace(log, parts=tuple(sized(p) for p in log.parts)) if log.rotation_flags else log
