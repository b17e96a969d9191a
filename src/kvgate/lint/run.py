"""Applies every registered rule to every command that was read, and gives the findings in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import EngineFacts
from kvgate.enginefacts.versions import Holds, Key, holds, range_words, version_of
from kvgate.hardware.device import device as device_of
from kvgate.lint.command import Command, Place, Setting
from kvgate.lint.judged import Judged
from kvgate.lint.log_view import LogView, read_log
from kvgate.lint.model_view import ModelView, model_view
from kvgate.lint.read.argv import facts_of
from kvgate.lint.read.bench_lists import one_by_one
from kvgate.lint.read.programs import engine_word
from kvgate.lint.read.source import Given, read, with_config_file
from kvgate.lint.rule import SEVERITIES, Finding, Hit, Rule, Severity
from kvgate.lint.subject import Known, Subject

SCHEMA = "kvgate.lint/1"


@dataclass(frozen=True, slots=True)
class Options:
    """What the person said beside the text; empty is not said. judged: verdicts of a store, oldest first."""

    engine: str = ""
    engine_version: str = ""
    device: str = ""
    model: str = ""
    log: Path | None = None
    judged: tuple[Judged, ...] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All findings. `unchecked`: what was not known, so that rules which ask for it found nothing."""

    engines: tuple[str, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return int(any(f.severity == "error" for f in self.findings))


def lint(text: str, options: Options | None = None) -> Report:
    """Lint a command line, or the file or folder that `text` names.

    Raises:
        UserError: it cannot be read, or names no engine, device or version.
    """
    said = options or Options()
    engine = engine_word(said.engine) if said.engine else ""
    given = read(text, engine)
    commands = tuple(each for c in _commands(given, engine) for each in one_by_one(with_config_file(c)))
    subjects = _subjects(commands, said, str(given.folder or ""))
    findings = [f for s in subjects for f in check(s)]
    # One text may start an engine twice the same way: the same finding at the same place is one.
    findings = list(dict.fromkeys(findings))
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.where.file, f.where.line, f.id))
    return Report(
        tuple(dict.fromkeys(s.engine for s in subjects)),
        tuple(findings),
        tuple(dict.fromkeys(u for s in subjects for u in _unchecked(s))),
    )


def rules() -> tuple[Rule, ...]:
    """Every registered rule, in name order."""
    return tuple(registry.discover("lint_rule").values())


def check(subject: Subject) -> Iterator[Finding]:
    """Findings of every rule for one command."""
    for rule in rules():
        if rule.engines and subject.engine not in rule.engines:
            continue
        if subject.holds(rule.since, rule.until) is Holds.NO:
            continue
        for hit in rule.check(subject):
            yield _finding(rule, hit, subject)


def _finding(rule: Rule, hit: Hit, subject: Subject) -> Finding:
    severity: Severity = hit.severity or rule.severity
    why = hit.why or rule.why
    if subject.known == "unknown" and not rule.timeless:
        severity = "warning" if severity == "error" else severity
        why = f"{why}; read for {_read_range(subject.facts)}, not for {subject.version_text}"
    elif rule.newest_only and subject.version is not None and not subject.is_newest:
        severity = "warning" if severity == "error" else severity
        why = f"{why}; read in {subject.facts.newest if subject.facts else 'another version'} only"
    return Finding(
        rule.name,
        severity,
        hit.message,
        why,
        hit.fix or rule.fix,
        hit.where or subject.command.place,
        rule.versions,
        str(rule.source),
        subject.engine,
    )


def _read_range(facts: EngineFacts | None) -> str:
    return range_words(facts.known_since, facts.known_until) if facts is not None else "other versions"


def _commands(given: Given, engine: str) -> tuple[Command, ...]:
    """Commands; a file of scales or a model folder alone is what a command would name."""
    if given.scales_file is not None:
        place = Place(str(given.scales_file))
        settings = (
            Setting("scales_json", "--quantization-param-path", str(given.scales_file), place, "FILE", "file"),
            Setting("kv_dtype", "--kv-cache-dtype", "fp8_e4m3", place, "FILE", "file"),
        )
        return (Command(engine or "sglang", "", settings, {}, place),)
    if given.folder is not None:
        place = Place(str(given.folder))
        return (Command(engine or "vllm", "", (Setting("model", "MODEL", str(given.folder), place),), {}, place),)
    return given.commands


def _subjects(commands: tuple[Command, ...], said: Options, folder: str) -> list[Subject]:
    device = device_of(said.device) if said.device else None
    named = tuple(c.get("model") or c.get("hf_repo") or "" for c in commands)
    found = []
    for command, own in zip(commands, named, strict=True):
        engine = command.engine
        facts = facts_of(engine)
        text, version = _version(said.engine_version, command)
        model: ModelView | None = None
        asked = said.model or own or folder
        if asked:
            model = model_view(asked)
        log: LogView | None = read_log(said.log, engine) if said.log is not None else None
        others = tuple(dict.fromkeys(n for n in named if n and n != own))
        known = _known(version, facts, engine)
        found.append(Subject(command, facts, text, version, known, device, model, log, others, said.judged))
    return found


def _version(said: str, command: Command) -> tuple[str, Key | None]:
    if said:
        return said, version_of(said, command.engine)
    try:
        return command.version, version_of(command.version, command.engine) if command.version else None
    except UserError:
        return "", None


def _known(version: Key | None, facts: EngineFacts | None, engine: str) -> Known:
    if version is None or facts is None:
        return "unstated"
    inside = holds(version, facts.known_since, facts.known_until, engine) is Holds.YES
    return "known" if inside else "unknown"


def _unchecked(subject: Subject) -> Iterator[str]:
    """What a person could add for more rules to look."""
    if subject.facts is None:
        return
    if subject.known == "unstated":
        yield f"no --engine-version: applied as for {subject.engine} {subject.facts.newest}, the newest that was read"
    elif subject.known == "unknown":
        yield (
            f"{subject.engine} {subject.version_text} has not been read ({_read_range(subject.facts)} has): "
            "what is an error there is a warning here"
        )
    if subject.device is None:
        yield "no --device: rules about hardware found nothing"
    if subject.model is None:
        yield "no model is named: rules about layers and scales found nothing"
    elif subject.model.why:
        yield f"model: {subject.model.why}"
    elif subject.model.config and not subject.model.is_local and (subject.is_fp8 or subject.k_word == "nvfp4"):
        yield (
            f"scales: the shipped catalogue has {subject.model.name}'s sizes alone; give --model FOLDER with its "
            "config.json and *.safetensors"
        )
    yield from subject.command.notes
