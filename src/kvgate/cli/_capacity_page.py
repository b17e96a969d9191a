"""What is generated of `docs/capacity.md` and of the README: tables from the code, and commands with their real output.

Between two marks stands what the mark asks for; everything else of a page is written by hand and left alone.

    <!-- table: devices -->  ...  <!-- /table -->     one of `TABLES`
    <!-- output -->  ...  <!-- /output -->            a console block; the `$ kvgate ...` on its first line is run again

Run by `make docs`; a test fails when a page is not what this would write.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.hardware.device import Arithmetic, Bandwidth, Device, Memory
from kvgate.models.hub_catalogue import CatalogueConfig
from kvgate.plan.terms import LayerPrice, Price, Serving

#: Model, device and context of the lines that engines would write, and of the examples' sequences.
LINE_MODEL, LINE_DEVICE, LINE_TOKENS = "Qwen/Qwen3-8B", "h200", 32_768
EXAMPLE_TOKENS = 131_072
COLUMNS = 100
_UNKNOWN = "?"
_TABLE = re.compile(r"(<!-- table: (?P<name>\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
_OUTPUT = re.compile(
    r"(<!-- output -->\n```console\n)\$ (?P<command>kvgate [^\n|]+)(?P<cut> \| head -(?P<lines>\d+))?\n.*?"
    r"(```\n<!-- /output -->)",
    re.DOTALL,
)
#: A source ends with a full stop before a new sentence, which may begin with an engine's name.
_SOURCE = re.compile(r"\s*Sources?: (?P<text>.+?)(?:\.(?=\s+(?:[A-Z]|vLLM|llama\.cpp))|\.?$)")
#: Outside of code, Markdown would take these for emphasis or for the end of a cell.
_MARKS = re.compile(r"(`[^`]*`)|([*|<])")


def capacity_page(page: str, root: Path) -> str:
    """`page` with every generated part as it is now.

    Args:
        root: folder of the repository, in which commands run (they name its start logs).

    Raises:
        KeyError: a mark names no table. RuntimeError: a command does not end well.
    """
    page = _TABLE.sub(lambda m: f"{m[1]}\n{TABLES[m['name']]()}\n{m[3]}", page)
    return _OUTPUT.sub(lambda m: _block(m, root), page)


def _block(found: re.Match[str], root: Path) -> str:
    lines = output(found["command"], root)
    shown = lines[: int(found["lines"])] if found["lines"] else lines
    text = "\n".join((f"$ {found['command']}{found['cut'] or ''}", *shown))
    return f"{found[1]}{text}\n{found[5]}"


def output(command: str, root: Path) -> list[str]:
    """Lines that a `kvgate ...` command prints on a terminal of 100 columns, without a network.

    Raises:
        RuntimeError: it ends by an error of its own (exit 2 and above); a finding (exit 1) is an answer.
    """
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    env |= {"COLUMNS": str(COLUMNS), "TERM": "dumb", "NO_COLOR": "1", "KVGATE_OFFLINE": "1"}
    argv = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=root)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return [line.rstrip() for line in done.stdout.rstrip().splitlines()]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def plain(text: str) -> str:
    """Text on one line, without meaning for Markdown outside of code."""
    return _MARKS.sub(lambda m: m[1] or f"\\{m[2]}", " ".join(text.split()))


# Families


def families() -> str:
    """One row a file of `models/families/`: who it claims, its rule and its source, in the file's own words."""
    rows = []
    for name, module, text in _family_files():
        rule, source = rule_and_source(text)
        claimed = [_claims(module, "CONFIG_FAMILY", "model_types"), _claims(module, "FAMILY", "architectures")]
        rows.append((name, *claimed, rule, source or "the file's own keys"))
    return table(("file", "`model_type` of config.json", "GGUF architecture", "rule", "source"), rows)


def rule_and_source(docstring: str) -> tuple[str, str]:
    """A family's docstring, apart: "name: what it stores" and further sentences; and what stands after "Source:"."""
    text = " ".join(docstring.split()).partition(": ")[2]
    sources = [m["text"] for m in _SOURCE.finditer(text)]
    rule = _SOURCE.sub("", text)
    return plain(rule[:1].upper() + rule[1:]), plain("; ".join(sources))


def _family_files() -> Iterator[tuple[str, Any, str]]:
    import importlib
    import pkgutil

    from kvgate.models import families as folder

    for found in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        if not found.name.startswith("_"):
            module = importlib.import_module(f"{folder.__name__}.{found.name}")
            yield found.name, module, ast.get_docstring(ast.parse(Path(str(module.__file__)).read_text())) or ""


