"""Inside real vLLM: scales in force, log-probabilities beside a prefix cache, and an engine core that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from kvgate.core.deployment import Deployment, Engagement, ScaleSeen
from kvgate.core.engine import Generate, Lane, Launch, Request, Settings, TopKRow
from kvgate.core.errors import EngineDied, UserError
from kvgate.core.recipe import parse
from kvgate.engines.vllm import DRIVER
from kvgate.models.model_folder import model_folder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

#: More than two blocks of vLLM's CPU attention (128 tokens each on this build), so that a prefix can be shared.
PROMPT = tuple(range(1000, 1300))


def launch_of(folder: Path, python: str, recipe: str) -> Launch:
    settings = Settings(context_tokens=1024, threads=2)
    return DRIVER.resolve(Request(model_folder(folder), parse(recipe), settings, recipe, Path(python)))


def with_arguments(launch: Launch, old: str, new: str) -> Launch:
    """The same launch with another word on vLLM's command line."""
    words = [new if word == old else word for word in launch.engine_options["arguments"]]
    assert old not in words
    return replace(launch, engine_options={**launch.engine_options, "arguments": words})


class Inside(NamedTuple):
    """What one server with the checkpoint's scales and a prefix cache said, until its engine core was killed."""

    launch: Launch
    deployment: Deployment
    rows: tuple[Sequence[TopKRow], Sequence[TopKRow]]
    hits: float
    died: BaseException | None


@pytest.fixture(scope="module")
def inside(kv_scheme_folder: Path, vllm_python: str) -> Inside:
    launch = launch_of(kv_scheme_folder, vllm_python, "fp8_e4m3@checkpoint")
    launch = with_arguments(launch, "--no-enable-prefix-caching", "--enable-prefix-caching")

    async def run() -> Inside:
        async with DRIVER.open(launch) as session:
            found = await session.deployment()
            first = await session.score(PROMPT, start=1, lane=Lane.PREFILL_TOPK, k=8)
            await session.generate(Generate(prompt=PROMPT, max_tokens=1))
            await session.generate(Generate(prompt=PROMPT, max_tokens=1))
            second = await session.score(PROMPT, start=1, lane=Lane.PREFILL_TOPK, k=8)
            hits = counter(await session.metrics(), "vllm:prefix_cache_hits_total")
            died: BaseException | None = None
            os.kill(engine_core(found.note.pid), signal.SIGKILL)
            try:
                await session.generate(Generate(prompt=PROMPT, max_tokens=8, timeout_s=60))
            except Exception as e:
                died = e
            return Inside(launch, found, (first, second), hits, died)

    return asyncio.run(run())


def counter(metrics: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{"))


def engine_core(group: int | None) -> int:
    """The process of the group that computes."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
            if int(rest.split()[2]) == group and "EngineCor" in name:
                return int(stat.parent.name)
        except (OSError, ValueError):
            continue
    raise AssertionError("no engine core")


def test_the_checkpoints_scales_are_in_force(inside: Inside) -> None:
    """Every layer's scale is the checkpoint's own tensor; the recipe with scales is confirmed."""
    k, v = inside.deployment.consequence.k_scale, inside.deployment.consequence.v_scale
    verdict = DRIVER.engaged(inside.launch.expected, inside.deployment)

    assert verdict.level is Engagement.CONFIRMED, verdict.reason
    assert isinstance(k, ScaleSeen)
    assert isinstance(v, ScaleSeen)
    assert (k.origin, k.layers, v.origin) == ("checkpoint", 30, "checkpoint")
    # As bfloat16 holds 0.02 and 0.049: eight bits of mantissa.
    assert k.lowest == pytest.approx(0.02, rel=2**-8)
    assert k.highest == pytest.approx(0.049, rel=2**-8)
    assert v.lowest == v.highest == pytest.approx(0.01, rel=2**-8)


def test_layers_say_backend_and_queries(inside: Inside) -> None:
    """One backend, FP8 in memory, queries in the model's type; settings of batch and cache are those of the log."""
    found = inside.deployment

    assert (found.loud.backend, found.loud.query_dtype) == ("CPU_ATTN", "bf16")
    assert any("inside: 30 layers, kv_cache_dtype fp8_e4m3" in line for line in found.evidence)
    assert (found.identity.prefix_cache, found.identity.chunked_prefill) == (True, True)
    assert found.identity.speculation == "none"


def test_a_prefix_cache_leaves_log_probabilities_whole(inside: Inside) -> None:
    """A prompt whose blocks are cached is scored at every position again: vLLM computes it anew for prompt_logprobs."""
    first, second = inside.rows

    assert inside.hits > 0
    assert len(first) == len(second) == len(PROMPT) - 1
    assert [row.ids[0] for row in first] == [row.ids[0] for row in second]
    assert first == second


def test_a_killed_engine_core_is_a_death(inside: Inside) -> None:
    """The server notices that the process that computes is gone; that is no answer and no hang."""
    assert isinstance(inside.died, EngineDied), repr(inside.died)


def test_scales_that_are_not_in_force_contradict(
    kv_scheme_folder: Path, smollm2_folder: Path, vllm_python: str
) -> None:
    """vLLM serves FP8 at 1.0 as if nothing were wrong; the layers tell, and the recipe with scales is not engaged."""
    launch = launch_of(kv_scheme_folder, vllm_python, "fp8_e4m3@checkpoint")
    launch = with_arguments(launch, str(kv_scheme_folder), str(smollm2_folder))

    async def run() -> Deployment:
        async with DRIVER.open(launch) as session:
            return await session.deployment()

    verdict = DRIVER.engaged(launch.expected, asyncio.run(run()))

    assert verdict.level is Engagement.CONTRADICTED
    assert "scales of K: 1 in layer 0, the checkpoint says 0.02" in verdict.reason


def test_broken_scales_are_refused_by_the_real_folder(kv_scheme_folder: Path, vllm_python: str, tmp_path: Path) -> None:
    """A NaN in one tensor of a real checkpoint: one line, nothing started."""
    folder = copytree(kv_scheme_folder, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.self_attn.k_scale"].fill_(float("nan"))
    save_file(tensors, folder / "model.safetensors")

    with pytest.raises(UserError, match="1 of 60 KV scales cannot be used: layer 3 k is nan"):
        launch_of(folder, vllm_python, "fp8_e4m3")
    assert launch_of(folder, vllm_python, "native").engine_options["scales"] == {}
