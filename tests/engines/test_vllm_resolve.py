"""Recipes in vLLM's words: what is said on the command line, what is refused, and what must then be observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_kit import files, geometry, launch, make_environment, scaled_checkpoint, scales

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.engines.vllm import DRIVER

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with a CPU build."""
    return make_environment(tmp_path_factory.mktemp("cpu") / "env")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the ordinary package."""
    return make_environment(tmp_path_factory.mktemp("gpu") / "env", name="vllm")


def words(made: Launch) -> list[str]:
    return list(made.engine_options["arguments"])


def value(made: Launch, flag: str) -> list[str]:
    """What follows a flag, up to the next one."""
    said = words(made)
    rest = said[said.index(flag) + 1 :]
    return rest[: next((i for i, w in enumerate(rest) if w.startswith("--")), len(rest))]


@pytest.mark.parametrize(
    ("recipe", "dtype", "effective", "tokens"),
    [
        ("native", "bfloat16", "bf16", 46_592),
        ("bf16", "bfloat16", "bf16", 46_592),
        ("bfloat16", "bfloat16", "bf16", 46_592),
        ("fp8", "fp8_e4m3", "fp8_e4m3@unit", 93_184),
        ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3@unit", 93_184),
        ("fp8_e4m3:tensor@unit", "fp8_e4m3", "fp8_e4m3@unit", 93_184),
        ("fp8_e5m2", "fp8_e5m2", "fp8_e5m2@unit", 93_184),
    ],
)
def test_a_recipe_is_one_word(cpu: Path, tmp_path: Path, recipe: str, dtype: str, effective: str, tokens: int) -> None:
    """The compute type is spelled out, FP8 by its layout; one GiB holds the tokens that real vLLM printed."""
    made = launch(cpu, tmp_path, recipe)

    assert value(made, "--kv-cache-dtype") == [dtype]
    assert str(made.effective) == effective
    assert made.expected.parts_mib[0][1] == tokens
    assert "auto" not in words(made)


@pytest.mark.parametrize(
    ("native", "word"), [("bf16", "bfloat16"), ("f16", "float16"), ("f32", "bfloat16"), ("", "bfloat16")]
)
def test_native_is_the_compute_type(cpu: Path, tmp_path: Path, native: str, word: str) -> None:
    """A float32 checkpoint runs in bfloat16, as vLLM itself would have it; both words are said."""
    made = launch(cpu, tmp_path, shape=geometry(native=native))

    assert (value(made, "--dtype"), value(made, "--kv-cache-dtype")) == ([word], [word])


def test_a_scheme_does_not_reach_the_baseline(cpu: Path, tmp_path: Path) -> None:
    """A checkpoint that `auto` starts in FP8 gets its compute type by name, and FP8 with its own scales."""
    shape = geometry(kv_scheme="fp8_e4m3")
    scaled_checkpoint(tmp_path, scales())

    base, candidate = (launch(cpu, tmp_path, r, shape=shape) for r in ("native", "fp8_e4m3"))

    assert value(base, "--kv-cache-dtype") == ["bfloat16"]
    assert str(candidate.effective) == "fp8_e4m3@checkpoint"


@pytest.mark.parametrize("recipe", ["fp8_e4m3", "fp8_e5m2", "fp8_e4m3/keep=L0-1,L29"])
def test_arms_differ_in_the_recipe_only(cpu: Path, tmp_path: Path, recipe: str) -> None:
    """Baseline and candidate have the same words, but for the KV type and the layers left out."""
    base, candidate = words(launch(cpu, tmp_path)), words(launch(cpu, tmp_path, recipe))

    for flag in ("--kv-cache-dtype", "--kv-cache-dtype-skip-layers"):
        for said in (base, candidate):
            if flag in said:
                at = said.index(flag)
                del said[at : at + 1 + len([*_until_flag(said[at + 1 :])])]

    assert base == candidate
    assert launch(cpu, tmp_path).env == launch(cpu, tmp_path, recipe).env


def _until_flag(said: list[str]) -> list[str]:
    return said[: next((i for i, w in enumerate(said) if w.startswith("--")), len(said))]


@pytest.mark.parametrize(
    ("recipe", "skip"),
    [
        ("fp8_e4m3/keep=L0", ["0"]),
        ("fp8_e4m3/keep=L0-2,L29", ["0", "1", "2", "29"]),
        ("fp8_e4m3/keep=sliding_window", ["sliding_window"]),
        ("fp8_e4m3/keep=full_attention", ["0", "6", "12", "18", "24"]),
        ("fp8_e4m3/keep=sliding_window,L0", ["sliding_window", "0"]),
        ("fp8_e4m3/keep=sliding_window,L1", ["sliding_window"]),
    ],
)
def test_kept_layers_are_left_out(gpu: Path, tmp_path: Path, recipe: str, skip: list[str]) -> None:
    """vLLM knows layer numbers and one word; other kinds become their numbers."""
    assert value(launch(gpu, tmp_path, recipe, shape=geometry(window=True)), "--kv-cache-dtype-skip-layers") == skip


@pytest.mark.parametrize(
    ("recipe", "shape", "says"),
    [
        ("auto", {}, "auto is refused"),
        ("auto", {"kv_scheme": "fp8_e4m3"}, "starts in fp8_e4m3 without a word, which is no baseline"),
        ("q8_0", {}, "does not store q8_0; allowed: bf16, fp8_e4m3, fp8_e5m2"),
        ("fp7", {}, "does not store fp7; allowed: bf16, fp8_e4m3, fp8_e5m2"),
        ("kivi:bits=2", {}, "does not store kivi"),
        ("nvfp4", {}, "vllm on the CPU does not store nvfp4"),
        ("turboquant_k8v4", {}, "vllm on the CPU does not store turboquant_k8v4"),
        ("fp8_e4m3:token_head", {}, "fp8_e4m3 (fp8_per_token_head)"),
        ("f16", {}, "does not store f16"),
        ("k=fp8_e4m3,v=bf16", {}, "one KV type for K and V"),
        ("fp8_e4m3:head", {}, "scales a head from the checkpoint only"),
        ("fp8_e4m3:channel", {}, "takes no 'channel'"),
        ("fp8_e4m3+hadamard", {}, "cannot do +hadamard"),
        ("fp8_e4m3/residual=128", {}, "cannot do residual="),
        ("fp8_e4m3/sink=4", {}, "cannot do sink="),
        ("fp8_e4m3@checkpoint", {}, "has no KV scheme, so that vLLM scales by 1.0; write fp8_e4m3@unit"),
        ("fp8_e5m2", {"kv_scheme": "fp8_e4m3"}, "does not start a checkpoint with KV scales in fp8_e5m2"),
        ("fp8_e4m3@unit", {"kv_scheme": "fp8_e4m3"}, "brings KV scales; vLLM loads them".replace(";", ", and")),
        ("fp8_e4m3@dynamic", {}, "--calculate-kv-scales is gone"),
        ("fp8_e4m3@calibrated#9f2c1a07", {}, "not from a file of ours"),
        ("native/keep=L0", {}, "keep= leaves layers native, and all are"),
        ("bf16@unit", {}, "has no scales"),
        ("fp8_e4m3/keep=L0-29", {}, "leaves no layer"),
        ("fp8_e4m3/keep=L30", {}, "L0 to L29"),
        ("fp8_e4m3/keep=sliding_window", {}, "no layers of that kind"),
    ],
)
def test_what_vllm_cannot_do_is_refused(
    cpu: Path, tmp_path: Path, recipe: str, shape: dict[str, Any], says: str
) -> None:
    """One line that names the part and what is there instead; nothing is started."""
    scaled_checkpoint(tmp_path, scales())

    with pytest.raises(UserError) as e:
        launch(cpu, tmp_path, recipe, shape=geometry(**shape))

    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_an_unknown_compute_type_is_refused(cpu: Path, tmp_path: Path) -> None:
    """A checkpoint that says it computes in FP8 has no native cache."""
    with pytest.raises(UserError, match="computes in fp8_e4m3"):
        launch(cpu, tmp_path, shape=geometry(native="fp8_e4m3"))


def test_a_gpu_takes_more_types(gpu: Path, tmp_path: Path) -> None:
    """What the CPU build lacks is not refused elsewhere; backend and compiling are left to vLLM there."""
    for recipe in ("nvfp4", "int8_per_token_head", "turboquant_k8v4", "fp8_e4m3:token_head"):
        made = launch(gpu, tmp_path, recipe)
        assert made.expected.bytes_per_token > 0
    assert str(made.effective) == "fp8_per_token_head"
    assert "--attention-backend" not in words(made)
    assert "--enforce-eager" not in words(made)


def test_settings_are_flags(cpu: Path, tmp_path: Path) -> None:
    """Slots are sequences, one physical batch is one step; threads are counted and not bound."""
    made = launch(cpu, tmp_path, context_tokens=2048, slots=2, ubatch_tokens=32, threads=2)

    assert value(made, "--max-model-len") == ["2048"]
    assert value(made, "--max-num-seqs") == ["2"]
    assert value(made, "--max-num-batched-tokens") == ["32"]
    assert (made.env["OMP_NUM_THREADS"], made.env["VLLM_CPU_OMP_THREADS_BIND"]) == ("2", "nobind")
    assert made.env["HF_HUB_OFFLINE"] == "1"
    assert "--no-enable-prefix-caching" in words(made)
    assert "--trust-remote-code" not in words(made)


def test_memory_holds_what_is_asked_twice(cpu: Path, tmp_path: Path) -> None:
    """Whole GiB, the same for the base and for the floor with two slots, and never under one."""
    of = {
        (slots, context): int(
            value(launch(cpu, tmp_path, slots=slots, context_tokens=context), "--kv-cache-memory-bytes")[0]
        )
        for slots, context in ((1, 1024), (2, 1024), (2, 8192), (64, 8192))
    }

    assert of[1, 1024] == of[2, 1024] == of[2, 8192] == 2**30
    # 2 x 64 sequences x 8,192 tokens x 23,040 bytes = 22.5 GiB
    assert of[64, 8192] == 23 * 2**30


def test_the_persons_own_memory_wins(cpu: Path, tmp_path: Path) -> None:
    """A size given by hand is predicted; a share of the device, or several ranks, are not."""
    two = launch(cpu, tmp_path, env={"VLLM_CPU_KVCACHE_SPACE": "2"})
    share = launch(cpu, tmp_path, arguments=("--gpu-memory-utilization=0.5",))
    ranks = launch(cpu, tmp_path, arguments=("--tensor_parallel_size=2",))

    assert "--kv-cache-memory-bytes" not in words(two) + words(share)
    assert two.expected.parts_mib[0][1] == 93_184
    assert share.expected.parts_mib == ranks.expected.parts_mib == ()
    assert "--kv-cache-memory-bytes" in words(ranks)
    assert words(share)[-1] == "--gpu-memory-utilization=0.5"


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--kv-cache-dtype=fp8", "kvgate sets this itself"),
        ("--kv_cache_dtype=fp8", "kvgate sets this itself"),
        ("--api-key=x", "kvgate sets this itself"),
        ("--host=0.0.0.0", "kvgate sets this itself"),
        ("--trust-remote-code", "kvgate sets this itself"),
        ("--enable-prefix-caching", "kvgate sets this itself"),
        ("--speculative-config={}", "kvgate sets this itself"),
        ("--speculative-config.method=ngram", "kvgate sets this itself"),
        ("-sc={}", "kvgate sets this itself"),
        ("--kv-cache-dt=fp8", "kvgate sets this itself"),
        ("0.9", "is not one word"),
        ("; rm -rf /", "is not one word"),
        ("", "is not one word"),
    ],
)
def test_arguments_that_are_not_the_persons(cpu: Path, tmp_path: Path, argument: str, says: str) -> None:
    """What would make arms differ or open the server is refused, in either spelling."""
    with pytest.raises(UserError, match=says):
        launch(cpu, tmp_path, arguments=(argument,))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"context_tokens": 9000}, "longer than tiny was trained for"),
        ({"slots": 0}, "slots is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"checkpoints": 1}, "keeps no context checkpoints"),
        ({"env": {"VLLM_API_KEY": "x"}}, "cannot be set"),
        ({"env": {"A B": "x"}}, "cannot be set"),
        ({"env": {"VLLM_CPU_KVCACHE_SPACE": "0"}}, "VLLM_CPU_KVCACHE_SPACE"),
    ],
)
def test_senseless_settings_are_refused(cpu: Path, tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    """Before anything starts, with the setting's name."""
    with pytest.raises(UserError, match=says):
        launch(cpu, tmp_path, **settings)


