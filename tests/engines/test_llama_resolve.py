"""Recipe -> llama.cpp launch: what is accepted, what is predicted, and what is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from llama_kit import files, gemma, geometry, launch

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.enginefacts.facts import load
from kvgate.engines._llama_rotation import is_forced, rotation_of_part, rotations

DISABLE = "LLAMA_ATTN_ROT_DISABLE"


@pytest.mark.parametrize(
    ("recipe", "effective", "type_k", "type_v", "rotation"),
    [
        ("native", "f16", 1, 1, (0, 0)),
        ("fp16", "f16", 1, 1, (0, 0)),
        ("float16", "f16", 1, 1, (0, 0)),
        ("f32", "f32", 0, 0, (0, 0)),
        ("bf16", "bf16", 30, 30, (0, 0)),
        ("q8_0", "q8_0+hadamard", 8, 8, (64, 64)),
        ("q8_0+hadamard", "q8_0+hadamard", 8, 8, (64, 64)),
        ("q8_0+none", "q8_0+none", 8, 8, (0, 0)),
        ("q5_1", "q5_1+hadamard", 7, 7, (64, 64)),
        ("q5_0", "q5_0+hadamard", 6, 6, (64, 64)),
        ("q4_1", "q4_1+hadamard", 3, 3, (64, 64)),
        ("q4_0", "q4_0+hadamard", 2, 2, (64, 64)),
        ("iq4_nl", "iq4_nl+hadamard", 20, 20, (64, 64)),
        ("mxfp4", "ggml_mxfp4+hadamard", 39, 39, (64, 64)),
        ("ggml_mxfp4", "ggml_mxfp4+hadamard", 39, 39, (64, 64)),
        ("nvfp4", "ggml_nvfp4+hadamard", 40, 40, (64, 64)),
        ("k=q8_0,v=q4_0", "k=q8_0+hadamard,v=q4_0+hadamard", 8, 2, (64, 64)),
        ("k=f16,v=q8_0", "k=f16,v=q8_0+hadamard", 1, 8, (0, 64)),
        ("k=q8_0+none,v=f16", "k=q8_0+none,v=f16", 8, 1, (0, 0)),
        ("k=q8_0+none,v=q4_0+none", "k=q8_0+none,v=q4_0+none", 8, 2, (0, 0)),
        ("f16+none", "f16", 1, 1, (0, 0)),
    ],
)
def test_recipes_become_types_and_rotation(
    recipe: str, effective: str, type_k: int, type_v: int, rotation: tuple[int, int]
) -> None:
    """Each recipe names its types, what really runs, and the rotation the log will show."""
    made = launch(recipe)

    assert str(made.effective) == effective
    assert (made.engine_options["type_k"], made.engine_options["type_v"]) == (type_k, type_v)
    assert (made.expected.k_rotation, made.expected.v_rotation) == rotation
    assert (DISABLE in made.env) is ("+none" in effective)
    assert made.effective == launch(effective).effective, "an effective recipe resolves to itself"


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("wat", "does not store a KV cache in 'wat'.*allowed: f32.*q4_0"),
        ("auto", "no automatic KV type.*write native"),
        ("fp8", "b12274.*allowed: .*q8_0"),
        ("fp8_e4m3", "b12274"),
        ("q8_1", "aborts.*allowed: .*q8_0.*write q8_0"),
        ("q6_k", "blocks of 256 elements, and head_dim 64.*allowed: .*q8_0"),
        ("q8_0+foo", r"cannot do \+foo.*allowed: \+hadamard, \+none"),
        ("q8_0+none+hadamard", "more than one transform"),
        ("q8_0:head", "takes no ':head'.*write q8_0"),
        ("q8_0@unit", "takes no '@unit'"),
        ("q8_0/keep=sliding_window", "cannot do keep="),
        ("q8_0/residual=128", "cannot do residual="),
        ("q8_0/sink=4", "cannot do sink="),
        ("native/sink=4", "cannot do sink="),
        ("k=q8_0+none,v=q4_0", "K and V together.*both sides"),
        ("k=q8_0+none,v=q4_0+hadamard", "K and V together"),
        ("f16+hadamard", "f16 is never rotated"),
        ("k=q8_0,v=f32+hadamard", "f32 is never rotated"),
    ],
)
def test_what_cannot_run_is_refused_with_the_fix(recipe: str, says: str) -> None:
    """A recipe that this engine cannot run is one line that names it, what is allowed and the fix."""
    with pytest.raises(UserError, match=says) as e:
        launch(recipe)

    assert "\n" not in str(e.value)


def test_k_quants_are_refused_where_their_block_fits_too() -> None:
    """A weight format is no cache even if 256 divides the head."""
    with pytest.raises(UserError, match="no cache in it has been verified"):
        launch("q4_k", files(gemma()))


@pytest.mark.parametrize(
    ("dims", "recipe", "block", "choose"),
    [((80, 80), "q8_0", 32, "f32 or bf16 or f16"), ((96, 96), "nvfp4", 64, "q8_0"), ((64, 48), "q4_0", 32, "f16")],
)
def test_a_block_that_does_not_divide_the_head_is_named(
    dims: tuple[int, int], recipe: str, block: int, choose: str
) -> None:
    """head_dim, block and what to choose stand in the message."""
    model = files(geometry(k_dim=dims[0], v_dim=dims[1]))
    bad = next(d for d in dims if d % block)

    with pytest.raises(UserError, match=f"blocks of {block} elements.*head_dim {bad}.*choose .*{choose}"):
        launch(recipe, model)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"context_tokens": 8193}, "8193 tokens is longer than tiny was trained for .8192.*--context 8192"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"ubatch_tokens": 0}, "ubatch_tokens is 0"),
        ({"checkpoints": -1}, "checkpoints is -1"),
        ({"env": {"A=B": "1"}}, "'A=B' cannot be set"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], says: str) -> None:
    """A context beyond the model's and numbers that mean nothing are refused."""
    with pytest.raises(UserError, match=says):
        launch("q8_0", **settings)


