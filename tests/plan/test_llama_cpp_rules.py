"""Planned caches against sizes that llama.cpp b11549 printed, and against public load logs."""

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import codec
from kvgate.plan.engine_rules.llama_cpp import cache_parts, printed_mib, room


def _model(*layers, context_tokens=8192, architecture="test"):
    return ModelGeometry(
        "test", architecture, tuple(layers), context_tokens, 32000, Source("arithmetic", "made in the test")
    )


def _plain(n, kv_heads, dim, window_tokens=None):
    kind = "sliding_window" if window_tokens else "full_attention"
    return [LayerGeometry(i, kind, kv_heads, dim, dim, window_tokens) for i in range(n)]


SMOLLM2 = _model(*_plain(30, 3, 64))
QWEN25_CODER_32B = _model(*_plain(64, 8, 128))
GEMMA3_270M = _model(
    *(LayerGeometry(i, "full_attention", 1, 256, 256) for i in (5, 11, 17)),
    *(LayerGeometry(i, "sliding_window", 1, 256, 256, 512) for i in range(18) if (i + 1) % 6),
    context_tokens=32768,
)
LFM2 = _model(*(LayerGeometry(i, "full_attention", 8, 64, 64) for i in (2, 5, 8, 10, 12, 14)))
MLA = _model(*(LayerGeometry(i, "mla", 1, 576, 0) for i in range(61)), architecture="deepseek2")


def _printed(model, name, **settings):
    """(kind, cells, MiB as printed) per part."""
    one = codec(name)
    return [(p.kind, p.cells, printed_mib(p.bytes)) for p in cache_parts(model, one, one, **settings)]


@pytest.mark.parametrize(
    ("model", "name", "settings", "expected"),
    [
        # Load logs of b11549 on SmolLM2-135M.
        (SMOLLM2, "f16", {"context_tokens": 1024}, [("full_attention", 1024, "22.50")]),
        (SMOLLM2, "q8_0", {"context_tokens": 1024}, [("full_attention", 1024, "11.95")]),
        (SMOLLM2, "q4_0", {"context_tokens": 1024}, [("full_attention", 1024, "6.33")]),
        (SMOLLM2, "f16", {"context_tokens": 4000}, [("full_attention", 4096, "90.00")]),
        # "rounding down" says the log, and rounds up: 4000 tokens over 3 slots are 3 x 1536.
        (SMOLLM2, "q8_0", {"context_tokens": 4000, "slots": 3}, [("full_attention", 1536, "53.79")]),
        (SMOLLM2, "q4_0", {"context_tokens": 4096, "slots": 4, "unified": True}, [("full_attention", 4096, "25.31")]),
        (SMOLLM2, "f16", {"context_tokens": 1000, "slots": 3}, [("full_attention", 512, "33.75")]),
        (SMOLLM2, "f16", {"context_tokens": 1000, "slots": 3, "unified": True}, [("full_attention", 1024, "22.50")]),
        # n_ctx 0 is the model's own context.
        (SMOLLM2, "f16", {"context_tokens": 0}, [("full_attention", 8192, "180.00")]),
        # Two caches: sliding layers have the window and one physical batch.
        (
            GEMMA3_270M,
            "q8_0",
            {"context_tokens": 4096},
            [("full_attention", 4096, "6.38"), ("sliding_window", 1024, "7.97")],
        ),
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192},
            [("full_attention", 8192, "24.00"), ("sliding_window", 1024, "15.00")],
        ),
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192, "slots": 4},
            [("full_attention", 2048, "24.00"), ("sliding_window", 1024, "60.00")],
        ),
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192, "slots": 4, "unified": True},
            [("full_attention", 8192, "24.00"), ("sliding_window", 2560, "37.50")],
        ),
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192, "slots": 2, "unified": True},
            [("full_attention", 8192, "24.00"), ("sliding_window", 1536, "22.50")],
        ),
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192, "swa_full": True},
            [("full_attention", 8192, "24.00"), ("sliding_window", 8192, "120.00")],
        ),
        # A smaller physical batch leaves less room: 512 + 32 is padded to 768.
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 8192, "ubatch_tokens": 32},
            [("full_attention", 8192, "24.00"), ("sliding_window", 768, "11.25")],
        ),
        # A context shorter than the window.
        (
            GEMMA3_270M,
            "f16",
            {"context_tokens": 256},
            [("full_attention", 256, "0.75"), ("sliding_window", 256, "3.75")],
        ),
        # Public logs and reports (plan-19, parse-24, lint-15).
        (QWEN25_CODER_32B, "q8_0", {"context_tokens": 32768}, [("full_attention", 32768, "4352.00")]),
        (LFM2, "f16", {"context_tokens": 4096}, [("full_attention", 4096, "48.00")]),
        (LFM2, "f16", {"context_tokens": 32768}, [("full_attention", 32768, "384.00")]),
        (LFM2, "q8_0", {"context_tokens": 32768}, [("full_attention", 32768, "204.00")]),
        (QWEN25_CODER_32B, "f16", {"context_tokens": 16384}, [("full_attention", 16384, "4096.00")]),
        (QWEN25_CODER_32B, "q4_0", {"context_tokens": 16384}, [("full_attention", 16384, "1152.00")]),
        # MLA keeps one vector a token and no V: 61 x 576 x 2 bytes x 4096 cells.
        (MLA, "f16", {"context_tokens": 4096}, [("full_attention", 4096, "274.50")]),
    ],
)
def test_parts_equal_the_load_log(model, name, settings, expected):
    """Cells and MiB are those that the engine prints, to its 0.01 MiB."""
    assert _printed(model, name, **settings) == expected


