"""A Dockerfile -> what its image starts: ENTRYPOINT and CMD joined, ENV in front, the base image for what is not said.

Only the instructions that decide the start are read; nothing is built. Rules: the Dockerfile reference, "Understand how
CMD and ENTRYPOINT interact": an ENTRYPOINT in shell form ignores CMD.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvgate.core.errors import UserError
from kvgate.lint.command import Command, Place, Word
from kvgate.lint.read.argv import build, command_of, with_image
from kvgate.lint.read.programs import image_of
from kvgate.lint.read.shell import commands_of

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(?P<image>\S+)(?:\s+AS\s+(?P<name>\S+))?", re.IGNORECASE | re.MULTILINE)
_STEP = re.compile(r"\s*(?P<word>[A-Za-z]+)\s+(?P<rest>.*)", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass
class _Stage:
    image: str
    line: int
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    entry: tuple[Word, ...] | None = None
    is_shell_entry: bool = False
    command: tuple[Word, ...] | None = None


def is_dockerfile(text: str) -> bool:
    """Whether a text has a FROM line before anything that starts."""
    return _FROM.search(text) is not None


def commands_in_dockerfile(text: str, file: str) -> list[Command]:
    """The start of every stage that starts an engine.

    Raises:
        UserError: a quote that is not closed.
    """
    found = (_start(stage, file) for stage in _stages(text))
    return [c for c in found if c is not None]


def _start(stage: _Stage, file: str) -> Command | None:
    if stage.entry is None and stage.command is None and not stage.env:
        return None
    words = [*(stage.entry or ()), *(() if stage.is_shell_entry else stage.command or ())]
    place = Place(file, words[0].line if words else stage.line)
    image = image_of(stage.image)
    command = command_of(words, stage.env, place) if words else None
    if command is None and image is not None:
        command = build(image.engine, "", words, stage.env, place)
    return with_image(command, stage.image, image) if command is not None and image is not None else command


def _stages(text: str) -> list[_Stage]:
    found: list[_Stage] = []
    for word, rest, line in _steps(text):
        if word == "FROM":
            found.append(_begun(rest, line, found))
        elif found and word == "ENV":
            found[-1].env |= _env(rest)
        elif found and word == "ENTRYPOINT":
            words = _json(rest, line)
            found[-1].entry, found[-1].is_shell_entry = words or _shell(rest, line), words is None
            found[-1].command = None
        elif found and word == "CMD":
            found[-1].command = _json(rest, line) or _shell(rest, line)
    return found


def _begun(rest: str, line: int, before: list[_Stage]) -> _Stage:
    """A stage; one that is built from an earlier one goes on where that ended."""
    match = _FROM.match(f"FROM {rest}")
    if match is None:
        return _Stage("", line)
    name = (match["name"] or "").lower()
    for stage in before:
        if stage.name and stage.name == match["image"].lower():
            return replace(stage, name=name, env=dict(stage.env))
    return _Stage(match["image"], line, name)


def _steps(text: str) -> Iterator[tuple[str, str, int]]:
    """Instructions with their line; lines that end in a backslash go on, comments between them are left out."""
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if raw.lstrip().startswith("#") or (parts and not raw.strip()):
            continue
        start = start if parts else number
        goes_on = raw.rstrip().endswith("\\")
        parts.append(raw.rstrip()[:-1] if goes_on else raw)
        if not goes_on:
            match = _STEP.fullmatch("\n".join(parts))
            parts = []
            if match:
                yield match["word"].upper(), match["rest"].strip(), start
    match = _STEP.fullmatch("\n".join(parts)) if parts else None
    if match:
        yield match["word"].upper(), match["rest"].strip(), start


def _env(rest: str) -> dict[str, str]:
    """`ENV A=b C="d e"`, or the old form `ENV NAME VALUE`."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return {m[1]: m[2] for w in words if (m := _PAIR.fullmatch(w))}


def _json(rest: str, line: int) -> tuple[Word, ...] | None:
    try:
        body = json.loads(rest) if rest.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, list) or not all(isinstance(w, str) for w in body):
        return None
    return tuple(Word(w, line, "$" in w) for w in body)


def _shell(rest: str, line: int) -> tuple[Word, ...]:
    try:
        parts = commands_of(rest)
    except UserError:
        return ()
    for env, words in parts:
        moved = tuple(Word(w.text, line + w.line - 1, w.opaque) for w in words)
        if command_of(moved, env, Place()) is not None or len(parts) == 1:
            return (*(Word(f"{k}={v}", line) for k, v in env.items()), *moved)
    return ()
