"""Readers: shell, manifests and configurations become the commands that they start, or one line that says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.lint.command import Command
from kvgate.lint.read.shell import commands_of
from kvgate.lint.read.source import read, with_config_file
from kvgate.lint.read.yaml_tree import yaml_documents


def only(text: str, engine: str = "") -> Command:
    """The one command of a text."""
    found = read(text, engine).commands
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a \\\n  b", ["a", "b"]),
        ("a b # c d", ["a", "b"]),
        ("a --x=1>log.txt 2>&1 b", ["a", "--x=1", "b"]),
        ("a 'x\"y' \"x'y\"", ["a", 'x"y', "x'y"]),
        ('a "x\\"y"', ["a", 'x"y']),
        ("a ''", ["a", ""]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    """Quotes, continuations, comments and redirections are a shell's."""
    ((_, found),) = commands_of(text)

    assert [w.text for w in found] == words


def test_commands_and_variables() -> None:
    """A literal that the text assigns is put in; anything a shell would compute makes a word opaque."""
    text = "export A=fp8\nB=bf16\nX=1 run $A ${B} \"$C\" '$A' $(rm -rf /) `x` && next; last | tail"
    (env, words), *rest = commands_of(text)

    assert env == {"A": "fp8", "X": "1"}
    assert [w.text for w in words][:4] == ["run", "fp8", "bf16", "$C"]
    assert [w.opaque for w in words] == [False, False, False, True, False, True, True]
    assert [w[1][0].text for w in rest] == ["next", "last", "tail"]


def test_a_loop_is_its_turns() -> None:
    """A loop over literals starts one engine a turn; keywords are no part of a command."""
    text = "for m in a/b c/d; do\n  X=1 vllm serve $m --kv-cache-dtype fp8\ndone\nif true; then vllm serve e/f; fi\n"

    assert [c.get("model") for c in read(text).commands] == ["a/b", "c/d", "e/f"]
    assert read(text).commands[0].env == {"X": "1"}


def test_lines_are_counted_through_continuations_and_documents() -> None:
    """A finding can name the line, behind continuations and here-documents too."""
    text = "cat <<EOF\nvllm serve no --kv-cache-dtype int8\nEOF\nvllm serve x \\\n  --kv-cache-dtype \\\n  fp8\n"

    command = only(text)

    assert command.get("model") == "x"
    assert command.place_of("kv_dtype").line == 5


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --kv-cache-dtype fp8",
        "vllm serve M --kv_cache_dtype=fp8",
        "python3 -m vllm.entrypoints.openai.api_server --model M --kv-cache-dtype fp8",
        "CUDA_VISIBLE_DEVICES=0 nohup /opt/bin/vllm serve M --kv-cache-dtype fp8 > log 2>&1 &",
        "docker run --gpus all -v /m:/m -p 8000:8000 vllm/vllm-openai:v0.32.0 --model M --kv-cache-dtype fp8",
        "bash -c 'exec vllm serve M --kv-cache-dtype fp8'",
        "uv run vllm serve M --kv-cache-dtype fp8",
        "M --kv-cache-dtype fp8",
    ],
)
def test_ways_to_start_one_engine(text: str) -> None:
    """Wrappers, images and modules all start vLLM with the same option."""
    command = only(text, "vllm" if text.startswith("M ") else "")

    assert command.engine == "vllm"
    assert command.get("kv_dtype") == "fp8"


@pytest.mark.parametrize(
    ("text", "engine", "key", "value"),
    [
        ("sglang serve --model-path M --kv-cache-dtype fp8_e5m2", "sglang", "kv_dtype", "fp8_e5m2"),
        ("python -m sglang.launch_server --model M --tp 8", "sglang", "tp", "8"),
        ("mpirun -n 8 trtllm-llmapi-launch trtllm-serve M --tp_size 8", "trtllm", "tp", "8"),
        ("./build/bin/llama-server -m M -ctk q8_0", "llama_cpp", "k_dtype", "q8_0"),
        ("LLAMA_ARG_CACHE_TYPE_K=q4_0 llama-server -m M", "llama_cpp", "k_dtype", "q4_0"),
        ("llama-server -m M -fa on", "llama_cpp", "flash_attention", "on"),
        ("llama-server -m M -fa -ctk q8_0", "llama_cpp", "flash_attention", "on"),
        ("vllm serve M -tp 2", "vllm", "tp", "2"),
        ("vllm serve M --attention-config.backend FLASHINFER", "vllm", "attention_config.backend", "FLASHINFER"),
        ('vllm serve M --speculative-config \'{"method": "mtp"}\'', "vllm", "speculative.method", "mtp"),
        ("vllm serve M --kv-cache-dtype-skip-layers 0 1 --seed 1", "vllm", "skip_layers", "0 1"),
        ("ollama serve", "ollama", "model", None),
    ],
)
def test_options_of_each_engine(text: str, engine: str, key: str, value: str | None) -> None:
    """Each engine's own spelling reaches the same word."""
    command = only(text)

    assert (command.engine, command.get(key)) == (engine, value)


