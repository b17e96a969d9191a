"""The real panel: arms in lockstep on one text, against each other and against the server. One thread."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from llama_kit import TEXT, launch
from numpy.typing import NDArray

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Launch, Pass
from kvgate.core.errors import EngineDied, LaneUnavailable
from kvgate.core.geometry import ModelFiles
from kvgate.enginefacts.facts import load
from kvgate.engines import _llama_panel
from kvgate.engines._llama_panel import LlamaCppPanel, panel_of
from kvgate.engines._llama_serving import completion_of, serve
from kvgate.engines._llama_verify import MAX_NAT, check_panel_agrees, largest_difference
from kvgate.engines.llama_cpp import DRIVER
from kvgate.models.resolve import model_files

pytestmark = pytest.mark.engine

POSITIONS = 512
#: Arm -> recipe and settings.
ARMS: dict[str, tuple[str, dict[str, int]]] = {
    "base": ("native", {}),
    "twin": ("native", {}),
    "ubatch32": ("native", {"ubatch_tokens": 32}),
    "f32": ("f32", {}),
    "q8_0": ("q8_0", {}),
    "q5_1": ("q5_1", {}),
    "q4_0": ("q4_0", {}),
    "q4_0+none": ("q4_0+none", {}),
}


@pytest.fixture(scope="module")
def model(smollm2: Path) -> ModelFiles:
    return model_files(smollm2, name="smollm2")


@pytest.fixture(scope="module")
def launches(model: ModelFiles) -> dict[str, Launch]:
    return {name: launch(recipe, model, context_tokens=POSITIONS, **kw) for name, (recipe, kw) in ARMS.items()}


@pytest.fixture(scope="module")
def panel(launches: dict[str, Launch]) -> Iterator[LlamaCppPanel]:
    with panel_of(launches) as made:
        yield made


@pytest.fixture(scope="module")
def ids(panel: LlamaCppPanel) -> tuple[int, ...]:
    found = panel.tokenize(TEXT).ids
    assert len(found) >= POSITIONS
    return found[:POSITIONS]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def kl(panel: LlamaCppPanel, ids: tuple[int, ...]) -> dict[str, NDArray[np.float64]]:
    """KL(base || arm) in nat at each of 512 positions."""
    panel.begin(ids)
    found: dict[str, list[NDArray[np.float64]]] = {arm: [] for arm in ARMS}
    for _ in range(0, len(ids), panel.max_rows):
        rows = panel.step(panel.max_rows, Pass.PREFILL)
        base = log_softmax(rows["base"])
        for arm, logits in rows.items():
            found[arm].append((np.exp(base) * (base - log_softmax(logits))).sum(axis=-1))
    return {arm: np.concatenate(parts) for arm, parts in found.items()}


def test_each_arm_is_what_its_own_log_says(panel: LlamaCppPanel, launches: dict[str, Launch]) -> None:
    """Every context's slice of the log confirms its own recipe and no other's."""
    seen = panel.deployments()

    for name, made in launches.items():
        assert DRIVER.engaged(made.expected, seen[name]).level is Engagement.CONFIRMED, name
        assert seen[name].note.place == "panel"
    assert DRIVER.engaged(launches["q4_0"].expected, seen["q4_0+none"]).level is Engagement.CONTRADICTED
    assert DRIVER.engaged(launches["q8_0"].expected, seen["q5_1"]).level is Engagement.CONTRADICTED
    assert {d.field for d in seen["base"].delta(seen["ubatch32"]) if d.status != "same"} == {"ubatch_tokens"}
    assert {d.field for d in seen["base"].delta(seen["q4_0+none"]) if d.status != "same"} == set()
    assert seen["base"].identity.threads == 1


def test_a_second_context_and_a_lossless_type_differ_by_nothing(kl: dict[str, NDArray[np.float64]]) -> None:
    """The twin's and f32's KL is exactly 0 at every position."""
    assert not kl["twin"].any()
    assert not kl["f32"].any()


def test_another_kernel_is_a_floor_that_is_not_zero(kl: dict[str, NDArray[np.float64]]) -> None:
    """With fewer than 64 rows a batch, f16 itself differs from f16, about as much as q8_0 does."""
    assert 0.001 < kl["ubatch32"].mean() < 0.01
    assert kl["q8_0"].mean() < 3 * kl["ubatch32"].mean()


def test_types_order_by_their_bits(kl: dict[str, NDArray[np.float64]]) -> None:
    """f16 < q8_0 < q5_1 < q4_0, in the ranges known for this model, and rotation is worth at least 1.5 times."""
    mean = {arm: float(k.mean()) for arm, k in kl.items()}

    assert 0 < mean["q8_0"] < mean["q5_1"] < mean["q4_0"]
    assert 0.0003 <= mean["q8_0"] <= 0.01
    assert 0.02 <= mean["q4_0"] <= 0.15
    assert mean["q4_0+none"] >= 1.5 * mean["q4_0"]


def test_decoding_starts_afresh_and_agrees_with_itself(panel: LlamaCppPanel, ids: tuple[int, ...]) -> None:
    """After `begin` a decode lane gives the same rows again, equal on twins, different on q4_0."""
    seen = []
    for _ in range(2):
        panel.begin(ids[:70])
        panel.step(64, Pass.PREFILL)
        seen.append([{arm: row.copy() for arm, row in panel.step(1, Pass.DECODE).items()} for _ in range(3)])

    for first, again in zip(*seen, strict=True):
        assert all(np.array_equal(first[arm], again[arm]) for arm in ARMS)
        assert np.array_equal(first["base"], first["twin"])
        assert not np.array_equal(first["base"], first["q4_0"])
        assert first["base"].shape == (1, 49152)


def test_steps_that_do_not_fit_are_refused(panel: LlamaCppPanel, ids: tuple[int, ...]) -> None:
    """Too many rows, a decode of two, more than the text, a text beyond the context, an id that is no token."""
    panel.begin(ids[:20])

    for n, how, says in (
        (panel.max_rows + 1, Pass.PREFILL, "split it"),
        (0, Pass.PREFILL, "1 to 256"),
        (2, Pass.DECODE, "feeds 1 token"),
        (21, Pass.PREFILL, "20 left"),
    ):
        with pytest.raises(ValueError, match=says):
            panel.step(n, how)
    with pytest.raises(ValueError, match="does not fit a context"):
        panel.begin([1] * (POSITIONS + 1))
    with pytest.raises(ValueError, match=r"outside 0\.\.49151"):
        panel.begin([49152])
    assert panel.step(20, Pass.PREFILL)["base"].shape == (20, 49152), "the refused ones changed nothing"


def test_rows_cannot_be_written(panel: LlamaCppPanel, ids: tuple[int, ...]) -> None:
    """A suite cannot spoil what another arm reads."""
    panel.begin(ids[:1])
    row = panel.step(1, Pass.DECODE)["base"]

    with pytest.raises(ValueError, match="read-only"):
        row[0, 0] = 0.0


def test_memory_is_flat_in_tokens(launches: dict[str, Launch], ids: tuple[int, ...]) -> None:
    """Feeding a text again and again does not grow the worker or us by as much as one step's rows."""
    with panel_of({"base": launches["base"]}) as made:
        worker, ours = psutil.Process(made.deployments()["base"].note.pid or 0), psutil.Process()

        def round_trip() -> int:
            for _ in range(2):
                made.begin(ids[:64])
                made.step(64, Pass.PREFILL)
            return worker.memory_info().rss + ours.memory_info().rss

        round_trip()
        before = round_trip()
        grown = max(round_trip() for _ in range(3)) - before

    assert grown < 64 * 49152 * 4


