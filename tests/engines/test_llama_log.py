"""The load log: what is read from real ones, what stays unknown, and what contradicts a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_kit import WHEEL, files, gemma, launch, log_of

from kvgate.core.deployment import Deployment, Engagement, Note
from kvgate.core.engine import Launch
from kvgate.enginefacts.facts import load
from kvgate.engines._llama_log import MAX_PARTS, last_words, parse
from kvgate.engines._llama_observe import Seen, deployment_of, same_mib
from kvgate.engines.llama_cpp import DRIVER

FACTS = load("llama_cpp")


def observed(made: Launch, log: str, version: str | None = WHEEL, place: str = "serving") -> Deployment:
    return deployment_of(made, log_of(log), Seen(version, Note(place=place)))


def sliding() -> Launch:
    return launch("q8_0", files(gemma()), context_tokens=4096)


REAL = [
    ("b11549_f16", "native", WHEEL, {}),
    ("b11549_q8_0_rotation_off", "q8_0+none", WHEEL, {}),
    ("b11549_mxfp4_nvfp4", "k=mxfp4,v=nvfp4", WHEEL, {}),
    ("b8672_q8_0_q4_0", "k=q8_0,v=q4_0", "2026.4.8672", {}),
    ("v0.2.14_q8_0_q4_0", "k=q8_0+none,v=q4_0+none", "0.2.14", {}),
]


@pytest.mark.parametrize(("log", "recipe", "version", "settings"), REAL, ids=[r[0] for r in REAL])
def test_real_logs_confirm_the_plan(log: str, recipe: str, version: str, settings: dict[str, int]) -> None:
    """Types, rotation and MiB of a real log of three versions are as planned."""
    made = launch(recipe, **settings)

    engaged = DRIVER.engaged(made.expected, observed(made, log, version))

    assert engaged.level is Engagement.CONFIRMED, engaged
    assert any("size =" in line for line in engaged.lines)


def test_a_sliding_model_has_two_caches() -> None:
    """Both caches are read with their kind, cells, layers and rotation, and confirm the plan."""
    made = sliding()
    seen = observed(made, "b11549_q8_0_sliding_window")

    assert [(p.kind, p.cells, p.layers, p.k_rotation, p.v_rotation) for p in seen.consequence.parts] == [
        ("full_attention", 4096, 3, 256, 64),
        ("sliding_window", 1024, 15, 256, 64),
    ]
    assert seen.consequence.kv_mib == 14.35  # 6.38 + 7.97, as printed
    assert DRIVER.engaged(made.expected, seen).level is Engagement.CONFIRMED


def test_settings_are_read_from_the_log() -> None:
    """Slots, context of one slot, batches, threads, checkpoints, flash attention and device come from the log."""
    made = launch("k=q8_0,v=q4_0", context_tokens=512, slots=3, checkpoints=4)
    identity = observed(made, "b11549_q8_0_q4_0_three_slots").identity

    assert (identity.slots, identity.context_tokens, identity.batch_tokens, identity.ubatch_tokens) == (
        3,
        512,
        1000,
        512,
    )
    assert (identity.threads, identity.checkpoints, identity.flash_attention) == (1, 4, "enabled")
    assert (identity.device, identity.build, identity.epoch) == ("cpu", "b11549", "rotation>=2026-04-01")


def test_builds_before_rotation_contradict_it() -> None:
    """q8_0 is expected rotated; a wheel from before the change is not that, and is named by another epoch."""
    made = launch("k=q8_0,v=q4_0")
    seen = observed(made, "v0.2.14_q8_0_q4_0", "0.2.14")

    engaged = DRIVER.engaged(made.expected, seen)

    assert engaged.level is Engagement.CONTRADICTED
    assert "K rotation: asked for 64, the log says 0" in engaged.reason
    assert engaged.reason.endswith("xllamacpp 0.2.14 is from before rotation, so write +none after the type")
    new = DRIVER.engaged(made.expected, observed(made, "v0.2.14_q8_0_q4_0"))
    assert "before rotation" not in new.reason, "a build that can rotate gets no such excuse"
    assert seen.identity.epoch == "rotation<2026-04-01"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"k_codec": "q4_0"}, "K type: asked for q4_0, the log says q8_0"),
        ({"v_codec": "f16"}, "V type: asked for f16, the log says q8_0"),
        ({"k_rotation": 0}, "K rotation: asked for 0, the log says 256"),
        ({"v_rotation": 128}, "V rotation: asked for 128, the log says 64"),
        ({"parts_mib": (("full_attention", 4096, 3.1875, 3.1875),)}, "the plan has 1 caches, the log 2"),
        (
            {"parts_mib": (("full_attention", 4096, 3.1875, 3.1975), ("sliding_window", 1024, 3.984375, 3.984375))},
            "planned K 3.19 and V 3.20 MiB, the log says 3.19 and 3.19",
        ),
        (
            {"parts_mib": (("full_attention", 4352, 3.1875, 3.1875), ("sliding_window", 1024, 3.984375, 3.984375))},
            "full_attention with 4352 cells",
        ),
        (
            {"parts_rotation": (("full_attention", 256, 64), ("sliding_window", 128, 64))},
            "sliding_window: rotation planned 128 and 64, the log says 256 and 64",
        ),
    ],
)
def test_any_difference_contradicts(change: dict[str, object], says: str) -> None:
    """Each predicted field, changed alone, is a contradiction with the line that says so."""
    made = sliding()
    expected = made.expected.model_copy(update=change)

    engaged = DRIVER.engaged(expected, observed(made, "b11549_q8_0_sliding_window"))

    assert engaged.level is Engagement.CONTRADICTED
    assert says in engaged.reason
    assert engaged.lines


def test_unpredicted_rotation_is_not_held_against() -> None:
    """Where no rotation is predicted, types and bytes still decide, and the reason says so."""
    made = sliding()
    expected = made.expected.model_copy(update={"k_rotation": None, "v_rotation": None, "parts_rotation": ()})

    engaged = DRIVER.engaged(expected, observed(made, "b11549_q8_0_sliding_window"))

    assert engaged.level is Engagement.CONFIRMED
    assert "not predicted" in engaged.reason


def test_an_unreadable_log_or_version_is_a_contradiction() -> None:
    """A server of ours whose log says nothing, or whose package has no version, is not confirmed."""
    made = launch("native")
    silent = deployment_of(made, ["nothing of interest"], Seen(WHEEL, Note(place="serving")))
    unnamed = observed(made, "b11549_f16", version=None)

    assert DRIVER.engaged(made.expected, silent).level is Engagement.CONTRADICTED
    assert DRIVER.engaged(made.expected, unnamed).level is Engagement.CONTRADICTED
    assert unnamed.identity.epoch is None


def test_an_attached_server_without_a_log_is_unobserved() -> None:
    """Nothing is known of it, and nothing contradicts."""
    made = launch("native")
    attached = deployment_of(made, [], Seen(None, Note(place="attached")))

    assert DRIVER.engaged(made.expected, attached).level is Engagement.UNOBSERVED


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("b11549_no_flash_attention", "quantized V cache requires flash_attn to be enabled"),
        ("b11549_q6_K_refused", "K cache type q6_K with block size 256 does not divide n_embd_head_k=64"),
        ("b11549_not_gguf", "invalid magic characters: 'hell', expected 'GGUF'"),
        ("b11549_q8_1_abort", "fattn: unsupported V-type"),
    ],
)
def test_the_last_words_say_why(log: str, says: str) -> None:
    """Of many lines of error, the first cause is told, not its echoes."""
    assert says in last_words(log_of(log))


def test_last_words_of_a_log_without_errors_are_its_last_line() -> None:
    """A process that ends without an error line is told by its last line, and an empty log by nothing."""
    assert last_words(["0.00.001.000 I a", "0.00.001.000 I out of luck", ""]) == "out of luck"
    assert last_words([]) == ""


WORDS = st.sampled_from(
    [
        "llama_kv_cache: size = 11.95 MiB (1024 cells, 30 layers, 1/1 seqs), K (q8_0): 5.98 MiB, V (q8_0): 5.98 MiB",
        "llama_kv_cache: size = 9999999999999999999999999999999999.0 MiB ( 99999999999999999999999 cells,",
        "llama_kv_cache: n_rot_k = ",
        "llama_kv_cache: n_rot_v = 64",
        "llama_kv_cache: attn_rot_k = 1",
        "llama_kv_cache_iswa: creating     SWA KV cache, size = ",
        "llama_context: n_ctx_seq = ٣",
        "context checkpoints enabled, max = 4",
        "system_info: n_threads = 1 (n_threads_batch = ",
        "9" * 400,
        "\x00\x1b[2J",
    ]
)


@given(st.lists(st.one_of(st.text(), WORDS, st.tuples(WORDS, st.text()).map("".join)), max_size=30), st.booleans())
def test_no_text_breaks_the_reader(lines: list[str], known: bool) -> None:
    """Any lines give facts or unknowns, never an error, and the result is a valid deployment."""
    made = launch("q8_0")
    seen = deployment_of(made, lines, Seen(WHEEL if known else None, Note(place="serving")))

    DRIVER.engaged(made.expected, seen)
    last_words(lines)
    assert len(seen.consequence.parts) <= MAX_PARTS
    assert Deployment.model_validate_json(seen.model_dump_json()).consequence.parts == seen.consequence.parts


@given(st.binary())
def test_random_bytes_are_unknown(data: bytes) -> None:
    """Bytes that are no log name no type."""
    parsed = parse(data.decode("utf-8", "replace").splitlines(), FACTS, WHEEL)

    assert parsed.parts == ()


@pytest.mark.parametrize(
    ("planned", "logged", "same"),
    [(5.9765625, 5.98, True), (5.9765625, 5.97, False), (5.975, 5.97, True), (5.975, 5.98, True), (9.0, 9.01, False)],
)
def test_mib_agree_to_the_printed_decimals(planned: float, logged: float, same: bool) -> None:
    """Half of the last decimal is print's rounding; a whole one is a difference."""
    assert same_mib(planned, logged) is same


def test_large_caches_are_compared_as_32_bit_floats_allow() -> None:
    """At 16,000 MiB a 32-bit float moves in steps of 0.001, so a tie may fall the other way; not by two decimals."""
    assert same_mib(16000.0053, 16000.0)
    assert not same_mib(16000.0053, 16000.02)
