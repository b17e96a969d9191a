"""Everything that is decided before an engine starts. Wrong input ends here, with nothing started."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvgate.campaign.arms import Arm, build_arms, choose_floors
from kvgate.campaign.attached import ENGINE, attach, is_url
from kvgate.campaign.overrides import read_overrides
from kvgate.campaign.spec import DEFAULT_CONTEXT_TOKENS, SMOKE_CONTEXT_TOKENS, CheckSpec, usable_threads
from kvgate.core import registry
from kvgate.core.engine import Driver, Settings
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.observation import content_digest
from kvgate.core.suite import Suite
from kvgate.gate.policy import Policy, load_policy
from kvgate.models.model_folder import resolve_folder
from kvgate.models.resolve import resolve_model

PRESETS = ("smoke", "default")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A check that may start."""

    spec: CheckSpec
    policy: Policy
    preset: str
    driver: Driver
    arms: tuple[Arm, ...]
    suites: Mapping[str, Suite]
    params: Mapping[str, Any]
    files: Mapping[str, Path]
    context_tokens: int
    key: str
    model: ModelFiles
    untested: Mapping[str, str] = field(default_factory=dict)


def find_driver(name: str) -> Driver:
    """A driver by id or alias."""
    drivers = registry.discover("engine")
    for driver in drivers.values():
        if name == driver.name or name in driver.aliases:
            return driver  # type: ignore[no-any-return]
    raise UserError(f"unknown engine {name!r}", allowed=drivers)


def prepare(spec: CheckSpec) -> Prepared:
    """Resolve and check all that the person gave.

    Raises:
        UserError: anything that cannot be done; nothing has been started.
    """
    policy = load_policy(spec.policy)
    preset = spec.preset or (policy.name if policy.name in PRESETS else "default")
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}", allowed=PRESETS)
    if is_url(spec.model) or spec.against is not None:
        pair = attach(spec)
        ready = _prepared(spec, policy, preset, find_driver(ENGINE), pair.arms, pair.context_tokens, pair.model)
        return replace(ready, untested=pair.untested)
    if spec.log or spec.base_log or spec.assume_engaged or spec.same_model:
        raise UserError("--log, --base-log, --assume-engaged and --same-model are for servers that already run")
    driver = find_driver(spec.engine)
    # An engine that loads Hugging Face folders says so; the others take GGUF files and catalogue names.
    model = (resolve_folder if getattr(driver, "model_kind", "gguf") == "folder" else resolve_model)(spec.model)
    cpus = usable_threads()
    if spec.threads is not None and spec.threads > cpus:
        # Threads wait for each other at every step; more of them than CPUs stand still by turns, for hours.
        raise UserError(f"{spec.threads} threads on {cpus} usable CPUs", fix=f"use --threads {cpus} or fewer")
    wanted = SMOKE_CONTEXT_TOKENS if preset == "smoke" else DEFAULT_CONTEXT_TOKENS
    context = spec.context_tokens or min(wanted, model.geometry.context_tokens or wanted)
    if spec.engine_arguments and not getattr(driver, "takes_arguments", False):
        raise UserError(f"{driver.name} is not started by a command line: --engine-arg means nothing to it")
    settings = Settings(
        context_tokens=context, threads=spec.threads or cpus, env=spec.env, arguments=spec.engine_arguments
    )
    floors = choose_floors(policy.floor.arms)
    arms = build_arms(
        driver,
        model,
        spec.base,
        spec.kv,
        settings,
        floors=floors,
        python=spec.engine_python,
        overrides=read_overrides(spec.arms),
    )
    return _prepared(spec, policy, preset, driver, arms, context, model)


def _prepared(
    spec: CheckSpec,
    policy: Policy,
    preset: str,
    driver: Driver,
    arms: tuple[Arm, ...],
    context: int,
    model: ModelFiles,
) -> Prepared:
    """The suites, the person's files and the key, which are the same for every kind of arm."""
    suites, params = choose_suites(preset, spec.suites)
    files = {name: path for name, path in (("corpus", spec.corpus), ("golden", spec.golden)) if path is not None}
    for name, path in files.items():
        if not _exists(path):
            raise UserError(f"--{name} {str(path)[:200]} does not exist", fix="give an existing path")
    for suite in suites.values():
        check_files = getattr(suite, "check_files", None)
        if check_files is not None:
            check_files(files)
    key = run_key(spec, preset, context, arms, suites, params, files, model.digest)
    return Prepared(spec, policy, preset, driver, arms, suites, params, files, context, key, model)


def choose_suites(preset: str, names: Sequence[str]) -> tuple[dict[str, Suite], dict[str, Any]]:
    """Suites that have the preset, and their parameters; `names` narrows the choice."""
    found = registry.discover("suite")
    for name in names:
        if name not in found:
            raise UserError(f"unknown suite {name!r}", allowed=found)
    suites = {n: s for n, s in found.items() if preset in s.presets() and (not names or n in names)}
    return suites, {n: s.presets()[preset] for n, s in suites.items()}


def run_key(
    spec: CheckSpec,
    preset: str,
    context: int,
    arms: Sequence[Arm],
    suites: Mapping[str, Suite],
    params: Mapping[str, Any],
    files: Mapping[str, Path],
    model_digest: str,
) -> str:
    """sha256 of what decides the observations: not the policy's rules, which only judge them."""
    return content_digest(
        {
            "model": model_digest,
            "engine": [arms[0].launch.engine, str(spec.engine_python or "")],
            "overrides": sorted(spec.arms),
            "arms": [
                [a.name, a.role.value, list(a.perturb), list(a.launch.argv[1:]), dict(a.launch.env)] for a in arms
            ],
            "options": [dict(a.launch.engine_options) for a in arms],
            "preset": [[n, s.version, params[n].model_dump(mode="json")] for n, s in suites.items()],
            "preset_name": preset,
            "files": {n: _tree_digest(n, p) for n, p in files.items()},
            "context": context,
            "seed": spec.seed,
        }
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes
        return False


def _tree_digest(name: str, path: Path) -> str:
    """Digest of a file, or of every file below a folder with its relative name.

    Raises:
        UserError: something in it cannot be read; `name` is the option that gave it.
    """
    h = hashlib.sha256()
    try:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for p in files:
            with p.open("rb") as f:
                inner = hashlib.file_digest(f, "sha256").digest()
            h.update(os.fsencode(p.relative_to(path.parent)) + b"\0" + inner)
    except OSError as e:
        where = e.filename or path
        raise UserError(f"--{name}: {where} cannot be read: {e.strerror}", fix="make it readable, or move it") from e
    return h.hexdigest()
