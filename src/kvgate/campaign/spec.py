"""What a person asked of `kvgate check`, as a value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

#: Context for one sequence when the person names none. Smoke's longest case is a needle of 512 tokens.
SMOKE_CONTEXT_TOKENS = 1024
DEFAULT_CONTEXT_TOKENS = 4096
#: What every engine takes as a sampler's seed: llama.cpp's is 32 bits wide, and its largest value means "at random".
MAX_SEED = 2**31 - 1


def usable_threads() -> int:
    """CPUs this process may run on; a container's limit counts, not the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CheckSpec(BaseModel):
    """One `kvgate check`.

    Attributes:
        model: path, catalogue name or hub id. kv: candidate recipes as the person spelled them.
        base: recipe of the baseline. policy: built-in name or file. preset: None follows the policy's name.
        context_tokens: None takes the preset's. threads: None takes what this process may use.
        corpus, golden: the person's own inputs. engine_python: interpreter that owns the engine.
        env: variables set for every engine child; recorded, and part of what makes arms comparable.
        engine_arguments: words for the engine's own command line, "--name=value" each, equal on all arms.
        out: folder for the report; None puts it beside the store. fresh: do not resume an unfinished run.
        arms: settings of single arms, as `--arm` takes them.
        against: address of a baseline that already runs; `model` is then the candidate's address.
        log, base_log: load logs of such servers. assume_engaged: take the person's word for what they store.
        same_model: two names that the servers give are one model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    kv: tuple[str, ...]
    base: str = "native"
    engine: str = "llama_cpp"
    policy: str = "default"
    preset: str | None = None
    suites: tuple[str, ...] = ()
    context_tokens: int | None = None
    threads: int | None = None
    seed: int = Field(0, ge=0, le=MAX_SEED)
    corpus: Path | None = None
    golden: Path | None = None
    engine_python: Path | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    engine_arguments: tuple[str, ...] = ()
    store: str | None = None
    out: Path | None = None
    fresh: bool = False
    arms: tuple[str, ...] = ()
    against: str | None = None
    log: Path | None = None
    base_log: Path | None = None
    assume_engaged: bool = False
    same_model: bool = False
