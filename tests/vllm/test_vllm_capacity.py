"""vLLM really started: its capacity line is what the planner says, to the token, and its type is observed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.models.read_config import read_config
from kvgate.plan.answer import engine_rule
from kvgate.plan.log_compare import GapRow, compare, settings_of
from kvgate.plan.log_values import StartLog
from kvgate.plan.logs import read_log
from kvgate.plan.parallel import split
from kvgate.plan.price import price
from kvgate.plan.terms import Rank, Reserved

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SPACE_GIB = 1


def predicted(folder: Path, recipe: str, log: StartLog, **changed: str) -> Reserved:
    """What the planner says of this start: the folder's own config, the settings of the log, our rule."""
    geometry = geometry_from_config(read_config(folder / "config.json"), "smollm2", Source("file", "config.json"))
    options = changed or {"VLLM_CPU_KVCACHE_SPACE": str(SPACE_GIB)}
    serving = settings_of(log).serving(options={"device": "cpu"} | options)
    rule = engine_rule("vllm")
    assert rule is not None
    ranks = tuple(
        Rank(share.name, price(share.geometry, parse(recipe), engine="vllm"), None)
        for share in split(geometry, engine="vllm")
    )
    budgets = tuple(rule.budget(rank, serving, device_bytes=0, overhead_bytes=None) for rank in ranks)
    return rule.reserve(geometry, parse(recipe), ranks, serving, budgets)


def started(got: Any) -> StartLog:
    assert got.ready, got.log[-4000:]
    return read_log(got.log)


def by_name(rows: tuple[GapRow, ...]) -> dict[str, GapRow]:
    return {row.what: row for row in rows}


@pytest.mark.parametrize(
    ("word", "recipe", "tokens"),
    [("auto", "bf16", 46_592), ("fp8_e4m3", "fp8_e4m3", 93_184), ("fp8_e5m2", "fp8_e5m2", 93_184)],
)
def test_capacity_is_predicted_to_the_token(
    word: str,
    recipe: str,
    tokens: int,
    probe: ModuleType,
    starts: Callable[..., Any],
    vllm_python: str,
    smollm2_folder: Path,
) -> None:
    """One GiB holds 46,592 tokens in bfloat16 and 93,184 in both FP8 types: printed, and predicted."""
    got = starts(probe, vllm_python, smollm2_folder, kv_cache_dtype=word, space_gib=SPACE_GIB)

    log = started(got)
    plan = predicted(smollm2_folder, recipe, log)
    rows = by_name(compare(log, plan, recipe=parse(recipe)))

    assert (log.engine, log.version, log.word("device")) == ("vllm", "0.32.0", "CPU")
    assert log.tokens == plan.tokens == tokens
    assert {rows[name].verdict for name in ("K type", "V type", "tokens", "sequences")} == {"exact"}
    assert rows["KV bytes"].verdict == "rounding"
    assert plan.prints in got.log
    assert log.stored.how == ("auto" if word == "auto" else "printed")
    assert not log.contradictions


def test_other_lengths_and_blocks_are_predicted(
    probe: ModuleType, starts: Callable[..., Any], vllm_python: str, smollm2_folder: Path
) -> None:
    """1,000 tokens a sequence are no multiple of a block of 64: printed tokens are concurrency times length."""
    got = starts(
        probe,
        vllm_python,
        smollm2_folder,
        kv_cache_dtype="fp8_e4m3",
        space_gib=SPACE_GIB,
        max_model_len=1000,
        further=("--block-size", "64"),
    )

    log = started(got)
    plan = predicted(smollm2_folder, "fp8_e4m3", log)

    assert (log.whole("context_tokens"), log.whole("block_tokens")) == (1000, 64)
    assert log.tokens == plan.tokens
    assert plan.prints in got.log


def test_auto_follows_the_checkpoint_in_silence(
    probe: ModuleType, starts: Callable[..., Any], vllm_python: str, kv_scheme_folder: Path
) -> None:
    """A checkpoint with a KV scheme starts in FP8 under `auto`; no line says so, but the room tells, and so do we."""
    got = starts(probe, vllm_python, kv_scheme_folder, kv_cache_dtype="auto", space_gib=SPACE_GIB)

    log = started(got)
    as_asked = by_name(compare(log, predicted(kv_scheme_folder, "bf16", log), recipe=parse("bf16")))
    as_it_is = by_name(compare(log, predicted(kv_scheme_folder, "fp8_e4m3", log)))

    assert "fp8" not in got.log.lower()
    assert as_it_is["tokens"].verdict == "exact"
    assert as_asked["tokens"].verdict == "differs"
    assert "2 times more" in as_asked["tokens"].why
    assert any("unless the checkpoint carries a KV scheme" in note for note in log.notes)


def test_a_cache_that_is_too_small_is_read_too(
    probe: ModuleType, starts: Callable[..., Any], vllm_python: str, smollm2_folder: Path
) -> None:
    """vLLM ends where one sequence does not fit; its log says so, and what would fit, as predicted."""
    bytes_ = 64 * 2**20
    got = starts(
        probe,
        vllm_python,
        smollm2_folder,
        kv_cache_dtype="auto",
        space_gib=None,
        further=("--kv-cache-memory-bytes", str(bytes_)),
    )
    assert not got.ready

    log = read_log(got.log)

    plan = predicted(smollm2_folder, "bf16", log, **{"kv-cache-memory-bytes": str(bytes_)})

    assert "no-room" in {c.id for c in log.contradictions}
    assert plan.tokens is None
    assert plan.prints in got.log
    assert f"estimated maximum model length is {log.whole('fits_tokens')}" in plan.prints


def test_a_word_that_vllm_does_not_know(probe: ModuleType, vllm_python: str, smollm2_folder: Path) -> None:
    """A type that does not exist ends the start at once; nothing is left running, and its log is refused."""
    from kvgate.core.errors import UserError

    got = probe.start(vllm_python, smollm2_folder, kv_cache_dtype="fp7", timeout_s=120)

    assert not got.ready
    assert got.status not in (None, 0)
    with pytest.raises(UserError):
        read_log(got.log)
