"""Options of the cache written shortened: argparse takes them while nothing else begins so."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.read.argv import flag_row, is_whole_name
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_ENGINES = frozenset({"vllm", "sglang"})
_KEYS = frozenset({"kv_dtype", "scales_json", "skip_layers", "backend", "prefill_backend", "decode_backend"})


def _shortened(s: Subject) -> Iterator[Hit]:
    for setting in s.command.settings:
        name = setting.written.partition(".")[0]
        if setting.origin != "argv" or setting.key not in _KEYS or is_whole_name(s.engine, name):
            continue
        row, odd, _ = flag_row(s.engine, name)
        if row is not None and not odd:
            yield Hit(f"{name} is taken for {row.name}", setting.place, None, "", f"write {row.name}")


RULE = Rule(
    "flag-shortened",
    _ENGINES,
    "warning",
    "an option of the KV cache is written shortened",
    "argparse takes the beginning of a name only while no second option begins so: another version may stop",
    "write the option's whole name",
    Source("spec", "argparse allow_abbrev, on in vllm utils/argparse_utils.py 0.32.0 and sglang server_args.py 0.5.23"),
    _shortened,
    timeless=True,
)