@pytest.mark.parametrize(
    ("image", "engine", "version", "vendor"),
    [
        ("vllm/vllm-openai:v0.9.2", "vllm", "0.9.2", ""),
        ("rocm/vllm:rocm6.4.1_vllm_0.9.1", "vllm", "0.9.1", "amd"),
        ("lmsysorg/sglang:v0.5.8-cu126", "sglang", "0.5.8", ""),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "trtllm", "1.2.1", ""),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b6123", "llama_cpp", "b6123", ""),
        ("vllm/vllm-openai:latest", "vllm", "", ""),
    ],
)
def test_what_an_image_says(image: str, engine: str, version: str, vendor: str) -> None:
    """Engine, version and vendor stand in the name and the tag."""
    command = only(f"docker run {image} --model M")

    assert (command.engine, command.version, command.vendor) == (engine, version, vendor)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('["vllm", "serve", "M", "--kv-cache-dtype", "fp8"]', 0),
        ('FROM vllm/vllm-openai:v0.32.0\nENV A=b\nCMD ["vllm", "serve", "M", "--kv-cache-dtype", "fp8"]\n', 3),
        ("[Service]\nEnvironment=A=b\nExecStart=/opt/vllm serve M \\\n  --kv-cache-dtype fp8\n", 4),
    ],
)
def test_lists_of_words_dockerfiles_and_units(text: str, line: int) -> None:
    """A list of words is a command; CMD and ExecStart are too, with their line and variables."""
    command = only(text)

    assert (command.engine, command.get("kv_dtype")) == ("vllm", "fp8")
    assert command.place_of("kv_dtype").line == line
    assert line == 0 or command.env == {"A": "b"}


COMPOSE = """
x-env: &env
  HF_HUB_OFFLINE: "1"
services:
  chat:
    image: vllm/vllm-openai:v0.32.0
    environment:
      <<: *env
      VLLM_ATTENTION_BACKEND: FLASHINFER
    command: >
      --model Qwen/Qwen3-32B
      --kv-cache-dtype fp8
      --max-model-len ${MAX_LEN:-1000}
  small:
    image: ghcr.io/ggml-org/llama.cpp:server
    command: ["-m", "m.gguf", "-ctk", "q8_0"]
    environment: ["LLAMA_ATTN_ROT_DISABLE=1"]
  web:
    image: nginx:1.27
"""
KUBE = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.19.1
          env:
            - name: KV
              value: fp8_e5m2
          args:
            - --model=Qwen/Qwen3-32B
            - --kv-cache-dtype
            - $(KV)
        - name: shell
          image: lmsysorg/sglang:v0.5.8
          command: ["/bin/sh", "-c"]
          args: ["python3 -m sglang.launch_server --model-path M --kv-cache-dtype fp8_e4m3"]
