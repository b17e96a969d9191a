"""Engines started by Docker Compose and Kubernetes manifests, and engines' own configuration files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import FlagRow
from kvgate.lint.command import ON, Command, Place, Setting, Word
from kvgate.lint.read.argv import build, command_of, facts_of, flag_row, settings_of, with_image
from kvgate.lint.read.programs import image_of
from kvgate.lint.read.shell import commands_of
from kvgate.lint.read.yaml_tree import Node

_KUBE_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_OPAQUE = re.compile(r"\$[{(A-Za-z_]|\{\{|`")
_MAX_DEPTH = 3


def commands_in(root: Node, file: str, engine: str = "") -> list[Command]:
    """Commands of one YAML or JSON document, whatever it is.

    Args:
        engine: what the person said; decides whose configuration file it is.

    Raises:
        UserError: a configuration file, and nobody can tell of which engine.
    """
    if root.kind == "sequence":
        words = [Word(n.text, n.line) for n in root.items if n.kind == "scalar"]
        command = command_of(words, {}, Place(file), engine) if words and len(words) == len(root.items) else None
        return [command] if command is not None else []
    services = root.get("services")
    if services is not None and services.kind == "mapping":
        return [c for name, node in services.all_pairs().items() if (c := _service(name, node, file))]
    if root.get("apiVersion") is not None and root.get("kind") is not None:
        return _containers(root, file)
    found = _containers(root, file)
    if found:
        return found
    return [_config(root, file, engine)]


def _service(name: str, node: Node, file: str) -> Command | None:
    env = _environment(node.get("environment"))
    words = [*_words(node.get("entrypoint"), {}, "$$"), *_words(node.get("command"), {}, "$$")]
    return _start(words, env, node.scalar("image"), Place(file, node.line, f"services.{name}"))


def _containers(root: Node, file: str) -> list[Command]:
    """Whatever has a command or arguments and an image or a name: pods, jobs, and custom resources that hold pods."""
    found = []
    for node in root.walk():
        if node.kind != "mapping" or (node.get("args") is None and node.get("command") is None):
            continue
        env = _environment(node.get("env"))
        words = [*_words(node.get("command"), env, "$$("), *_words(node.get("args"), env, "$$(")]
        command = _start(words, env, node.scalar("image"), Place(file, node.line, node.scalar("name") or "container"))
        if command is not None:
            found.append(command)
    return found


def _start(words: list[Word], env: Mapping[str, str], image_name: str, place: Place) -> Command | None:
    image = image_of(image_name) if image_name else None
    command = command_of(words, env, place) if words else None
    if command is None and image is not None:
        command = build(image.engine, "", words, env, place)
    return with_image(command, image_name, image) if command is not None and image is not None else command


def _words(node: Node | None, env: Mapping[str, str], protected: str) -> list[Word]:
    """`command:` as text or list; `$(NAME)` is Kubernetes' own variable, `$$` a protected dollar sign."""
    if node is None:
        return []
    if node.kind == "scalar":
        try:
            return [Word(w.text, node.line, w.opaque) for _, words in commands_of(node.text) for w in words]
        except UserError:
            return [Word(node.text, node.line, True)]
    found: list[Word] = []
    for item in node.items:
        text = _KUBE_VARIABLE.sub(lambda m: env.get(m[1], m[0]), item.text)
        opaque = bool(_OPAQUE.search(text.replace("$$", ""))) and not _is_script(found)
        found.append(Word(text.replace("$$", "$") if protected == "$$" else text, item.line, opaque))
    return found


def _is_script(before: Sequence[Word]) -> bool:
    """Whether the next word is the script of `sh -c`, whose own words are looked at later."""
    return bool(before) and re.fullmatch(r"-[a-z]*c", before[-1].text) is not None


def _environment(node: Node | None) -> dict[str, str]:
    """Compose's mapping or list of NAME=VALUE, or Kubernetes' list of names and values."""
    if node is None:
        return {}
    if node.kind == "mapping":
        return {k: n.text for k, n in node.all_pairs().items() if n.kind == "scalar"}
    found = {}
    for item in node.items:
        if item.kind == "scalar":
            name, equals, value = item.text.partition("=")
            if equals:
                found[name] = value
        elif item.get("value") is not None:
            found[item.scalar("name")] = item.scalar("value")
    return found


def _config(root: Node, file: str, engine: str) -> Command:
    if root.kind != "mapping":
        raise UserError(f"{file} is no configuration: it holds no keys", fix="give a file of keys and values")
    own = engine or _whose(root, file)
    settings = config_settings(own, root, file)
    notes = tuple(f"{file}, line {line}: the key {key} stands twice" for key, line in root.twice())
    return Command(own, "", settings, {}, Place(file), notes=notes)


def _whose(root: Node, file: str) -> str:
    """The one engine that knows most of the keys."""
    scores = {}
    for engine in ("vllm", "sglang", "trtllm"):
        table = _by_file(engine)
        keys = {k for k, _ in _flat(root)} if engine == "trtllm" else set(root.all_pairs())
        scores[engine] = sum(
            k in table if engine == "trtllm" else flag_row(engine, f"--{k.replace('_', '-')}")[0] is not None
            for k in keys
        )
    best = max(scores.values())
    owners = [e for e, n in scores.items() if n == best]
    if not best:
        raise UserError(f"{file} configures no engine that lint knows", allowed=tuple(scores), fix="or add --engine")
    if len(owners) > 1:
        raise UserError(f"{file} may be a file of {' or '.join(owners)}", fix=f"add --engine {owners[0]}")
    return owners[0]


def config_settings(engine: str, root: Node, file: str) -> tuple[Setting, ...]:
    """Settings of an engine's configuration file."""
    found: list[Setting] = []
    if engine == "trtllm":
        table = _by_file(engine)
        for path, node in _flat(root):
            row = table.get(path)
            place = Place(file, node.line, path)
            found.append(
                Setting(row.key if row else path, path, _value(node), place, path if row else "", "file", _opaque(node))
            )
        return tuple(found)
    for key, node in root.pairs:
        row, _, sub = flag_row(engine, f"--{key.replace('_', '-')}")
        place = Place(file, node.line, key)
        if node.kind == "mapping":
            name = row.key if row else key.replace("-", "_")
            found.append(Setting(name, key, "{...}", place, row.name if row else "", "file"))
            found += [
                Setting(f"{name}.{k.replace('-', '_')}", f"{key}.{k}", _value(n), place, "", "file", _opaque(n))
                for k, n in _flat(node)
            ]
            continue
        value = _value(node)
        if row is not None and row.takes == "switch" and value.lower() in ("false", "no", "off"):
            continue
        words = [Word(value, node.line, _opaque(node))]
        found += settings_of(engine, key, row, False, sub, words, place, "file")
    return tuple(found)


def _value(node: Node) -> str:
    if node.kind == "sequence":
        return " ".join(_value(n) for n in node.items)
    return node.text if node.kind == "scalar" else ON


def _opaque(node: Node) -> bool:
    return bool(_OPAQUE.search(_value(node)))


def _flat(root: Node, prefix: str = "", depth: int = 0) -> list[tuple[str, Node]]:
    found: list[tuple[str, Node]] = []
    for key, node in (*root.merged, *root.pairs):
        path = f"{prefix}{key}"
        if node.kind == "mapping" and depth < _MAX_DEPTH:
            found += _flat(node, f"{path}.", depth + 1)
        else:
            found.append((path, node))
    return found


def _by_file(engine: str) -> dict[str, FlagRow]:
    facts = facts_of(engine)
    return {row.file: row for row in facts.flag if row.file} if facts else {}
