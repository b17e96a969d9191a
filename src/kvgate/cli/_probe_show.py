"""A probe on the terminal: label and value, in 40 columns and more. Text of servers is never markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvgate.cli._terminal import out_console
from kvgate.core.engine import Available
from kvgate.core.text import one_line
from kvgate.core.units import bytes_text

if TYPE_CHECKING:
    from rich.console import Console

    from kvgate.campaign.probing import Probe

_LABEL_CHARS = 12
_UNKNOWN = "unknown"
_FLOATS = ("f32", "f16", "bf16")
#: How a KV type is known, in words.
_HOW = {
    "printed": "the log says so",
    "configured": "by its configuration",
    "requested": "asked for; no line says what is stored",
    "metrics": "by its metrics",
}


def show_probe(found: Probe) -> None:
    """Print it: contradictions first, then what is known, what is not, and the lanes."""
    from kvgate.campaign.probing import observed, requested

    console = out_console()
    asked, seen = requested(found), observed(found)
    if found.contradictions:
        _section(console, "Contradictions", [(n.id, n.says) for n in found.contradictions], style="bold red")
    _section(console, "Server", _server(found, seen))
    _section(console, "KV cache", _cache(asked, seen))
    _section(console, "Attention", _attention(asked, seen))
    _section(console, "Settings", _settings(seen))
    if found.warnings:
        _section(console, "Warnings", [(n.id, n.says) for n in found.warnings], style="yellow")
    if found.notes:
        _section(console, "Notes", [("", note) for note in found.notes])
    _section(console, "Unknown", _unknown(found))
    if found.lanes is not None:
        _section(console, "Lanes", [(lane.value, _lane(x)) for lane, x in found.lanes.items()])


def _server(found: Probe, seen: dict[str, Any]) -> list[tuple[str, str]]:
    engine = seen["engine"] or _UNKNOWN
    return [
        ("engine", f"{engine} ({seen['engine_why']})"),
        ("version", _or(seen["version"] or seen["build"])),
        ("model", ", ".join(seen["models"][:8]) or _UNKNOWN),
        ("path", _or(seen["model_path"])),
        ("log", _log(found)),
    ]


def _log(found: Probe) -> str:
    if found.log is None:
        return "none given"
    return found.log_path if found.log_used else f"{found.log_path}: not used"


def _cache(asked: dict[str, Any], seen: dict[str, Any]) -> list[tuple[str, str]]:
    k, v = seen["k"], seen["v"]
    stored = _UNKNOWN if k is None or v is None else k if k == v else f"K {k}, V {v}"
    rows = [
        ("asked", _or(asked["kv_dtype"])),
        ("stored", stored + (f" ({_HOW.get(seen['kv_how'], seen['kv_how'])})" if seen["kv_how"] else "")),
    ]
    if seen["kv_configured"] and seen["kv_configured"] != asked["kv_dtype"]:
        rows.append(("configured", seen["kv_configured"]))
    if asked["kept_layers"]:
        rows.append(("native", f"layers {asked['kept_layers']}"))
    rows.append(("scales", _scales(seen)))
    if asked["scales_file"]:
        rows.append(("scales file", asked["scales_file"]))
    if seen["k_rotation"] is not None:
        rows.append(("rotation", f"K {seen['k_rotation']}, V {_or(seen['v_rotation'])}"))
    rows.append(("room", f"{seen['tokens']:,} tokens" if seen["tokens"] else _UNKNOWN))
    if seen["window_tokens"]:
        rows.append(("windows", f"{seen['window_tokens']:,} tokens"))
    if seen["kv_bytes"]:
        rows.append(("memory", bytes_text(seen["kv_bytes"])))
    if seen["block_tokens"]:
        rows.append(
            ("block", f"{seen['block_tokens']} tokens" + (f", {seen['blocks']:,} blocks" if seen["blocks"] else ""))
        )
    return rows


def _attention(asked: dict[str, Any], seen: dict[str, Any]) -> list[tuple[str, str]]:
    backend = _or(seen["backend"])
    if asked["backend"] and asked["backend"] != seen["backend"]:
        backend += f" (asked for {asked['backend']})"
    return [
        ("backend", backend),
        ("kernel", _or(seen["kernel"])),
        *([("flash attn", seen["flash_attention"])] if seen["flash_attention"] else []),
        ("queries", _or(seen["query_dtype"])),
        ("probability", _or(seen["probability_dtype"])),
        ("accumulates", _or(seen["accumulation"])),
    ]


def _settings(seen: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("context", f"{seen['context_tokens']:,} tokens" if seen["context_tokens"] else _UNKNOWN),
        ("slots", _or(seen["slots"])),
        ("prefix cache", _yes(seen["prefix_cache"])),
        ("chunked", _yes(seen["chunked_prefill"])),
        ("speculation", _or(seen["speculation"])),
        ("parallel", f"tensor {_or(seen['tensor_parallel'])}, pipeline {_or(seen['pipeline_parallel'])}"),
    ]


def _unknown(found: Probe) -> list[tuple[str, str]]:
    """Fields that are unknown for the same reason stand together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for u in found.unknowns:
        alike.setdefault((u.why, u.tells), []).append(u.field)
    return [(", ".join(fields), f"{why}. Would tell: {tells}") for (why, tells), fields in alike.items()]


def _scales(seen: dict[str, Any]) -> str:
    k, v = seen["k"], seen["v"]
    if k in _FLOATS and v in _FLOATS:
        return "none: this type has none"
    if k is not None and v is not None and not any(x.startswith("fp8") for x in (k, v)):
        return "in its blocks"
    return _or(seen["k_scale"]) if seen["k_scale"] == seen["v_scale"] else f"K {seen['k_scale']}, V {seen['v_scale']}"


def _lane(lane: object) -> str:
    if isinstance(lane, Available):
        limits = ", ".join(f"{name} {n}" for name, n in lane.limits.items())
        return "yes" + (f" ({limits})" if limits else "")
    return f"no: {getattr(lane, 'reason', '')}"


def _or(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _yes(value: bool | None) -> str:
    return _UNKNOWN if value is None else "yes" if value else "no"


def _section(console: Console, title: str, rows: Sequence[tuple[str, str]], *, style: str = "bold") -> None:
    if not rows:
        return
    console.print(Text(title, style=style))
    if not any(label for label, _ in rows):
        console.print(Padding(Text("\n").join(_value(value) for _, value in rows), (0, 0, 0, 2)))
        return
    table = Table.grid(padding=(0, 1))
    wide = max(len(label) for label, _ in rows) <= max(_LABEL_CHARS, console.width // 4)
    if wide:
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(Text(label), _value(value))
    else:
        # Names that would leave no room for what they name stand above it.
        table.add_column(overflow="fold")
        for label, value in rows:
            if label:
                table.add_row(Text(label))
            table.add_row(Padding(_value(value), (0, 0, 0, 2)))
    console.print(Padding(table, (0, 0, 0, 2)))


def _value(text: str) -> Text:
    return Text(one_line(text, 1000), style="dim" if text == _UNKNOWN else "")