def _claims(module: Any, attribute: str, words: str) -> str:
    made = getattr(module, attribute, None)
    if made is None:
        return ""
    claimed = [word for one in (made if isinstance(made, tuple) else (made,)) for word in getattr(one, words)]
    return ", ".join(claimed) or "all that no other file claims"


# Worked examples


def examples() -> str:
    """One shipped model a family of configurations: what each layer keeps, and the bytes."""
    from kvgate.core import registry
    from kvgate.core.recipe import parse
    from kvgate.core.units import gb_text
    from kvgate.plan.price import price, sequence_bytes

    rows = []
    shipped = _shipped()
    for family in registry.discover("config_family"):
        if family not in shipped:
            continue
        name, geometry, verified = shipped[family]
        bf16, fp8 = (price(geometry, parse(kv), engine="vllm") for kv in ("bf16", "fp8_e4m3"))
        sizes = [gb_text(sequence_bytes(p, EXAMPLE_TOKENS)) for p in (bf16, fp8)]
        rows.append(
            (
                family,
                name + ("" if verified else " \\*"),
                layers_text(bf16.layers),
                *_per_token(bf16, fp8),
                f"{bf16.fixed_bytes_per_sequence:,}",
                " / ".join(sizes),
            )
        )
    columns = ("family", "model", "caches", "B/token BF16 / FP8", "past windows", "fixed B", "131,072 tokens")
    return table(columns, rows)


def _shipped() -> dict[str, tuple[str, ModelGeometry, bool]]:
    """One model of each family: one whose own file was read, the first by name. Never asks the hub."""
    from kvgate.models.hub_catalogue import hub_config_names

    found: dict[str, tuple[str, ModelGeometry, bool]] = {}
    for name in hub_config_names():
        config, geometry = _catalogue(name)
        if geometry.family not in found or (config.verified and not found[geometry.family][2]):
            found[geometry.family] = (name, geometry, config.verified)
    return found


def _catalogue(name: str) -> tuple[CatalogueConfig, ModelGeometry]:
    from kvgate.models.geometry_from_config import geometry_from_config
    from kvgate.models.hub_catalogue import hub_config

    config = hub_config(name)
    if config is None:
        raise KeyError(name)
    return config, geometry_from_config(config.config, name, Source("spec", config.source))


def _per_token(bf16: Price, fp8: Price) -> tuple[str, str]:
    from kvgate.plan.explain import fraction_text

    inside = (bf16.bytes_per_token, fp8.bytes_per_token)
    past = (bf16.growth_bytes_per_token, fp8.growth_bytes_per_token)
    return " / ".join(map(fraction_text, inside)), " / ".join(map(fraction_text, past))


def layers_text(prices: Sequence[LayerPrice]) -> str:
    """Caches by likeness: "10 x 16 x (128 + 128), all tokens; 52 x 16 x (128 + 128), last 1,024"."""
    from kvgate.plan.explain import layer_rows

    parts = []
    for row in layer_rows(prices):
        count = row.bytes_per_token.partition(" x ")[0] if " x " in row.bytes_per_token else "1"
        extra = row.stored.partition(" + ")[2]
        fixed = row.fixed_bytes.rpartition(" x ")[2]
        state = "" if fixed == "0" or "fixed" in row.window else f"{fixed} B of state"
        words = (row.shape, row.window, extra, state) if row.window else (state,)
        parts.append(f"{count} x {', '.join(filter(None, words))}")
    return plain("; ".join(parts))


# Devices


def device_table() -> str:
    """Every device: the three sizes apart, bandwidth, what it multiplies in, and where each was read."""
    from kvgate.hardware.device import devices

    rows = [
        (
            d.id,
            d.compute_capability or d.architecture or "",
            _gb(d.marketing),
            _mib(d.reported),
            _mib(d.runtime),
            _bandwidth(d.bandwidth),
            _formats(d.fp8),
            _formats(d.fp4),
            _device_sources(d),
        )
        for d in devices().values()
    ]
    return table(
        ("device", "arch", "marketing", "device-reported", "runtime", "bandwidth", "FP8", "FP4", "source"), rows
    )


def _unsure(text: str, fact: Memory | Bandwidth | Arithmetic) -> str:
    return f"{text} (u)" if fact.unverified else text


