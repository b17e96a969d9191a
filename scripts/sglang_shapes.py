"""Shapes of SGLang's requests and answers, and its flags, from its own wheel -> tests/engines/data/sglang_VERSION.json.

    pip download sglang==0.5.23 --no-deps -d DIR
    python scripts/sglang_shapes.py DIR/sglang-0.5.23-*.whl tests/engines/data/sglang_0.5.23.json

The wheel is not installed: its package needs torch and a GPU's libraries. The module of protocol classes is executed
with everything else of the package, and whatever is not installed, replaced by empty stand-ins; of the request class of
`/generate` the annotated fields alone are. Both are then asked by pydantic for their JSON schema, and of that only
names, types and what is required are kept. Flags, arguments and the keys of `meta_info` are read from the syntax tree.
Run again for a new version; tests hold our requests, and what our stand-in answers, against the file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import types
import typing
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROTOCOL = "sglang.srt.entrypoints.openai.protocol"
IO = "sglang/srt/managers/io_struct.py"
SAMPLING = "sglang/srt/sampling/sampling_params.py"
ANSWERS = "sglang/srt/managers/tokenizer_manager.py"
#: Packages that the protocol module imports and that are not needed for its fields.
OUTSIDE = ("openai", "msgspec", "xgrammar")
REQUESTS = {
    "/v1/completions": "CompletionRequest",
    "/v1/chat/completions": "ChatCompletionRequest",
    "/tokenize": "TokenizeRequest",
}
RESPONSES = {
    "/v1/completions": "CompletionResponse",
    "/v1/completions stream": "CompletionStreamResponse",
    "/v1/chat/completions": "ChatCompletionResponse",
    "/v1/chat/completions stream": "ChatCompletionStreamResponse",
    "/tokenize": "TokenizeResponse",
    "/v1/models": "ModelList",
    "error": "ErrorResponse",
}
KEPT = (
    "type",
    "anyOf",
    "items",
    "properties",
    "required",
    "$ref",
    "enum",
    "const",
    "additionalProperties",
    "prefixItems",
)


class _Nothing(type):
    """A class of which everything can be asked, and that pydantic takes for any value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)


def _nothing(name: str) -> Any:
    from pydantic_core import core_schema

    return _Nothing(
        name,
        (),
        {
            "__init__": lambda self, *a, **k: None,
            "__call__": lambda self, *a, **k: a[0] if a else None,
            "__init_subclass__": classmethod(lambda cls, **k: None),
            "__get_pydantic_core_schema__": classmethod(lambda cls, source, handler: core_schema.any_schema()),
        },
    )


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the protocol module in the folder, and nothing in the place of all else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name == PROTOCOL:
            return importlib.util.spec_from_file_location(name, self._folder / (name.replace(".", "/") + ".py"))
        if name.split(".")[0] in ("sglang", *OUTSIDE):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        made: dict[str, Any] = {}

        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return made.setdefault(name, _nothing(name))

        module.__getattr__ = get  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


def protocol_schema(folder: Path) -> dict[str, Any]:
    """JSON schemas of the protocol classes."""
    finder = _StandIns(folder)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(PROTOCOL)
    finally:
        sys.meta_path.remove(finder)
    return {
        "requests": {path: _schema(getattr(module, name), closed=True) for path, name in REQUESTS.items()},
        "responses": {path: _schema(getattr(module, name)) for path, name in RESPONSES.items()},
    }


def _schema(model: Any, *, closed: bool = False) -> dict[str, Any]:
    found = pruned(model.model_json_schema(mode="validation" if closed else "serialization"))
    return found | ({"additionalProperties": False} if closed else {})


def generate_schema(folder: Path) -> dict[str, Any]:
    """JSON schema of the annotated fields of GenerateReqInput."""
    from pydantic import ConfigDict, create_model

    tree = ast.parse((folder / IO).read_text())
    names = dict(vars(typing)) | {"Any": Any}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            _define(ast.unparse(node), names)
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "GenerateReqInput"]
    fields: dict[str, Any] = {}
    for item in found.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields[item.target.id] = (_type(item.annotation, names), None)
    made = create_model("GenerateReqInput", __config__=ConfigDict(arbitrary_types_allowed=True), **fields)
    return pruned(made.model_json_schema()) | {"additionalProperties": False}