@pytest.mark.parametrize(
    ("k_dims", "v_dims", "k", "v"),
    [
        ([64], [64], 64, 64),
        ([128], [128], 128, 64),
        ([256], [256], 256, 64),
        ([192], [128], 64, 64),
        ([80], [80], 0, 0),
        ([96], [96], 0, 0),
        ([576], [0], 64, 0),
        ([64, 128], [64, 64], 0, 64),
    ],
)
def test_rotation_follows_the_head_sizes(k_dims: list[int], v_dims: list[int], k: int, v: int) -> None:
    """K: largest power of two from 64 up that divides it; V: 64; none where sizes differ or 64 does not divide."""
    pairs = [(kd, vd) for kd in k_dims for vd in v_dims]
    layers = [geometry(layers=1, k_dim=kd, v_dim=vd).layers[0] for kd, vd in pairs]

    assert rotation_of_part(layers, "q8_0", "q8_0") == (k, v)
    assert rotation_of_part(layers, "f16", "q8_0") == (0, v)
    assert rotation_of_part(layers, "q8_0", "q8_0", disabled=True) == (0, 0)


def test_each_cache_of_a_sliding_model_is_decided_by_itself() -> None:
    """Full and sliding layers are two caches, each with its own rotation."""
    assert rotations(gemma(), "q8_0", "f16") == (("full_attention", 256, 0), ("sliding_window", 256, 0))


def test_heads_that_are_not_rotated_are_said_so() -> None:
    """On a head of 96 q8_0 runs as it is, and asking for rotation is refused with the head size."""
    model = files(geometry(k_dim=96, v_dim=96))

    assert str(launch("q8_0", model).effective) == "q8_0"
    assert str(launch("q8_0+none", model).effective) == "q8_0"
    assert DISABLE not in launch("q8_0+none", model).env
    with pytest.raises(UserError, match="64 divides the head size, which is 96"):
        launch("q8_0+hadamard", model)


def test_the_variable_in_an_arm_s_environment_counts() -> None:
    """An arm that sets the variable itself is predicted without rotation, and cannot ask for it."""
    off = {"env": {DISABLE: "1"}}

    assert launch("q8_0", **off).expected.k_rotation == 0
    assert str(launch("q8_0", **off).effective) == "q8_0+none"
    assert launch("q8_0", env={DISABLE: "0"}).expected.k_rotation == 64
    with pytest.raises(UserError, match="is set for this arm"):
        launch("q8_0+hadamard", **off)


def test_architectures_with_their_own_rule_are_not_predicted() -> None:
    """Where rotation is forced by another rule nothing is predicted rather than something wrong."""
    shape = geometry()
    odd = type(shape)("x", "deepseek32", shape.layers, 8192, 10, shape.source)

    assert is_forced(odd, load("llama_cpp"))
    assert not is_forced(shape, load("llama_cpp"))
    assert launch("q8_0", files(odd)).expected.k_rotation is None


def test_batches_are_the_same_for_any_number_of_slots() -> None:
    """The engine caps a batch at all slots' context; an arm with more slots must not get another batch by that."""
    one, four = launch("q8_0"), launch("q8_0", slots=4)

    assert one.engine_options["n_batch"] == four.engine_options["n_batch"] == 1024
    assert (one.engine_options["n_ctx"], four.engine_options["n_ctx"]) == (1024, 4096)
    assert launch("q8_0", batch_tokens=256).engine_options["n_ubatch"] == 256


def test_bytes_are_planned_per_token_and_cache() -> None:
    """SmolLM2: 23,040 bytes a token in f16, and the caches of 1,024 cells that the engine logs."""
    assert launch("native").expected.bytes_per_token == 23040
    assert launch("k=q8_0,v=q4_0").expected.parts_mib == (("full_attention", 1024, 5.9765625, 3.1640625),)
    assert [p[:2] for p in launch("q8_0", files(gemma()), context_tokens=4096).expected.parts_mib] == [
        ("full_attention", 4096),
        ("sliding_window", 1024),
    ]


@pytest.mark.parametrize(
    ("recipe", "against", "not_against"),
    [
        ("f32", {"f32", "f16"}, {"q8_0"}),
        ("f16", {"f32", "f16"}, {"bf16"}),
        ("q8_0", {"q8_0"}, {"f16", "q4_0"}),
        ("k=f16,v=q8_0", set(), {"f16", "q8_0"}),
    ],
)
def test_only_lossless_pairs_may_show_no_difference(recipe: str, against: set[str], not_against: set[str]) -> None:
    """f32 and f16 are alike on this engine; a codec with fewer bits than the base is not."""
    held = set(launch(recipe).expected.lossless_against)

    assert against <= held
    assert not held & not_against


def test_resolving_needs_no_engine() -> None:
    """A launch is made without the engine's package, cffi or numpy."""
    code = (
        "import sys; from kvgate.engines.llama_cpp import DRIVER; "
        "print(*[m for m in ('xllamacpp', 'cffi', 'numpy', 'aiohttp') if m in sys.modules])"
    )

    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)

    assert out.stdout.strip() == ""


def test_the_command_is_a_list_with_the_asked_interpreter() -> None:
    """argv starts with our interpreter or the one asked for, and holds no key and no shell."""
    made = launch("q8_0")

    assert made.argv[0] == sys.executable
    assert made.argv[1].endswith("llama_cpp_server.py")
    assert len(made.argv) == 2
    assert parse("q8_0") == made.request.recipe
