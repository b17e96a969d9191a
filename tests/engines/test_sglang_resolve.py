"""SGLang's and TensorRT-LLM's recipes, command lines and files; nothing is started."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from family_kit import make_environment, request
from vllm_kit import geometry

from kvgate.core.engine import Attach, Launch
from kvgate.core.errors import LaneUnavailable, UserError
from kvgate.core.registry import discover

BOTH = ("sglang", "trtllm")


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {e: make_environment(tmp_path_factory.mktemp(e) / "env", e) for e in BOTH}


def resolved(engine: str, pythons: dict[str, Path], folder: Path, recipe: str, **own: Any) -> Launch:
    made: Launch = discover("engine")[engine].resolve(request(engine, pythons[engine], folder, recipe, **own))
    return made


def words(launch: Launch) -> list[str]:
    return list(launch.engine_options["arguments"])


def config(launch: Launch) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(launch.engine_options["files"]["config.yaml"])
    return value


@pytest.mark.parametrize(
    ("recipe", "native", "word", "codec", "effective"),
    [
        ("native", "bf16", "bf16", "bf16", "bf16"),
        ("bf16", "bf16", "bf16", "bf16", "bf16"),
        ("native", "f16", "auto", "f16", "f16"),
        ("fp8_e4m3", "bf16", "fp8_e4m3", "fp8_e4m3", "fp8_e4m3@unit"),
        ("fp8", "bf16", "fp8_e4m3", "fp8_e4m3", "fp8_e4m3@unit"),
        ("fp8_e4m3:tensor", "bf16", "fp8_e4m3", "fp8_e4m3", "fp8_e4m3@unit"),
        ("fp8_e5m2@unit", "f16", "fp8_e5m2", "fp8_e5m2", "fp8_e5m2@unit"),
        ("mxfp8", "bf16", "mxfp8", "mxfp8", "mxfp8"),
        ("nvfp4", "bf16", "nvfp4", "nvfp4", "nvfp4@unit"),
    ],
)
def test_sglangs_words(
    pythons: dict[str, Path], tmp_path: Path, recipe: str, native: str, word: str, codec: str, effective: str
) -> None:
    """Each recipe is said in one word; native is the compute type, spelled out where SGLang can spell it."""
    made = resolved("sglang", pythons, tmp_path, recipe, shape=geometry(native=native))
    said = words(made)

    assert said[said.index("--kv-cache-dtype") + 1] == word
    assert said[said.index("--dtype") + 1] == {"bf16": "bfloat16", "f16": "float16"}[native]
    assert (made.expected.k_codec, str(made.effective)) == (codec, effective)


@pytest.mark.parametrize("engine", BOTH)
def test_arms_differ_in_the_recipe_alone(pythons: dict[str, Path], tmp_path: Path, engine: str) -> None:
    """Everything but the KV type, also the room in tokens, is the same on both arms."""
    base, fp8 = (resolved(engine, pythons, tmp_path, r) for r in ("native", "fp8_e4m3"))

    assert base.argv == fp8.argv
    assert base.env == fp8.env
    assert base.expected.parts_mib[0][1] == fp8.expected.parts_mib[0][1] == 4096
    assert base.expected.bytes_per_token == 2 * fp8.expected.bytes_per_token == 23040
    if engine == "sglang":
        assert [(a, b) for a, b in zip(words(base), words(fp8), strict=True) if a != b] == [("bf16", "fp8_e4m3")]
    else:
        assert words(base) == words(fp8)
        mine, theirs = config(base), config(fp8)
        assert (mine["kv_cache_config"].pop("dtype"), theirs["kv_cache_config"].pop("dtype")) == ("auto", "fp8")
        assert mine == theirs


def test_trtllms_file(pythons: dict[str, Path], tmp_path: Path) -> None:
    """The options are in a file; block reuse is off, and the room is given in tokens."""
    made = resolved("trtllm", pythons, tmp_path, "fp8_e4m3", slots=3, ubatch_tokens=64)

    assert words(made) == ["--config", "{config.yaml}", "--log_level", "info", str(tmp_path)]
    assert config(made) == {
        "backend": "pytorch",
        "enable_chunked_prefill": True,
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False, "max_tokens": 6144},
        "max_batch_size": 3,
        "max_num_tokens": 64,
        "max_seq_len": 1024,
    }


@pytest.mark.parametrize(
    ("engine", "recipe", "own", "says"),
    [
        ("sglang", "auto", {}, "auto is refused: it follows the checkpoint"),
        ("sglang", "k=fp8_e4m3,v=bf16", {}, "one KV type for K and V together; write fp8_e4m3 or bf16"),
        ("sglang", "fp8_e4m3/keep=L0", {}, "cannot do keep=: one type holds all tokens of all layers"),
        ("sglang", "fp8_e4m3/residual=16", {}, "cannot do residual="),
        ("sglang", "fp8_e4m3+hadamard", {}, r"cannot do \+hadamard"),
        ("sglang", "fp8_e4m3:head", {}, "takes no 'head' with fp8_e4m3: it has one scale a layer"),
        ("sglang", "fp8_e4m3@checkpoint", {}, "this checkpoint has no KV scheme, so that sglang scales by 1.0"),
        ("sglang", "fp8_e4m3@dynamic", {}, "makes no scales at run time"),
        ("sglang", "mxfp8@unit", {}, "mxfp8 takes no scales from outside"),
        ("sglang", "bf16@unit", {}, "bf16 has no scales and no transform"),
        ("sglang", "f16", {}, "does not store f16: tiny computes in bf16; allowed: bf16, "),
        ("sglang", "q8_0", {}, "sglang does not store a KV cache in 'q8_0'.*allowed: .*fp8_e4m3"),
        ("sglang", "fp8_e4m33", {}, "did you mean 'fp8_e4m3'"),
        ("trtllm", "fp8_e5m2", {}, "trtllm does not store"),
        ("trtllm", "int8", {}, "trtllm does not store int8; allowed: bf16, fp8_e4m3, nvfp4"),
        ("trtllm", "native", {"shape": geometry(kv_scheme="fp8_e4m3")}, "KV scheme turns auto into fp8_e4m3"),
        ("sglang", "native", {"shape": geometry(native="f16", kv_scheme="fp8_e4m3")}, "no word for float16 but auto"),
        ("sglang", "fp8_e4m3@unit", {"shape": geometry(kv_scheme="fp8_e4m3")}, "brings KV scales"),
        ("sglang", "native", {"context_tokens": 99999}, "longer than tiny was trained for"),
        ("sglang", "native", {"slots": 0}, "slots is 0; give a positive number"),
        ("sglang", "native", {"checkpoints": 1}, "keeps no context checkpoints"),
        ("sglang", "native", {"env": {"SGLANG_API_KEY": "x"}}, "'SGLANG_API_KEY' cannot be set"),
        ("trtllm", "native", {"env": {"A B": "x"}}, "'A B' cannot be set"),
        ("sglang", "native", {"arguments": ("--kv-cache-dtype=auto",)}, "kvgate sets this itself, equal on all arms"),
        ("sglang", "native", {"arguments": ("--kv_cache_dtype=auto",)}, "kvgate sets this itself"),
        ("sglang", "native", {"arguments": ("--kv-cache-dt=auto",)}, "kvgate sets this itself"),
        ("sglang", "native", {"arguments": ("--speculative-algorithm=EAGLE",)}, "kvgate sets this itself"),
        ("sglang", "native", {"arguments": ("--quantization-param-path=x",)}, "kvgate sets this itself"),
        ("sglang", "native", {"arguments": ("tp 2",)}, "is not one word"),
        ("trtllm", "native", {"arguments": ("--kv_cache_free_gpu_memory_fraction=0.5",)}, "kvgate sets this itself"),
    ],
)
def test_what_is_refused(
    pythons: dict[str, Path], tmp_path: Path, engine: str, recipe: str, own: dict[str, Any], says: str
) -> None:
    """One line that names the part, what is allowed and the fix; before anything is started."""
    with pytest.raises(UserError, match=says) as e:
        resolved(engine, pythons, tmp_path, recipe, **own)

    assert "\n" not in str(e.value)


def test_a_checkpoints_scales_are_its_own(pythons: dict[str, Path], tmp_path: Path) -> None:
    """A KV scheme makes the origin of the scales the checkpoint; a native cache is still spelled out."""
    scheme = geometry(kv_scheme="fp8_e4m3")

    assert str(resolved("sglang", pythons, tmp_path, "fp8_e4m3", shape=scheme).effective) == "fp8_e4m3@checkpoint"
    assert "bf16" in words(resolved("sglang", pythons, tmp_path, "native", shape=scheme))


@pytest.mark.parametrize("engine", BOTH)
def test_shapes_of_our_own_leave_capacity_open(pythons: dict[str, Path], tmp_path: Path, engine: str) -> None:
    """What a rank holds under a person's parallel sizes is not predicted; several pools neither."""
    split = "--tp-size=2" if engine == "sglang" else "--tp_size=2"

    assert resolved(engine, pythons, tmp_path, "native", arguments=(split,)).expected.parts_mib == ()
    assert resolved(engine, pythons, tmp_path, "native", shape=geometry(window=True)).expected.parts_mib == ()


