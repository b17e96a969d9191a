"""One wrong command in the many clothes that people give it: shells, files, manifests. The same finding in each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.lint.run import Options, lint

WRONG = "vllm-backend-dtype"
BAD = "--kv-cache-dtype fp8_e5m2 --attention-backend FLASH_ATTN"
SERVE = f"vllm serve Qwen/Qwen3-32B {BAD}"
LINES = SERVE.replace(" --", " \\\n  --")
V_OFF = "llama-v-needs-flash-attention"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen3-32B --kv_cache_dtype=fp8_e5m2 --attention_backend=FLASH_ATTN",
        "vllm serve 'Qwen/Qwen3-32B' --kv-cache-dtype \"fp8_e5m2\" --attention-backend 'FLASH_ATTN'",
        f"# start\n{LINES} # fast\n",
        "vllm serve Qwen/Qwen3-32B `\n  --kv-cache-dtype fp8_e5m2 `\n  --attention-backend FLASH_ATTN\n",
        "vllm serve Qwen/Qwen3-32B `\r\n  --kv-cache-dtype fp8_e5m2 `\r\n  --attention-backend FLASH_ATTN\r\n",
        "vllm serve Qwen/Qwen3-32B ^\n  --kv-cache-dtype fp8_e5m2 ^\n  --attention-backend FLASH_ATTN\n",
        f"$env:VLLM_LOGGING_LEVEL='INFO'; {SERVE}",
        f"cd /x && source venv/bin/activate && {SERVE}",
        f"bash -lc '{SERVE}'",
        f"ssh host '{SERVE}'",
        f"tmux new-session -d -s x '{SERVE}'",
        f"nohup {SERVE} > log 2>&1 &",
        f"srun --gres=gpu:1 {SERVE}",
        f"kubectl run v --image=vllm/vllm-openai:v0.32.0 -- --model Qwen/Qwen3-32B {BAD}",
        f"docker run --gpus all vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-32B {BAD}",
        f"$ {SERVE}",
        f"```bash\n{SERVE}\n```",
        f"serve:\n\t{SERVE}\n",
        'KV="--kv-cache-dtype fp8_e5m2"\nvllm serve Qwen/Qwen3-32B $KV --attention-backend FLASH_ATTN',
        f'ARGS=(\n  # cache\n  {BAD.replace(" --", chr(10) + "  --")}\n)\nvllm serve Qwen/Qwen3-32B "${{ARGS[@]}}"',
        "A=(--kv-cache-dtype fp8_e5m2)\nA+=(--attention-backend FLASH_ATTN)\nvllm serve Qwen/Qwen3-32B ${A[@]}",
        json.dumps(["vllm", *SERVE.split()[1:]]),
    ],
)
def test_a_wrong_command_is_wrong_in_every_shell(text: str) -> None:
    """Quotes, continuations of three shells, wrappers, variables and arrays change nothing."""
    assert WRONG in {f.id for f in lint(text).findings}


KUBE = """apiVersion: apps/v1
kind: Deployment
metadata: {name: v}
spec:
  template:
    spec:
      containers:
      - name: v
        image: vllm/vllm-openai:v0.32.0