"""


def test_a_compose_file(tmp_path: Path) -> None:
    """Each service that starts an engine is a command, with its environment, merged keys and lines."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)

    chat, small = read(str(path)).commands

    assert (chat.engine, chat.version, chat.get("kv_dtype")) == ("vllm", "0.32.0", "fp8")
    assert chat.env == {"HF_HUB_OFFLINE": "1", "VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    assert chat.given("context_tokens") and chat.get("context_tokens") is None
    assert (small.engine, small.get("k_dtype"), small.env["LLAMA_ATTN_ROT_DISABLE"]) == ("llama_cpp", "q8_0", "1")
    assert chat.place.line == 6


def test_a_kubernetes_manifest(tmp_path: Path) -> None:
    """Containers, their arguments, and variables of the same container."""
    path = tmp_path / "deploy.yml"
    path.write_text(KUBE)

    first, second = read(str(path)).commands

    assert (first.engine, first.version, first.get("kv_dtype")) == ("vllm", "0.19.1", "fp8_e5m2")
    assert first.place_of("kv_dtype").line == 15
    assert (second.engine, second.get("kv_dtype")) == ("sglang", "fp8_e4m3")


@pytest.mark.parametrize(
    ("name", "text", "engine", "key", "value"),
    [
        ("vllm.yaml", "model: M\ngpu-memory-utilization: 0.9\nkv_cache_dtype: fp8\n", "vllm", "kv_dtype", "fp8"),
        (
            "sgl.yaml",
            "model-path: M\nmem-fraction-static: 0.8\nkv-cache-dtype: fp8_e4m3\n",
            "sglang",
            "kv_dtype",
            "fp8_e4m3",
        ),
        ("trt.yaml", "kv_cache_config:\n  dtype: fp8\n  free_gpu_memory_fraction: 0.85\n", "trtllm", "kv_dtype", "fp8"),
        ("trt.json", json.dumps({"kv_cache_config": {"dtype": "nvfp4"}}), "trtllm", "kv_dtype", "nvfp4"),
    ],
)
def test_an_engine_s_own_file(tmp_path: Path, name: str, text: str, engine: str, key: str, value: str) -> None:
    """The file's keys say whose it is."""
    path = tmp_path / name
    path.write_text(text)

    command = only(str(path))

    assert (command.engine, command.get(key)) == (engine, value)


def test_a_file_that_a_command_names_is_read_with_it(tmp_path: Path) -> None:
    """The command line wins over the file; a file that is not there is noted."""
    path = tmp_path / "x.yaml"
    path.write_text("kv_cache_config:\n  dtype: fp8\n  host_cache_size: 100\n")

    command = with_config_file(only(f"trtllm-serve M --config {path} --kv_cache_dtype auto"))
    lost = with_config_file(only("trtllm-serve M --config nowhere.yaml"))

    assert (command.get("kv_dtype"), command.get("host_cache")) == ("auto", "100")
    assert lost.notes and "nowhere.yaml" in lost.notes[0]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bomb.yaml", BOMB, "expand"),
        (
            "merge.yaml",
            "a: &a {k: v}\n"
            + "".join(
                f"{c}: &{c} {{<<: [{','.join([f'*{p}'] * 9)}]}}\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "expand",
        ),
        ("self.yaml", "a: &a [*a]\n", "holds itself"),
        ("deep.yaml", "[" * 500 + "]" * 500, "nested"),
        ("big.yaml", "a: " + "x" * 600_000, "bytes"),
        ("tag.yaml", "!!python/object/apply:os.system ['true']\n", "starts no engine"),
        ("template.yaml", "args: {{ .Values.args }}\n  x: [\n", "helm template"),
        ("broken.yaml", "a: [1, 2\n", "line"),
        ("both.yaml", "kv-cache-dtype: fp8\n", "may be a file of"),
        ("none.yaml", "colour: red\n", "configures no engine"),
        ("twice.json", '{"a": 1, "a": 2}', "twice"),
        ("deep.json", '{"a":' * 300 + "1" + "}" * 300, "nest"),
        ("binary.sh", "\0\0", "no text"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, says: str) -> None:
    """Bombs, loops, depth, size, tags, templates and strangers each give one line that says which."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(UserError) as caught:
        read(str(path))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "nothing to lint"),
        ("vllm serve 'x", "not closed"),
        ('vllm serve "x', "not closed"),
        ("pip install vllm", "starts no engine"),
        ("vllm chat --url x", "starts no engine"),
        ("nowhere.yaml", "no file"),
        ("/nowhere/model", "no file or folder"),
        ("vllm " + "a " * 30_000, "words"),
    ],
)
def test_commands_that_cannot_be_read(text: str, says: str) -> None:
    """What is no start of an engine is said in one line."""
    with pytest.raises(UserError, match=says):
        read(text)


def test_a_key_twice_is_noted(tmp_path: Path) -> None:
    """YAML takes the last of two keys without a word; lint does not."""
    path = tmp_path / "v.yaml"
    path.write_text("gpu-memory-utilization: 0.9\nkv-cache-dtype: fp8\nkv-cache-dtype: auto\n")

    command = only(str(path))

    assert any("kv-cache-dtype stands twice" in note and "line 3" in note for note in command.notes)


def test_a_tag_constructs_nothing(tmp_path: Path) -> None:
    """Scalars stay text, whatever tag or form they have."""
    (root,) = yaml_documents("a: !!python/name:os.system x\nb: 2020-99-99\nc: 0x" + "f" * 5000 + "\n", "t")

    assert root.scalar("a") == "x" and root.scalar("b") == "2020-99-99"