def test_k_and_v_are_sized_apart():
    """K in q4_0 and V in q8_0 give the two sizes of the engine's line: 3.16 and 5.98 MiB."""
    (part,) = cache_parts(SMOLLM2, codec("q4_0"), codec("q8_0"), context_tokens=1024)

    assert (printed_mib(part.k_bytes), printed_mib(part.v_bytes), printed_mib(part.bytes)) == ("3.16", "5.98", "9.14")
    assert part.k_mib + part.v_mib == part.mib


def test_slots_without_a_common_pool_are_streams():
    """The log counts cells per stream; bytes count all of them."""
    (part,) = cache_parts(SMOLLM2, codec("f16"), codec("f16"), context_tokens=1000, slots=3)

    assert (part.cells, part.streams, part.layers) == (512, 3, 30)
    assert room(8192, context_tokens=1000, slots=3).context_tokens == 1536


def test_k_and_v_of_one_vector_need_one_type():
    """A model that caches one latent vector refuses two types, and the line says which to write."""
    with pytest.raises(UserError, match=r"one vector.*write q8_0"):
        cache_parts(MLA, codec("q8_0"), codec("f16"), context_tokens=1024)


def test_head_size_is_held_against_the_block():
    """A head of 80 does not fit blocks of 32."""
    with pytest.raises(UserError, match=r"q8_0 stores blocks of 32.*head of 80.*choose f32, bf16 or f16"):
        cache_parts(_model(*_plain(2, 4, 80)), codec("q8_0"), codec("q8_0"), context_tokens=1024)


def test_a_codec_of_another_engine_is_refused():
    """fp8 is not in this engine's list."""
    with pytest.raises(UserError, match=r"llama_cpp does not store.*fp8_e4m3"):
        cache_parts(SMOLLM2, codec("fp8_e4m3"), codec("f16"), context_tokens=1024)


@pytest.mark.parametrize("settings", [{"context_tokens": -1}, {"context_tokens": 512, "slots": 0}])
def test_nonsense_settings_are_refused(settings):
    """A negative context and zero slots are errors, not sizes."""
    with pytest.raises(UserError, match="cannot be planned"):
        cache_parts(SMOLLM2, codec("f16"), codec("f16"), **settings)


def test_two_windows_are_refused():
    """llama.cpp holds one window size, so a geometry with two has no rule."""
    model = _model(*_plain(2, 1, 64, 512), *_plain(2, 1, 64, 1024))

    with pytest.raises(UserError, match=r"one window.*512, 1024"):
        cache_parts(model, codec("f16"), codec("f16"), context_tokens=1024)
