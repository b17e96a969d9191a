"""Runs every verb of the command line under one odd condition after another; one JSON line each. Started by a test.

Each run is a fork of this process, so that nothing is imported twice; what a condition closes or sets ends with it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from kvgate.cli import main
from kvgate.core import registry

#: What a verb needs to get beyond its usage line. A new verb is run bare and with --help until it is named here.
ARGUMENTS: dict[str, list[list[str]]] = {
    "check": [["no-such-model", "--kv", "q8_0"]],
    "compare": [["last", "zzz"]],
    "formats compare": [["no-such-file", "--codec", "q8_0"]],
    "formats show": [["q8_0"], ["nonsense"]],
    "launch": [["--model", "smollm2", "--kv", "q8_0", "--engine", "llama_cpp"]],
    "lint": [["vllm serve m --kv-cache-dtype fp8"], ["--", "vllm", "serve", "m", "--kv-cache-dtype", "fp9"]],
    "models get": [["nonsense"]],
    "plan": [["smollm2", "--kv", "q8_0"], ["no-such-model"]],
    "policy check": [["strict"], ["nonsense"]],
    "policy show": [["strict"]],
    "probe": [["http://127.0.0.1:9"]],
}


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups too."""
    yield words
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from verbs(child, (*words, name))


def command_lines() -> Iterator[list[str]]:
    for words in verbs(typer.main.get_command(main.build_app())):
        yield [*words, "--help"]
        for more in [[], *ARGUMENTS.get(" ".join(words), [])]:
            yield [*words, *more]


def gone_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path(folder).rmdir()


def environment(**values: str | None) -> Callable[[], None]:
    def change() -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return change


def closed(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for n in numbers:
            os.close(n)
            setattr(sys, ("stdin", "stdout", "stderr")[n], None)  # as an interpreter finds it at its start

    return close


def full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


CONDITIONS: dict[str, Callable[[], None]] = {
    "plain": lambda: None,
    "20 columns": environment(COLUMNS="20"),
    "40 columns": environment(COLUMNS="40"),
    "dumb": environment(TERM="dumb", NO_COLOR="1"),
    "no home": environment(HOME=None),
    "folders of nobody": environment(XDG_DATA_HOME="/proc/1/x", XDG_CONFIG_HOME="/proc/1/x", HOME="/proc/1/x"),
    "folder gone": gone_folder,
    "stdin closed": closed(0),
    "stdout closed": closed(1),
    "stderr closed": closed(2),
    "all closed": closed(0, 1, 2),
    "full": full,
}


def one(argv: list[str], condition: Callable[[], None]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            condition()
            sys.argv = ["kvgate", *argv]
            try:
                main.run()
            except SystemExit as e:
                os._exit(e.code if isinstance(e.code, int) else 99)
            except BaseException as e:
                print("Traceback", repr(e), file=sys.stderr, flush=True)
            os._exit(98)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return {"argv": argv, "code": status, "out": texts[0], "err": texts[1]}


def load_what_verbs_load() -> None:
    """Once here instead of once in every fork."""
    for name in ("campaign.check", "campaign.rejudge", "cli._show", "cli._plan_show", "launch.ask", "lint", "formats"):
        importlib.import_module(f"kvgate.{name}")
    for kind in ("engine", "suite", "rule"):
        registry.discover(kind)


if __name__ == "__main__":
    load_what_verbs_load()
    chosen = sys.argv[1:] or list(CONDITIONS)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for line in command_lines():
        # A help page depends on the terminal's width alone.
        for name in [n for n in chosen if "--help" not in line or n in ("plain", "20 columns")]:
            print(json.dumps({"condition": name, **one(line, CONDITIONS[name])}), flush=True)