def test_an_older_sglang_is_not_given_what_it_may_not_know(tmp_path: Path) -> None:
    """Default sampling is named to versions that were read."""
    old = make_environment(tmp_path / "old", "sglang", version="0.5.2")
    model = tmp_path / "model"
    model.mkdir()

    assert "--sampling-defaults" not in words(resolved("sglang", {"sglang": old}, model, "native"))


@pytest.mark.parametrize("engine", BOTH)
def test_nothing_is_installed_beside_us(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an interpreter one line says how to name it; a file is no model; the variable names one."""
    driver, variable = discover("engine")[engine], f"KVGATE_{engine.upper()}_PYTHON"
    monkeypatch.delenv(variable, raising=False)
    want = request(engine, Path(sys.executable), tmp_path)
    bare = type(want)(want.model, want.recipe, want.settings, want.spelling, None)

    with pytest.raises(
        UserError, match=re.escape(f"{engine} is not installed beside kvgate; give the Python that has")
    ):
        driver.resolve(bare)
    monkeypatch.setenv(variable, "/nowhere")
    with pytest.raises(UserError, match="there is no engine interpreter '/nowhere'"):
        driver.resolve(bare)
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(UserError, match="loads a Hugging Face folder, and tiny is a file"):
        driver.resolve(request(engine, Path(sys.executable), file))


@pytest.mark.parametrize("engine", BOTH)
def test_no_panel(engine: str, tmp_path: Path) -> None:
    """There is none, and the reason is one sentence."""
    driver = discover("engine")[engine]

    with pytest.raises(LaneUnavailable, match="no logits of a whole vocabulary"), driver.open_panel({}):
        pass


@pytest.mark.parametrize("engine", BOTH)
def test_a_log_that_is_not_there(engine: str, tmp_path: Path) -> None:
    """An attached server's log is read before anything is asked."""
    with pytest.raises(UserError, match="cannot be read"):
        discover("engine")[engine].open(Attach("http://127.0.0.1:1", log=tmp_path / "none.log"))


def test_names_and_variables(pythons: dict[str, Path], tmp_path: Path) -> None:
    """TensorRT-LLM has two spellings; children get no network, and none of our own modules."""
    from kvgate.campaign.prepare import find_driver

    assert find_driver("tensorrt-llm").name == find_driver("tensorrt_llm").name == "trtllm"
    for engine in BOTH:
        env = resolved(engine, pythons, tmp_path, "native", env={"A": "b"}).env
        assert (env["HF_HUB_OFFLINE"], env["A"]) == ("1", "b")
        assert not set(env) & {"PYTHONPATH", "PATH"}
    assert "KVGATE_STAND_IN" not in os.environ