def _gb(memory: Memory | None) -> str:
    return _UNKNOWN if memory is None else _unsure(f"{memory.bytes / 1e9:.4g} GB", memory)


def _mib(memory: Memory | None) -> str:
    if memory is None:
        return _UNKNOWN
    return _unsure(f"{memory.bytes / 2**20:,.0f} MiB = {memory.bytes / 1e9:.2f} GB", memory)


def _bandwidth(fact: Bandwidth | None) -> str:
    return _UNKNOWN if fact is None else _unsure(f"{fact.bytes_per_s / 1e12:g} TB/s", fact)


def _formats(fact: Arithmetic | None) -> str:
    return _UNKNOWN if fact is None else _unsure(", ".join(fact.formats) or "none", fact)


def _device_sources(d: Device) -> str:
    """Each source once, with what it says."""
    said: dict[str, list[str]] = {}
    for word in ("marketing", "reported", "runtime", "bandwidth", "fp8", "fp4"):
        fact = getattr(d, word)
        if fact is not None:
            said.setdefault(fact.source, []).append(word)
    return plain("; ".join(f"{', '.join(words)}: {source}" for source, words in said.items()))


# Engines


def rules() -> str:
    """Each rule of each engine: versions, the line that it predicts for one model, and where it was read."""
    from kvgate.core import registry

    rows = []
    for engine in registry.discover("engine_rule"):
        data = _engine_toml(engine)
        read = data["read"]
        for rule, (first, lines, source) in _rules_of(engine, data).items():
            shown = "<br>".join(f"`{line}`" for line in lines.splitlines())
            rows.append((rule, f"{read['first']} to {read['newest']}", f"{first}: {shown}", plain(source)))
    return table(("rule", "versions read", "what it will log", "source"), rows)


def _rules_of(engine: str, data: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Rule id -> the newest version that it holds for, of those where something changes; its lines; its source."""
    from kvgate.core.recipe import parse
    from kvgate.plan.answer import answer
    from kvgate.plan.ask import device_memory
    from kvgate.plan.question import Question

    config, geometry = _catalogue(LINE_MODEL)
    memory = device_memory(LINE_DEVICE, None)
    found: dict[str, tuple[str, str, str]] = {}
    edges = [data["read"]["first"], *(row["since"] for row in data["fact"] if "since" in row), data["read"]["newest"]]
    for version in edges:
        serving = Serving(engine, LINE_TOKENS, version, options={"device": LINE_DEVICE})
        asked = Question(geometry, (parse("native"),), serving, weights_bytes=config.weights_bytes, device=memory)
        reserved = answer(asked).recipes[0].reserved
        if reserved is not None:
            found[reserved.rule] = (version, reserved.prints, str(reserved.source))
    return found


def facts() -> str:
    """Every number of the engines' rules that hangs on a version, with its source."""
    from kvgate.core import registry

    rows = []
    for engine in registry.discover("engine_rule"):
        for row in _engine_toml(engine)["fact"]:
            source = row["source"]
            where = plain(f"{source['kind']}: {source['ref']} ({source['version']})")
            note = f" - {plain(row['note'])}" if row.get("note") else ""
            rows.append((engine, f"`{row['name']}`", _value(row["value"]), _versions(row), where + note))
    return table(("engine", "fact", "value", "versions", "source"), rows)


def _engine_toml(engine: str) -> Mapping[str, Any]:
    return tomllib.loads((files("kvgate.plan.engine_rules") / f"{engine}.toml").read_text(encoding="utf-8"))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _versions(row: Mapping[str, Any]) -> str:
    since, until = row.get("since", ""), row.get("until", "")
    if since:
        return f"{since} to before {until}" if until else f"{since} and later"
    return f"before {until}" if until else "all that were read"


def log_lines() -> str:
    """What the log reader knows of each engine."""
    from kvgate.enginefacts.log_patterns import engines, load

    rows = []
    for engine in engines():
        known = load(engine)
        rows.append(
            (
                known.title,
                "all builds" if known.known_since == "0" else f"{known.known_since} to before {known.known_until}",
                str(len(known.line)),
                str(len(known.dtypes)),
                plain(known.how_to_log),
            )
        )
    return table(("engine", "versions", "lines known", "KV types known", "the log to give"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "families": families,
    "examples": examples,
    "devices": device_table,
    "rules": rules,
    "facts": facts,
    "log_lines": log_lines,
}
