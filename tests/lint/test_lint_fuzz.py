"""Readers and rules on arbitrary text: an answer or one line, never another exception."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import load
from kvgate.lint.command import Place
from kvgate.lint.read.argv import command_of
from kvgate.lint.read.manifests import commands_in
from kvgate.lint.read.shell import commands_of
from kvgate.lint.read.yaml_tree import json_node, yaml_documents
from kvgate.lint.run import Options, lint

FLAGS = sorted(
    {n for e in ("vllm", "sglang", "trtllm", "llama_cpp") for f in load(e).flag for n in (f.name, *f.aliases) if n}
)
WORDS = st.sampled_from(
    [
        "vllm",
        "serve",
        "sglang",
        "llama-server",
        "trtllm-serve",
        "fp8",
        "auto",
        "q8_0",
        "-1",
        "{}",
        "$X",
        "a=b",
        "",
        "-",
        "--",
    ]
)
SHELL = st.text(st.sampled_from(list("ab -=_'\"\\$`(){}<>|&;#\n\té\0")), max_size=120)
YAML = st.text(st.sampled_from(list("ab:-[]{}&*!#'\"|>? \n<0")), max_size=120)
TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["services", "image", "command", "args", "env", "kv_cache_config", "dtype", "x", "kind", "apiVersion"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(SHELL)
def test_any_shell_text(text: str) -> None:
    """Splitting ends, and every word of a command is known by its line."""
    try:
        for _, words in commands_of(text):
            assert words and all(1 <= w.line <= text.count("\n") + 1 for w in words)
    except UserError as e:
        assert "\n" not in str(e)


@QUIET
@given(
    st.lists(WORDS | st.sampled_from(FLAGS) | st.text(max_size=6), max_size=12), st.sampled_from(["h100", "mi300x", ""])
)
def test_any_words_of_a_command(words: list[str], device: str) -> None:
    """Whatever follows the program, every rule answers."""
    import shlex

    text = "vllm serve openai/gpt-oss-20b " + " ".join(shlex.quote(w) for w in words)
    try:
        report = lint(text, Options(device=device))
    except UserError as e:
        assert "\n" not in str(e)
        return
    assert report.exit_code == int(any(f.severity == "error" for f in report.findings))


@QUIET
@given(YAML)
def test_any_yaml(text: str) -> None:
    """A tree or one line."""
    try:
        for root in yaml_documents(text, "x.yaml"):
            commands_in(root, "x.yaml")
    except UserError as e:
        assert "\n" not in str(e)


@QUIET
@given(TREE, st.sampled_from(["", "vllm", "sglang", "trtllm"]))
def test_any_tree(tree: object, engine: str) -> None:
    """Manifests of any shape give commands or one line."""
    try:
        commands_in(json_node(tree), "x.json", engine)
    except UserError as e:
        assert "\n" not in str(e)


@QUIET
@given(tree=TREE)
def test_any_scales_file(tmp_path: Path, tree: object) -> None:
    """A scales file of any shape is told about, not run into."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"kv_cache": tree if isinstance(tree, dict) else {"scaling_factor": {"0": tree}}}))

    report = lint(str(path), Options(engine="sglang"))

    assert report.exit_code == 1


@QUIET
@given(st.lists(WORDS, max_size=8), st.sampled_from(["vllm", "ollama", "modelopt"]))
def test_arguments_alone(words: list[str], engine: str) -> None:
    """With --engine, arguments alone are a command or none."""
    from kvgate.lint.command import Word

    command = command_of([Word(w, 1) for w in words], {}, Place(), engine)

    assert command is None or command.engine
