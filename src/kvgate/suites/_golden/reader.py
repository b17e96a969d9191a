"""Read a golden file: JSON Lines, UTF-8, one prompt a line. Every error names the file and the line."""

from __future__ import annotations

import json
import math
import stat
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvgate.core.errors import UserError
from kvgate.suites._breaks.taxonomy import one_line
from kvgate.suites._encoding import how_to_convert
from kvgate.suites._golden.format import Prompt

MAX_LINE_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
MAX_PROMPTS = 10_000
#: Schemas and tools of real services nest under 20 levels; beyond 200, what writes and checks JSON gives up.
MAX_DEPTH = 64
#: A double holds no more.
MAX_DIGITS = 300
_FORMAT = 'one JSON object a line: {"id": ..., "messages": [{"role": "user", "content": ...}]}'


def read_prompts(path: Path | None) -> list[Prompt]:
    """The prompts of a file, or our own 80 if there is none.

    Raises:
        UserError: the file is missing, too big, empty, or a line is wrong; "golden.jsonl:7: not JSON: ...".
    """
    if path is None:
        return parse_prompts(files("kvgate.suites").joinpath("data/golden.jsonl").read_bytes(), "golden.jsonl")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # A pipe would be waited for, a device read without end; and a resumed run must read the same again.
            raise UserError(f"{path}: not a regular file", fix="give a JSONL file with --golden")
        if status.st_size > MAX_FILE_BYTES:
            raise UserError(f"{path}: over {MAX_FILE_BYTES >> 20} MiB", fix="split it, or take a sample")
        data = path.read_bytes()
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or type(e).__name__}", fix="give a JSONL file with --golden") from e
    return parse_prompts(data, path.name)


def parse_prompts(data: bytes, name: str) -> list[Prompt]:
    """The prompts in the bytes of a golden file; blank lines are skipped.

    Raises:
        UserError: no prompt at all, or a line is wrong.
    """
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        prompt = _prompt(_text(line, where, data, name), where)
        if prompt.id in line_of:
            raise UserError(f"{where}: id {one_line(prompt.id)!r} is also on line {line_of[prompt.id]}")
        line_of[prompt.id] = number
        prompts.append(prompt)
        if len(prompts) > MAX_PROMPTS:
            raise UserError(f"{name}: over {MAX_PROMPTS} prompts", fix="take a sample")
    if not prompts:
        raise UserError(f"{name}: no prompt in it", fix=f"write {_FORMAT}")
    return prompts


def _text(line: bytes, where: str, data: bytes, name: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{where}: {len(line):,} bytes in one line; the limit is {MAX_LINE_BYTES:,}")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as e:
        said, fix = how_to_convert(data, name)
        raise UserError(f"{where}: not UTF-8 at byte {e.start}{said}", fix=fix) from e
    if "\0" in text:
        said, fix = how_to_convert(data, name)
        raise UserError(f"{where}: a NUL byte: no text{said}", fix=fix)
    return text


def _prompt(text: str, where: str) -> Prompt:
    value = _json(text, where)
    if not isinstance(value, dict):
        raise UserError(f"{where}: not an object", fix=f"write {_FORMAT}")
    try:
        return Prompt.model_validate(value)
    except ValidationError as e:
        raise UserError(f"{where}: {_first_error(e)}") from e


def _json(text: str, where: str) -> Any:
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
        )
        if _deeper(value, MAX_DEPTH):
            raise RecursionError
        # An escape such as \ud800 is valid JSON and no valid text; no engine could be sent it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as e:
        raise UserError(f"{where}: half of a surrogate pair in a text") from e
    except RecursionError as e:
        raise UserError(f"{where}: nested too deep", fix=f"{MAX_DEPTH} levels are allowed") from e
    except ValueError as e:
        raise UserError(f"{where}: not JSON: {one_line(str(e))}", fix=f"write {_FORMAT}") from e
    return value


def _first_error(e: ValidationError) -> str:
    """The first thing wrong, by its place in the line. The input is not shown: prompts are private."""
    first = e.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(p) for p in first["loc"])
    return one_line(f"{place}: {first['msg'].removeprefix('Value error, ')}" if place else first["msg"], 300)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice[:40]!r} stands twice in one object")
    return value


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other more than `levels` deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (levels == 0 or any(_deeper(v, levels - 1) for v in inner))


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is larger than any number here")
    return value
