"""YAML and JSON as a tree of texts with line numbers, within bounds.

Only PyYAML's scanner, parser and composer of the safe loader are used: no tag constructs anything, every scalar stays
text. Bounded are bytes, depth, nodes, and nodes after aliases are followed (an anchor bomb is small until then).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.errors import UserError
from kvgate.core.text import one_line

MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_DOCUMENTS = 512 << 10, 48, 50_000, 200


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar (`text`), a sequence (`items`) or a mapping (`pairs`, all of them: a key may stand twice)."""

    kind: str
    line: int = 0
    text: str = ""
    items: tuple[Node, ...] = ()
    pairs: tuple[tuple[str, Node], ...] = ()
    merged: tuple[tuple[str, Node], ...] = field(default=(), repr=False)

    def get(self, key: str) -> Node | None:
        """The value of a key: the last one, own before merged."""
        return next((n for k, n in (*reversed(self.pairs), *self.merged) if k == key), None)

    def all_pairs(self) -> dict[str, Node]:
        return {**dict(reversed(self.merged)), **dict(self.pairs)}

    def scalar(self, key: str) -> str:
        """Text of a scalar value; "" for none."""
        node = self.get(key)
        return node.text if node is not None and node.kind == "scalar" else ""

    def twice(self) -> list[tuple[str, int]]:
        """Keys that stand more than once, with the line of the last."""
        lines: dict[str, list[int]] = {}
        for key, node in self.pairs:
            lines.setdefault(key, []).append(node.line)
        return [(key, at[-1]) for key, at in lines.items() if len(at) > 1]

    def walk(self) -> Iterator[Node]:
        """This node and all below it, each once."""
        seen: set[int] = set()
        todo = [self]
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            todo += [n for _, n in reversed((*node.pairs, *node.merged))] + list(reversed(node.items))


def yaml_documents(text: str, what: str) -> list[Node]:
    """Documents of a YAML text; `what` names it in messages.

    Raises:
        UserError: not YAML, or beyond a bound; one line.
    """
    import yaml

    if len(text) > MAX_BYTES:
        raise UserError(f"{what} has {len(text):,} characters", fix=f"lint reads at most {MAX_BYTES:,}")
    found: list[Node] = []
    try:
        for root in yaml.compose_all(text, Loader=_bounded_loader(what)):
            if root is not None:
                found.append(_Converter(what).node(root))
            if len(found) > MAX_DOCUMENTS:
                raise UserError(f"{what} has more than {MAX_DOCUMENTS} documents", fix="give them one by one")
    except yaml.YAMLError as e:
        raise _not_yaml(text, what, e) from None
    except (RecursionError, ValueError) as e:
        raise UserError(f"{what} is no YAML that can be read: {type(e).__name__}") from None
    return found


def json_node(data: object, depth: int = 0) -> Node:
    """A JSON value as a tree, without lines."""
    if depth > MAX_DEPTH:
        raise UserError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(data, dict):
        return Node("mapping", pairs=tuple((str(k), json_node(v, depth + 1)) for k, v in data.items()))
    if isinstance(data, list):
        return Node("sequence", items=tuple(json_node(v, depth + 1) for v in data))
    return Node("scalar", text="" if data is None else data if isinstance(data, str) else json.dumps(data))


def _not_yaml(text: str, what: str, error: Any) -> UserError:
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    problem = one_line(str(getattr(error, "problem", None) or "not YAML"), 120)
    if "{{" in text:
        return UserError(f"{what}{where}: {problem}; it holds templates", fix="render it first, e.g. helm template")
    return UserError(f"{what}{where}: {problem}", fix="correct the YAML")


def _bounded_loader(what: str) -> Any:
    import yaml

    class Bounded(yaml.SafeLoader):
        """Counts while it composes, before anything is built."""

        depth = nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            self.nodes += 1
            if self.depth > MAX_DEPTH:
                raise UserError(f"{what} is nested more than {MAX_DEPTH} deep", fix="flatten it")
            if self.nodes > MAX_NODES:
                raise UserError(f"{what} has more than {MAX_NODES:,} nodes", fix="give the part that starts the engine")
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    return Bounded


class _Converter:
    """From PyYAML's nodes to ours; a node that several aliases name is converted once, and counted each time."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done: dict[int, Node] = {}
        self.sizes: dict[int, int] = {}
        self.open: set[int] = set()

    def node(self, given: Any) -> Node:
        key = id(given)
        if key in self.open:
            raise UserError(f"{self.what}: an anchor holds itself", fix="write the value out")
        if key not in self.done:
            self.open.add(key)
            self.done[key] = self._convert(given)
            self.open.discard(key)
            below = given.value if isinstance(given.value, list) else []
            parts = [p for entry in below for p in (entry if isinstance(entry, tuple) else (entry,))]
            self.sizes[key] = 1 + sum(self.sizes.get(id(p), 1) for p in parts)
            if self.sizes[key] > MAX_NODES:
                raise UserError(f"{self.what}: its anchors expand to more than {MAX_NODES:,} nodes", fix="write it out")
        return self.done[key]

    def _convert(self, given: Any) -> Node:
        line = given.start_mark.line + 1
        if isinstance(given.value, str):
            null = given.tag.endswith(":null")
            return Node("scalar", line, "" if null else given.value)
        if given.id == "sequence":
            return Node("sequence", line, items=tuple(self.node(n) for n in given.value))
        pairs: list[tuple[str, Node]] = []
        merged: list[tuple[str, Node]] = []
        for key_node, value_node in given.value:
            value = self.node(value_node)
            if not isinstance(key_node.value, str):
                at = key_node.start_mark.line + 1
                raise UserError(
                    f"{self.what}, line {at}: a key is no text, as a template {{{{ ... }}}} without quotes is none",
                    fix="render templates first, e.g. helm template; write keys as text",
                )
            if key_node.value == "<<":
                for source in (value, *value.items):
                    merged += [(k, n) for k, n in source.all_pairs().items() if source.kind == "mapping"]
                if len(merged) > MAX_NODES:
                    raise UserError(f"{self.what}: merged keys expand without end", fix="write it out")
            else:
                pairs.append((key_node.value, value))
        return Node("mapping", line, pairs=tuple(pairs), merged=tuple(merged))