"""
COMPOSE = "services:\n  v:\n    image: vllm/vllm-openai:v0.32.0\n    command: "
WORDS = json.dumps(["Qwen/Qwen3-32B", *BAD.split()])
ALL = json.dumps(SERVE.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", ALL),
        ("Dockerfile", f"FROM vllm/vllm-openai:v0.32.0\nENV A=b\nCMD {ALL}\n"),
        ("Dockerfile", f'FROM vllm/vllm-openai:v0.32.0\nENTRYPOINT ["vllm", "serve"]\nCMD {WORDS}\n'),
        ("Dockerfile", f'FROM vllm/vllm-openai:v0.32.0\nCMD ["--model", {WORDS[1:]}\n'),
        ("Dockerfile", "FROM x\nCMD {}\n".format(ALL.replace(", ", ", \\\n  # why\n  "))),
        ("Dockerfile", f"FROM x AS build\nRUN make\nFROM x\nCMD {SERVE}\n"),
        ("Dockerfile", f'FROM vllm/vllm-openai AS b\nENTRYPOINT ["vllm", "serve"]\nFROM b\nCMD {WORDS}\n'),
        (
            "v.service",
            f'[Service]\nEnvironment="A=1"\nExecStart=/usr/bin/env {LINES}\n',
        ),
        ("compose.yaml", f"{COMPOSE}--model Qwen/Qwen3-32B {BAD}\n"),
        ("compose.yaml", f"{COMPOSE}>\n      --model Qwen/Qwen3-32B\n      {BAD}\n"),
        ("compose.yaml", f"{COMPOSE}|\n      --model Qwen/Qwen3-32B\n      {BAD}\n"),
        (
            "compose.yaml",
            f'x: &a\n  image: vllm/vllm-openai\nservices:\n  v:\n    <<: *a\n    command: ["--model", {WORDS[1:]}\n',
        ),
        ("pod.yaml", f'{KUBE}        args: ["--model", {WORDS[1:]}\n'),
        ("pod.yaml", f'{KUBE}        command: ["/bin/sh", "-c"]\n        args:\n        - |\n          {SERVE}\n'),
        ("start.ps1", "vllm serve Qwen/Qwen3-32B `\n {}\n".format(BAD.replace(" --", " `\n --"))),
    ],
)
def test_a_wrong_command_is_wrong_in_every_file(tmp_path: Path, name: str, text: str) -> None:
    """Files of Docker, systemd, Compose, Kubernetes and PowerShell start the same command."""
    path = tmp_path / name
    path.write_text(text)

    found = [f for f in lint(str(path)).findings if f.id == WRONG]

    assert len(found) == 1 and found[0].where.file == str(path)


@pytest.mark.parametrize(
    "text",
    [
        "LLAMA_ARG_CACHE_TYPE_V=q8_0 LLAMA_ARG_FLASH_ATTN=off llama-server -m x.gguf",
        '$env:LLAMA_ARG_CACHE_TYPE_V = "q8_0"\n$env:LLAMA_ARG_FLASH_ATTN="off"\n.\\llama-server.exe -m x.gguf',
        "set LLAMA_ARG_CACHE_TYPE_V=q8_0\nset LLAMA_ARG_FLASH_ATTN=off\nllama-server.exe -m x.gguf",
        "C:\\llama\\llama-server.exe -m C:\\m\\x.gguf -ctv q8_0 -fa off",
        '"C:\\Program Files\\llama\\llama-server.exe" -m x.gguf -ctv q8_0 -fa off',
        "FROM x\nENV LLAMA_ARG_CACHE_TYPE_V q8_0\nENV LLAMA_ARG_FLASH_ATTN off\nCMD llama-server -m /m.gguf\n",
        "FROM ghcr.io/ggml-org/llama.cpp:server\nENV LLAMA_ARG_CACHE_TYPE_V=q8_0 LLAMA_ARG_FLASH_ATTN=off\n",
    ],
)
def test_variables_of_every_shell_reach_llama_cpp(text: str) -> None:
    """Settings by variable count in sh, PowerShell, cmd and Docker; so do paths with backslashes."""
    assert V_OFF in {f.id for f in lint(text).findings}


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ('M="a b"\nvllm serve "$M" --kv-cache-dtype fp8', "a b"),
        ("M='x y'\nvllm serve '$M' --kv-cache-dtype fp8", "$M"),
        ("EMPTY=\nvllm serve $EMPTY Qwen/Qwen3-32B --kv-cache-dtype fp8", "Qwen/Qwen3-32B"),
        ("vllm serve C:\\models\\Qwen3 --kv-cache-dtype fp8", "C:/models/Qwen3"),
        ("vllm serve a\\ b --kv-cache-dtype fp8", "a b"),
        ("vllm serve `cat m` --kv-cache-dtype fp8", None),
    ],
)
def test_words_are_split_as_a_shell_splits_them(text: str, model: str | None) -> None:
    """A quoted variable is one word, an unquoted one is split, an empty one is none; what nobody knows is no model."""
    from kvgate.lint.read.source import read

    assert read(text).commands[0].get("model") == model


def test_arguments_that_cannot_be_seen_are_told() -> None:
    """A variable that may hold options is no silence."""
    for text in ("vllm serve Qwen/Qwen3-32B $EXTRA", 'vllm serve Qwen/Qwen3-32B "${EXTRA[@]}"', "llama-server $ARGS"):
        assert {f.id: f.severity for f in lint(text).findings} == {"value-not-readable": "warning"}, text
    for text in ('vllm serve "$MODEL"', "vllm serve $MODEL --port $PORT", "sglang serve --model-path $M --tp $N"):
        assert not lint(text).findings, text


def test_a_dockerfile_that_starts_nothing_and_an_entrypoint_in_shell_form(tmp_path: Path) -> None:
    """CMD is ignored behind an ENTRYPOINT in shell form, and replaced by a later one; a build alone starts nothing."""
    shell = lint(f"FROM x\nENTRYPOINT vllm serve Qwen/Qwen3-32B\nCMD {json.dumps(BAD.split())}\n")
    later = lint(f"FROM x\nCMD {SERVE}\nCMD vllm serve Qwen/Qwen3-32B\n")

    assert not shell.findings and not later.findings
    with pytest.raises(UserError, match="starts no engine"):
        lint("FROM python:3.12\nRUN pip install vllm\n")


@pytest.mark.parametrize(("body", "words"), [("[1, 2]", "JSON list"), ('[{"a": 1}]', "JSON list"), ("[", "JSON list")])
def test_a_list_that_is_no_command(tmp_path: Path, body: str, words: str) -> None:
    """A JSON list of anything else is said to be none, in one line."""
    path = tmp_path / "a.json"
    path.write_text(body)

    with pytest.raises(UserError, match=words):
        lint(str(path), Options())


def test_a_template_is_named_as_one(tmp_path: Path) -> None:
    """An unquoted Helm value is no YAML that can be read: the message says to render it."""
    path = tmp_path / "t.yaml"
    path.write_text(f"{KUBE}        args:\n        - --model\n        - {{{{ .Values.model }}}}\n")

    with pytest.raises(UserError, match=r"line 12: .*template.*render"):
        lint(str(path))
