"""What a person gives to lint -> commands: a command line, a script, a manifest, a configuration, a model folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.lint.command import Command
from kvgate.lint.read.argv import commands_in_shell, need_engine
from kvgate.lint.read.dockerfile import commands_in_dockerfile, is_dockerfile
from kvgate.lint.read.manifests import commands_in, config_settings
from kvgate.lint.read.shell import MAX_BYTES
from kvgate.lint.read.yaml_tree import Node, json_node, yaml_documents
from kvgate.models.read_json import parse_json_object

_STARTER = re.compile(
    r"^\s*(?:(?P<env>ENV |Environment=)|ExecStart=[-@:+!]*|(?:CMD|ENTRYPOINT)\s+)(?P<rest>.*)$", re.DOTALL
)
_FILE_ENDINGS = (".yaml", ".yml", ".json", ".sh", ".txt", ".env", ".service")


@dataclass(frozen=True, slots=True)
class Given:
    """What was read.

    Attributes:
        commands: starts of engines. scales_file: a file of KV scales, given alone. folder: a model folder, given alone.
    """

    commands: tuple[Command, ...] = ()
    scales_file: Path | None = None
    folder: Path | None = None


def read(text: str, engine: str = "") -> Given:
    """Read a command line, the path of a file or folder, or "-" for standard input.

    Raises:
        UserError: nothing to read, or nothing in it that lint knows; one line.
    """
    given = text.strip()
    if not given:
        raise UserError("nothing to lint", fix='give a command in quotes, e.g. kvgate lint "vllm serve MODEL"')
    if given == "-":
        return _of_text(sys.stdin.read(MAX_BYTES + 1), "", engine)
    path = _existing(given)
    if path is not None:
        return _of_path(path, engine)
    looks_like_path = given.lower().endswith(_FILE_ENDINGS) or given.startswith(("/", "./", "../", "~"))
    if not any(c.isspace() for c in given) and looks_like_path:
        raise UserError(
            f"there is no file or folder {one_line(given, 200)!r}", fix="give a command in quotes, or a file"
        )
    return _of_text(text, "", engine)


def _existing(text: str) -> Path | None:
    try:
        path = Path(text)
        return path if path.exists() else None
    except (OSError, ValueError):
        return None


def _of_path(path: Path, engine: str) -> Given:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is a folder without config.json", fix="give a file, or a model's folder")
        return Given(folder=path)
    text = read_text(path)
    suffix = path.suffix.lower()
    if suffix == ".json" and text.lstrip().startswith("["):
        words = _json_words(text)
        if words is None:
            raise UserError(f"{path} holds a JSON list that is no command", fix="give a list of words, or an object")
        return _checked(commands_in(json_node(words), str(path), engine), str(path))
    if suffix == ".json":
        body = parse_json_object(text.encode(), str(path), fix="correct the JSON")
        if isinstance(body.get("kv_cache"), dict) or "scaling_factor" in body:
            return Given(scales_file=path)
        if path.name == "config.json" and ("architectures" in body or "model_type" in body):
            return Given(folder=path.parent)
        return _checked(commands_in(json_node(body), str(path), engine), str(path))
    if suffix in (".yaml", ".yml"):
        documents = yaml_documents(text, str(path))
        return _checked([c for d in documents for c in commands_in(d, str(path), engine)], str(path))
    return _of_text(text, str(path), engine)


def _of_text(text: str, file: str, engine: str) -> Given:
    if "\0" in text:
        raise UserError(f"{file or 'the command'} is no text", fix="give a command, a script or a manifest")
    shown = file or f"{one_line(text, 60)!r}"
    if text.lstrip().startswith("["):
        words = _json_words(text)
        if words is not None:
            return _checked(commands_in(json_node(words), file, engine), shown)
    if is_dockerfile(text) and (found := commands_in_dockerfile(text, file)):
        return Given(tuple(found))
    return _checked(commands_in_shell(_as_shell(text), file, engine), shown)


def _json_words(text: str) -> list[object] | None:
    """A list of words written as JSON; None if it is none."""
    try:
        body = json.loads(text) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, list) and all(isinstance(w, str) for w in body) else None


def _as_shell(text: str) -> str:
    """Lines of a Dockerfile or a systemd unit that start something, as shell; all lines keep their number."""
    return "\n".join(_STARTER.sub(_started, line) for line in text.split("\n"))


def _started(match: re.Match[str]) -> str:
    if match["env"]:
        return "export " + match["rest"]
    words = _json_words(match["rest"])
    return match["rest"] if words is None else shlex.join(str(w) for w in words)


def _checked(commands: list[Command], what: str) -> Given:
    if not commands:
        raise need_engine(what)
    return Given(tuple(commands))


def read_text(path: Path) -> str:
    """A text file within bounds.

    Raises:
        UserError: no regular file, too big, or no UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a regular file", fix="give a command, a script or a manifest")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES:,} bytes", fix="give the part that starts the engine")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text", fix="give a command, a script or a manifest") from None


def with_config_file(command: Command) -> Command:
    """The command with the settings of the configuration file that it names, where that can be read."""
    named = command.get("config_file")
    if named is None:
        return command
    beside = Path(command.place.file).parent / named if command.place.file else Path(named)
    path = next((p for p in (Path(named), beside) if p.is_file()), None)
    if path is None:
        note = f"the configuration file {one_line(named, 120)} is not here, so its settings were not seen"
        return replace(command, notes=(*command.notes, note))
    text = read_text(path)
    if path.suffix.lower() == ".json":
        roots = [json_node(parse_json_object(text.encode(), str(path)))]
    else:
        roots = yaml_documents(text, str(path))
    root = roots[0] if roots else Node("mapping")
    return replace(command, settings=(*config_settings(command.engine, root, str(path)), *command.settings))