def test_a_file_is_no_model_for_vllm(cpu: Path, tmp_path: Path) -> None:
    """A GGUF file is refused with what to give instead."""
    gguf = tmp_path / "m.gguf"
    gguf.touch()

    with pytest.raises(UserError, match="loads a Hugging Face folder"):
        DRIVER.resolve(Request(files(gguf), parse("native"), Settings(1024), "native", cpu))


def test_interpreters_without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None named, one that is not there, one without the package, one that is no Python: each says what to do."""
    monkeypatch.delenv("KVGATE_VLLM_PYTHON", raising=False)
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    text = tmp_path / "text"
    text.write_text("#!/bin/true\n")
    text.chmod(0o755)
    for python, says in (
        (None, "not installed beside kvgate"),
        (tmp_path / "nowhere", "there is no engine interpreter"),
        (tmp_path / "bare" / "bin" / "python", "has no vLLM"),
        (text, "gives no answer"),
        (tmp_path, "cannot be started"),
    ):
        with pytest.raises(UserError, match=says) as e:
            launch(python, tmp_path)  # type: ignore[arg-type]
        assert "--engine-python" in str(e.value)


def test_the_variable_names_the_interpreter(cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVGATE_VLLM_PYTHON stands in where none is given; the link inside the environment is kept."""
    monkeypatch.setenv("KVGATE_VLLM_PYTHON", str(cpu))

    made = DRIVER.resolve(Request(files(tmp_path), parse("native"), Settings(1024), "native"))

    assert made.argv[0] == str(cpu)


def test_tools_have_a_parser(cpu: Path, tmp_path: Path) -> None:
    """Requests that offer tools are answered: by one parser unless another is named."""
    own = launch(cpu, tmp_path, arguments=("--tool-call-parser=llama3_json", "--enable-auto-tool-choice"))

    assert value(launch(cpu, tmp_path), "--tool-call-parser") == ["hermes"]
    assert "--enable-auto-tool-choice" in words(launch(cpu, tmp_path))
    assert "--tool-call-parser" not in words(own)


def test_every_flag_is_one_of_vllms(cpu: Path, gpu: Path, tmp_path: Path) -> None:
    """Each flag that is ever said stands in the list that vLLM 0.32's own parser gives (data/vllm_0.32_flags.txt)."""
    known = set((DATA / "vllm_0.32_flags.txt").read_text().split())
    said = {
        word
        for python in (cpu, gpu)
        for recipe in ("native", "fp8_e4m3/keep=L0")
        for word in words(launch(python, tmp_path, recipe))
        if word.startswith("--")
    } | {"--host", "--port", "--api-key"}

    assert len(said) > 15
    assert said <= known