def test_panel_and_server_agree_at_one_position(
    panel: LlamaCppPanel, launches: dict[str, Launch], ids: tuple[int, ...]
) -> None:
    """Same model, same text, one step: within 5e-4 nat over the whole vocabulary; q8_0 against it is not."""

    async def compare() -> None:
        async with serve(launches["base"]) as session:
            assert panel.tokenize("Hello <|im_start|>").ids == (await session.tokenize("Hello <|im_start|>")).ids
            difference = await DRIVER.verify_panel(panel, "base", session, ids[:100])
            assert difference is not None
            assert 0 < difference <= MAX_NAT
            with pytest.raises(LaneUnavailable, match="disagree by"):
                await check_panel_agrees(panel, "q8_0", session, ids[:100])
            with pytest.raises(LaneUnavailable, match="compared after 64 to 256 tokens"):
                await check_panel_agrees(panel, "base", session, ids[:63])
            psutil.Process((await session.deployment()).note.pid or 0).kill()
            with pytest.raises(LaneUnavailable, match=r"server gave no position.*signal 9"):
                await check_panel_agrees(panel, "base", session, ids[:100])

    asyncio.run(compare())


def test_a_text_whose_next_token_is_half_a_character_is_compared_too(
    panel: LlamaCppPanel, launches: dict[str, Launch]
) -> None:
    """The server gives no probabilities for a token that ends inside a character, so it is kept from choosing one."""
    ids = panel.tokenize("こんにちは、世界。" * 12).ids[:128]

    async def compare() -> float | None:
        async with serve(launches["base"]) as session:
            bare = completion_of(ids, n_probs=1)
            del bare["grammar"]
            assert not (await session.post_json("/completion", bare)).get("completion_probabilities")
            return await DRIVER.verify_panel(panel, "base", session, ids)

    difference = asyncio.run(compare())

    assert difference is not None
    assert difference <= MAX_NAT