def _define(source: str, names: dict[str, Any]) -> None:
    try:
        exec(source, names)  # noqa: S102 - the wheel's own aliases of types
    except Exception:  # an alias of something that is not here is not needed
        return


def _type(annotation: ast.expr, names: dict[str, Any]) -> Any:
    """The annotation's type; a validator beside it is left out, an unknown name is any value."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inner = annotation.slice
        annotation = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    try:
        return eval(ast.unparse(annotation), names)  # noqa: S307 - as above
    except Exception:
        return Any


def pruned(schema: Any) -> Any:
    """Names, types and what is required; titles, descriptions and defaults are left out."""
    if isinstance(schema, list):
        return [pruned(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: pruned(x) for name, x in sorted(value.items())}
        elif key in KEPT:
            kept[key] = pruned(value)
    return kept


def sampling_fields(folder: Path) -> list[str]:
    """Fields of SamplingParams."""
    tree = ast.parse((folder / SAMPLING).read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "SamplingParams"]
    names = {i.target.id for i in found.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)}
    for item in found.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names |= {a.arg for a in (*item.args.args, *item.args.kwonlyargs)}
    return sorted(n for n in names - {"self"} if not n.startswith("_"))


def meta_keys(folder: Path) -> list[str]:
    """Keys that are put into `meta_info`."""
    found = set()
    for node in ast.walk(ast.parse((folder / ANSWERS).read_text())):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if ast.unparse(target).startswith("meta_info["):
                    found |= set(_texts([target]))
                elif ast.unparse(target) == "meta_info" and isinstance(node.value, ast.Dict):
                    found |= set(_texts(node.value.keys))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "meta_info.update":
            found |= {k for a in node.args if isinstance(a, ast.Dict) for k in _texts(a.keys)}
    return sorted(found)


def _texts(nodes: Sequence[ast.AST | None]) -> Iterator[str]:
    for node in nodes:
        part = node.slice if isinstance(node, ast.Subscript) else node
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def arguments(folder: Path) -> tuple[list[str], list[str]]:
    """Fields of ServerArgs, and flags: one a field, further names of it, and those that are added by hand."""
    names, flags = set(), set()
    for path in sorted((folder / "sglang/srt/arg_groups/fields").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            names.add(node.target.id)
            said = _argument(node.annotation)
            if said.get("no_cli") is not True:
                flags |= {said.get("cli_name") or "--" + node.target.id.replace("_", "-"), *(said.get("aliases") or ())}
    for node in ast.walk(ast.parse((folder / "sglang/srt/server_args.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            flags |= {t for t in _texts(node.args) if t.startswith("--")}
    return sorted(names), sorted(flags)


def _argument(annotation: ast.expr) -> dict[str, Any]:
    """Literal keywords of the `Arg(...)` inside an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Arg":
            said = {}
            for word in node.keywords:
                if word.arg in ("no_cli", "cli_name", "aliases"):
                    said[word.arg] = ast.literal_eval(word.value)
            return said
    return {}


def main(wheel: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as packed:
        folder = Path(scratch)
        wanted = [n for n in packed.namelist() if n.startswith(("sglang/srt/arg_groups/fields/", "sglang/srt/"))]
        for name in wanted:
            if name in (IO, SAMPLING, ANSWERS, PROTOCOL.replace(".", "/") + ".py", "sglang/srt/server_args.py") or (
                name.startswith("sglang/srt/arg_groups/fields/")
            ):
                packed.extract(name, folder)
        schemas = protocol_schema(folder)
        schemas["requests"]["/generate"] = generate_schema(folder)
        names, flags = arguments(folder)
        document = {
            "schema": "kvgate.sglang-shapes/1",
            "version": wheel.name.split("-")[1],
            "how_made": f"scripts/sglang_shapes.py on {wheel.name}",
            "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            **schemas,
            "sampling_params": sampling_fields(folder),
            "meta_info": meta_keys(folder),
            "arguments_without_flag": [n for n in names if "--" + n.replace("_", "-") not in flags],
            "flags": flags,
        }
    out.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")).replace(',"', ',\n"') + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
