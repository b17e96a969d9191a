"""`kvgate plan` from the outside: the worked examples, JSON, every kind of wrong input, a light start."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.cli.main import main
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.plan.spelled import recipe_of

EXAMPLES = Path(__file__).parent / "data" / "worked_examples.md"
LOGS = Path(__file__).parent / "logs"
H200 = ("Qwen/Qwen3-32B", "--device", "h200", "--weights", "65.52GB", "--overhead", "6GB", "--context", "32768")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "130")


class Ran:
    """Exit code and streams of one command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *args: str) -> None:
        self.code = main(["plan", *args])
        self.out, self.err = capsys.readouterr()

    @property
    def lines(self) -> list[str]:
        """Lines of stdout with blanks folded."""
        return [" ".join(line.split()) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


def worked_examples() -> list[tuple[str, list[str]]]:
    """Commands with the lines that they must print."""
    found: list[tuple[str, list[str]]] = []
    for line in EXAMPLES.read_text().splitlines():
        if line.startswith("$ kvgate plan "):
            found.append((line.removeprefix("$ kvgate plan "), []))
        elif found and line.strip() and not line.startswith("```") and not re.match(r"[A-Z]\w* .*[:.]$", line):
            found[-1][1].append(" ".join(line.split()))
    return found


@pytest.mark.parametrize(("command", "lines"), worked_examples(), ids=lambda v: v[:60] if isinstance(v, str) else "")
def test_worked_examples(capsys: pytest.CaptureFixture[str], command: str, lines: list[str]) -> None:
    """Each command of the examples prints the lines below it (figures first; what follows on the line is a source)."""
    ran = Ran(capsys, *shlex.split(command))

    assert ran.code == 0, ran.err
    for line in lines:
        assert any(shown.startswith(line) for shown in ran.lines), f"{line!r} not in\n{ran.out}"


def test_the_second_articles_savings_are_differences() -> None:
    """The examples say 210 and 112 MiB, which is what their own sizes give."""
    sizes = next(lines[0] for command, lines in worked_examples() if "q4_0" in command)
    f16, q8_0, q4_0 = (float(x) for x in re.findall(r"([\d.]+) MiB", sizes))

    assert (f16 - q8_0, q8_0 - q4_0) == (210, 112)
    assert "saves 210 MiB, q8_0 to q4_0 another 112" in EXAMPLES.read_text()


def test_the_document_has_what_other_tools_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The contract of kvgate.plan/1: integers in bytes, both columns, the limiting rank."""
    d = Ran(capsys, *H200, "--kv", "bf16", "--kv", "fp8_e4m3", "--json").document

    assert (d["schema"], d["model"], d["context_tokens"]) == ("kvgate.plan/1", "Qwen/Qwen3-32B", 32_768)
    assert d["device"]["memory_bytes"] == 150_754_820_096
    assert len(d["layers"]) == 64 and d["layers"][0]["kv_heads"] == 8
    bf16, fp8 = d["recipes"]
    assert (bf16["recipe"], fp8["recipe"]) == ("bf16", "fp8_e4m3")
    assert (bf16["bytes_per_token"], fp8["bytes_per_token"]) == (262_144, 131_072)
    assert (fp8["growth_bytes_per_token"], fp8["fixed_bytes_per_sequence"]) == (131_072, 0)
    assert bf16["sequence_bytes"] == 32_768 * 262_144
    assert bf16["budget_bytes"] == 67_174_434_488 == sum(t["bytes"] for t in bf16["budgets"][0]["terms"])
    assert (bf16["ideal"]["tokens"], bf16["ideal"]["sequences"]) == (256_250, 7)
    assert (fp8["ideal"]["tokens"], fp8["ideal"]["sequences"]) == (512_500, 15)
    assert fp8["engine"]["rule"].startswith("vllm") and fp8["engine"]["limiting_rank"] == "gpu0"
    assert (fp8["engine"]["tokens"], fp8["engine"]["sequences"]) == (512_496, 15)
    assert fp8["storage_ratio"]["value"] == 2
    assert (fp8["speed_ratio"]["lo"], fp8["speed_ratio"]["hi"]) == (0.54, 0.8)
    assert fp8["rollback_to_native"] == {"replicas": 1, "needed": 3, "ratio": pytest.approx(15 / 7)}


def test_unknown_is_null_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a device there is no budget, and every null says why."""
    d = Ran(capsys, "Qwen/Qwen3-32B", "--kv", "q8_0", "--context", "1000", "--json").document
    (recipe,) = d["recipes"]

    assert d["device"] is None and d["device_why"]
    assert recipe["budget_bytes"] is None and "--device" in recipe["budget_why"]
    for part in (recipe["ideal"], recipe["engine"]):
        assert part["tokens"] is None and part["sequences"] is None and part["why"]
    assert recipe["itl_slope_ms_per_token"] is None and recipe["itl_slope_why"]
    assert recipe["rollback_to_native"] is None and recipe["rollback_why"]
    assert recipe["speed_ratio"]["lo"] is None and recipe["speed_ratio"]["why"]


def test_compressed_rows_may_cost_a_part_of_a_byte(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek V4's rows are shared by 4 and 128 tokens."""
    d = Ran(capsys, "deepseek-ai/DeepSeek-V4-Flash", "--kv", "fp8", "--context", "4096", "--json").document

    assert d["recipes"][0]["bytes_per_token"] == 3850.25


def test_every_step_has_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain` ends every line with where it is from, `--layers` lists what each layer stores."""
    ran = Ran(capsys, *H200, "--kv", "fp8_e4m3", "--explain", "--layers")
    steps = ran.out[ran.out.index("\nmodel\n") :].splitlines()

    assert sum(line.startswith("  ") for line in steps) > 12
    assert all(re.search(r" \[\w+: .+\]$", line) for line in steps if line.startswith("  "))
    assert "0-63 full_attention 8 x (128 + 128) all tokens fp8_e4m3 64 x 2,048 0" in ran.lines


def test_storage_and_speed_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines, each with its label: one is arithmetic, the other measured, and on other models."""
    lines = Ran(capsys, *H200, "--kv", "bf16", "--kv", "fp8_e4m3").lines
    storage, speed = (next(n for n, line in enumerate(lines) if line.startswith(w)) for w in ("storage r", "time r"))

    assert speed == storage + 1
    assert lines[storage].startswith("storage ratio 1.00 x 2.00 x") and "arithmetic" in lines[storage]
    assert lines[speed].startswith("time ratio 1.00 x 0.54 to 0.80 x") and "MEASURED on other models" in lines[speed]


def test_auto_follows_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """`auto` is native for a plain checkpoint; engines' own spellings are taken."""
    d = Ran(capsys, *H200, "--kv", "auto", "--kv", "fp8", "--kv", "bfloat16", "--json").document

    assert [r["recipe"] for r in d["recipes"]] == ["native", "fp8_e4m3", "bf16"]


def test_auto_of_a_checkpoint_with_a_scheme() -> None:
    """A checkpoint that asks for an FP8 cache gets it from `auto`."""
    layer = LayerGeometry(0, "full_attention", 8, 128, 128)
    source = Source("spec", "made for this test")
    scheme = ModelGeometry("toy", "toy", (layer,), 4096, 1000, source, kv_scheme="fp8_e4m3")

    assert str(recipe_of("auto", engine="vllm", geometry=scheme)) == "fp8_e4m3"
    assert str(recipe_of("nvfp4", engine="llama_cpp", geometry=scheme)) == "ggml_nvfp4"
    assert str(recipe_of("turboquant_4bit_nc", engine="vllm", geometry=scheme)) == "turboquant_4bit_nc"


@pytest.mark.parametrize(
    ("engine", "recipe", "says"),
    [
        ("vllm", "q8_0", "vllm does not store q8_0; allowed: bf16"),
        ("vllm", "k=fp8_e4m3,v=bf16", "one cache type for K and V"),
        ("vllm", "fp8_e4m3/residual=128", "keeps no tokens native"),
        ("vllm", "fp8_e4m3/keep=full_attention", "allowed: sliding_window, layer numbers"),
        ("vllm", "fp8_e4m3+hadamard", "applies no hadamard"),
        ("sglang", "fp8_e4m3/keep=L0", "keeps no layers native"),
        ("trtllm", "kivi:bits=2:group=32", "does not store kivi"),
        ("vllm", "fp8_e4m3/keep=L0-3", ""),
        ("vllm", "turboquant_4bit_nc", ""),
        ("trtllm", "bf16", ""),
        ("lab", "kivi:bits=2:group=32", "no reservation rule for lab"),
    ],
)
def test_what_an_engine_cannot_store_has_a_price_and_no_reservation(
    capsys: pytest.CaptureFixture[str], engine: str, recipe: str, says: str
) -> None:
    """The ideal column stands for any recipe; the engine's own column says why it is empty."""
    (found,) = Ran(capsys, *H200, "--engine", engine, "--kv", recipe, "--json").document["recipes"]

    assert found["ideal"]["sequences"] > 0
    assert (found["engine"]["tokens"] is None) == bool(says)
    assert says in found["engine"].get("why", "")


def test_an_engine_never_holds_more_than_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that leaves states or cross attention out is bounded by the ideal column and says so."""
    for model, engine in (("openai/whisper-large-v3", "sglang"), ("ibm-granite/granite-4.0-h-small", "trtllm")):
        args = (model, "--device", "h200", "--weights", "10GB", "--engine", engine, "--context", "2000")
        (found,) = Ran(capsys, *args, "--kv", "bf16", "--json").document["recipes"]

        assert found["engine"]["sequences"] <= found["ideal"]["sequences"]


def test_many_recipes_go_into_several_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns stay readable: three recipes a table."""
    kv = ("bf16", "fp8_e4m3", "nvfp4", "q8_0", "q4_0")
    out = Ran(capsys, *H200, *(w for k in kv for w in ("--kv", k))).out

    assert out.count("bytes per token") == 2


def test_ranks_share_heads_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Four GPUs hold a quarter of the heads each; MLA is whole on every one."""
    d = Ran(capsys, *H200, "--tp", "4", "--kv", "bf16", "--json").document
    mla = Ran(capsys, "deepseek-ai/DeepSeek-V3", "--tp", "8", "--kv", "bf16", "--context", "4096", "--json").document

    (terms,) = [b["terms"] for b in d["recipes"][0]["budgets"]]
    assert next(t["bytes"] for t in terms if t["name"] == "weights") == -65_520_000_000 // 4
    assert d["recipes"][0]["rank_bytes_per_token"] == [65_536]
    assert d["recipes"][0]["bytes_per_token"] == 262_144
    assert mla["recipes"][0]["rank_bytes_per_token"] == [70_272]


def test_lengths_prefix_draft_and_replicas(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The other inputs reach the arithmetic."""
    file = tmp_path / "lengths.csv"
    file.write_text("1000,3\n2000,1\n")
    plain = Ran(capsys, *H200, "--kv", "fp8", "--json").document["recipes"][0]
    more = ("--lengths", str(file), "--shared-prefix", "500", "--draft", "2GB", "--replicas", "4", "--mtp")
    d = Ran(capsys, *H200, "--kv", "fp8", *more, "--json").document
    found = d["recipes"][0]

    assert d["lengths"] == {"n": 4, "mean": 1250.0, "longest": 2000, "source": f"file: {file}"}
    assert found["budget_bytes"] == plain["budget_bytes"] - 2_000_000_000
    assert found["ideal"]["shared_bytes"] == 500 * 131_072
    mixed = found["ideal"]["by_lengths"]
    assert mixed["mean_bytes"] == 750 * 131_072
    assert mixed["sequences"] == (found["budget_bytes"] - 500 * 131_072) // (750 * 131_072)
    assert found["rollback_to_native"]["replicas"] == 4 and found["rollback_to_native"]["needed"] > 4


def test_a_draft_model_caches_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A draft model's cache grows with the same tokens; the engine's own pool for it is not guessed."""
    plain = Ran(capsys, *H200, "--kv", "fp8", "--json").document["recipes"][0]
    d = Ran(capsys, *H200, "--draft", "Qwen/Qwen3-32B", "--kv", "fp8", "--json").document
    found = d["recipes"][0]

    assert found["sequence_bytes"] == 32_768 * (131_072 + 131_072)
    assert found["budget_bytes"] == plain["budget_bytes"] - d["draft"]["weights_bytes"]
    assert found["ideal"]["sequences"] == found["budget_bytes"] // found["sequence_bytes"]
    assert found["engine"]["tokens"] is None and "draft" in found["engine"]["why"]


WRONG = [
    ((), "no MODEL"),
    (("Qwen/Qwen3-32B", "--device", "h2oo"), "did you mean h20"),
    (("Qwen/Qwen3-32B", "--device", "cpu"), "--device-memory"),
    (("Qwen/Qwen3-32B", "--kv", "fp8_e4m3", "--kv", "fp8"), "given twice"),
    (("Qwen/Qwen3-32B", "--kv", "nosuch"), "allowed: bf16"),
    (("Qwen/Qwen3-32B", "--kv", ""), "empty"),
    (("Qwen/Qwen3-32B", "--kv", "fp8_e4m3/keep=sliding_window"), "allowed: full_attention"),
    (("Qwen/Qwen3-32B", "--kv", "fp8_e4m3/keep=L64"), "L0 to L63"),
    (("Qwen/Qwen3-32B", "--kv", "k=auto,v=fp8"), "auto stands alone"),
    (("Qwen/Qwen3-32B", "--engine", "foo"), "allowed: "),
    (("Qwen/Qwen3-32B", "--engine-version", "banana", "--device", "h200"), "not a version"),
    (("Qwen/Qwen3-32B", "--context", "0"), "is not a count of tokens"),
    (("Qwen/Qwen3-32B", "--context", "-1"), "is not a count of tokens"),
    (("Qwen/Qwen3-32B", "--context", "9" * 20), "is not a count of tokens"),
    (("Qwen/Qwen3-32B", "--tp", "3"), "8 KV heads, which 3 tensor-parallel ranks cannot share"),
    (("Qwen/Qwen3-32B", "--tp", "0"), "tp 0"),
    (("Qwen/Qwen3-32B", "--pp", "65"), "64 layers cannot be cut into 65 stages"),
    (("Qwen/Qwen3-32B", "--dcp", "3", "--tp", "8"), "dcp 3 does not divide tp 8"),
    (("Qwen/Qwen3-32B", "--weights", "65G"), "--weights '65G' is not a size"),
    (("Qwen/Qwen3-32B", "--weights", "0"), "--weights '0' is 0 bytes"),
    (("Qwen/Qwen3-32B", "--weights", "nan"), "is not a size"),
    (("Qwen/Qwen3-32B", "--overhead", "-3GB"), "is not a size"),
    (("Qwen/Qwen3-32B", "--device-memory", "141"), "has no unit"),
    (("Qwen/Qwen3-32B", "--device-memory", "24GB"), "more than gpu0 may use"),
    (("Qwen/Qwen3-32B", "--device", "h200", "--utilization", "nan"), "not a share of memory"),
    (("Qwen/Qwen3-32B", "--device", "h200", "--utilization", "92"), "not a share of memory"),
    (("Qwen/Qwen3-32B", "--utilization", "1.5"), "not a share of memory"),
    (("Qwen/Qwen3-32B", "--slots", "0"), "--slots 0 is not a count"),
    (("Qwen/Qwen3-32B", "--block-tokens", "-1"), "--block-tokens -1 is not a count"),
    (("Qwen/Qwen3-32B", "--replicas", "0"), "0 replicas cannot run"),
    (("Qwen/Qwen3-32B", "--shared-prefix", "50000"), "not part of a context"),
    (("Qwen/Qwen3-32B", "--shared-prefix", "-1"), "not part of a context"),
    (("Qwen/Qwen3-32B", "--lengths", "no-such-file"), "cannot be read"),
    (("Qwen/Qwen3-32B", "--draft", "12XB"), "--draft '12XB' is not a size"),
    (("Qwen/Qwen3-32B", "--option", "foo"), "not NAME=VALUE"),
    (("Qwen/Qwen3-32B", "--html", "/no/such/folder/x.html"), "cannot be written"),
    (("no/such-model",), "not in the catalogue"),
    (("--from-log", "no-such-log"), "cannot be read"),
]


@pytest.mark.parametrize(("args", "says"), WRONG, ids=lambda v: " ".join(v)[-50:] if isinstance(v, tuple) else "")
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str) -> None:
    """Every user error is exit 2 and one line that names the thing and the way on; nothing on stdout."""
    ran = Ran(capsys, *args)
    if ran.code == 0:
        # Not wrong, but nothing fits: said in the plan itself.
        assert says in ran.out
        return

    assert ran.code == 2, ran.err
    assert says in ran.err
    assert ran.err.count("\n") == 1 and ran.err.startswith("kvgate: ")
    assert ran.out == ""
    assert "Traceback" not in ran.err


def test_lengths_over_the_context_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A sequence that the engine would reject is not planned; the message has the context that fits."""
    file = tmp_path / "lengths"
    file.write_text("100\n50000\n")
    ran = Ran(capsys, *H200, "--lengths", str(file))

    assert ran.code == 2
    assert "give --context 50000" in ran.err


def test_a_window_longer_than_the_context_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Such a window saves nothing; the plan says so and still counts every token once."""
    d = Ran(capsys, "google/gemma-3-27b-it", "--kv", "bf16", "--context", "512", "--json").document

    assert d["recipes"][0]["sequence_bytes"] == 512 * 507_904
    assert any("longer than the context" in note for note in d["notes"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30), st.sampled_from(["--kv", "--device", "--weights", "--overhead", "--engine", "--option"]))
def test_any_text_is_an_answer_or_one_line(capsys: pytest.CaptureFixture[str], text: str, flag: str) -> None:
    """Whatever stands behind a flag, there is a plan or a user error, never a traceback."""
    ran = Ran(capsys, "Qwen/Qwen3-32B", f"{flag}={text}", "--context", "1000")

    assert ran.code in (0, 2), ran.err
    assert "Traceback" not in ran.err and "internal error" not in ran.err


@pytest.mark.parametrize(
    "name", ["vllm_0.32.0_cpu_fp8_e4m3.log", "vllm_0.32.0_cpu_auto.log", "vllm_0.32.0_cpu_fp8_e5m2.log"]
)
def test_a_real_start_is_predicted_exactly(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """vLLM 0.32 on the CPU with SmolLM2-135M: types, tokens and whole sequences are what its log says."""
    ran = Ran(capsys, "HuggingFaceTB/SmolLM2-135M", "--from-log", str(LOGS / name), "--json")
    gaps = {g["what"]: g["verdict"] for g in ran.document["gaps_given_memory"]}

    assert ran.code == 0
    assert {gaps[w] for w in ("K type", "V type", "KV memory", "tokens", "sequences")} == {"exact"}


def test_a_llama_cpp_start_is_predicted_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    """Three slots of K in q8_0 and V in q4_0: the printed size is what it allocated, so all three sequences fit."""
    log = str(LOGS / "llama_cpp_b11549_three_slots.log")
    d = Ran(capsys, "HuggingFaceTB/SmolLM2-135M", "--from-log", log, "--json").document
    gaps = {g["what"]: g["verdict"] for g in d["gaps_given_memory"]}

    assert (d["engine"], d["recipes"][0]["recipe"]) == ("llama_cpp", "k=q8_0,v=q4_0")
    assert (gaps["K type"], gaps["V type"], gaps["tokens"]) == ("exact", "exact", "exact")
    assert d["recipes"][0]["ideal"]["sequences"] == d["recipes"][0]["engine"]["sequences"] == 3


def test_a_log_against_another_model_is_a_gap(capsys: pytest.CaptureFixture[str]) -> None:
    """The same log does not fit a model with more bytes a token: the tokens differ and the reason is named."""
    log = str(LOGS / "vllm_0.32.0_cpu_fp8_e4m3.log")
    ran = Ran(capsys, "Qwen/Qwen3-0.6B", "--from-log", log, "--json")
    tokens = next(g for g in ran.document["gaps_given_memory"] if g["what"] == "tokens")

    assert (tokens["verdict"], tokens["reported"]) == ("differs", 93_184)
    assert tokens["why"]


def test_a_log_alone_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """What was chosen and reserved, each with its line."""
    ran = Ran(capsys, "--from-log", str(LOGS / "vllm_0.32.0_cpu_fp8_e4m3.log"))
    d = Ran(capsys, "--from-log", str(LOGS / "vllm_0.32.0_cpu_fp8_e4m3.log"), "--json").document

    assert "stored: fp8_e4m3 (printed)" in ran.lines
    assert "room: 93,184 tokens" in ran.lines
    assert (d["schema"], d["tokens"], d["stored"]["k"]) == ("kvgate.start_log/1", 93_184, "fp8_e4m3")


def test_planning_imports_no_heavy_library() -> None:
    """A whole plan in a fresh interpreter: no numpy, scipy, SQLAlchemy, torch, jinja2 or aiohttp."""
    code = (
        "import sys; from kvgate.cli.main import main; "
        "code = main(['plan', 'Qwen/Qwen3-32B', '--device', 'h200', '--kv', 'bf16', '--kv', 'turboquant_4bit_nc']); "
        "heavy = {'numpy', 'scipy', 'sqlalchemy', 'alembic', 'torch', 'jinja2', 'aiohttp', 'jsonschema', 'gguf'}; "
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stderr.strip().endswith("0 []")