def test_the_largest_difference_is_found_and_tails_are_left_out() -> None:
    """One token off by 0.01 is found; a token with next to no probability is not compared."""
    logits = np.array([1.0, 2.0, 3.0, -200.0], dtype=np.float32)
    true = [float(x) for x in logits[:3]]
    norm = math.log(sum(math.exp(x) for x in true))
    logprobs = {i: x - norm for i, x in enumerate(true)} | {3: -90.0}

    assert largest_difference(logits, logprobs) < 1e-6
    assert largest_difference(logits, logprobs | {1: logprobs[1] + 0.01}) == pytest.approx(0.01, abs=1e-6)
    assert largest_difference(logits, logprobs | {3: -1.0}) > 100


def test_a_killed_worker_is_a_dead_engine(launches: dict[str, Launch]) -> None:
    """The next step says how it ended, and so does every one after it."""
    with panel_of({"base": launches["base"]}) as made:
        made.begin([1, 2, 3])
        psutil.Process(made.deployments()["base"].note.pid or 0).kill()

        for _ in range(2):
            with pytest.raises(EngineDied, match="killed by signal 9"):
                made.step(1, Pass.DECODE)


def test_a_bad_file_kills_the_panel_with_its_reason(model: ModelFiles, tmp_path: Path) -> None:
    """The line of the log that says why is in the error."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"hello, this is no model")
    made = launch("native", dataclasses.replace(model, path=path))

    with pytest.raises(EngineDied, match="invalid magic characters"), panel_of({"base": made}):
        pass


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        (lambda d: d["defaults"]["llama_context_params"].update(n_batch=4096), "n_batch reads 2048"),
        (lambda d: d["offsets"]["llama_context_params"].update(type_k=96), "type_k reads"),
        (lambda d: d["sizes"].update(llama_batch=64), "llama_batch has 56 bytes"),
    ],
    ids=["default", "offset", "size"],
)
def test_a_wheel_that_is_not_as_the_table_says_has_no_panel(
    launches: dict[str, Launch], monkeypatch: pytest.MonkeyPatch, mutate: object, says: str
) -> None:
    """A default, an offset or a size that does not fit leaves the lane untested before a model is loaded."""
    facts = load("llama_cpp")
    row = facts.layout[0].model_dump()
    mutate(row)  # type: ignore[operator]
    wrong = facts.model_copy(update={"layout": (type(facts.layout[0]).model_validate(row),)})
    monkeypatch.setattr(_llama_panel, "load", lambda engine: wrong)

    with pytest.raises(LaneUnavailable, match=f"not what the table says.*{says}"), panel_of(launches):
        pass
