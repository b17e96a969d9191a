"""Which engine a command or an image starts. Words only; nothing is looked up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.lint.command import Word

#: What lint knows rules about. The last four are no engines of kvgate: they calibrate, or carry another's engine.
ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp", "modelopt", "lmdeploy", "ollama")
_ALIASES = {
    "llama.cpp": "llama_cpp",
    "llamacpp": "llama_cpp",
    "llama-cpp": "llama_cpp",
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "trt-llm": "trtllm",
}
_MODULES = (
    (re.compile(r"vllm\.entrypoints\.(openai\.)?(api_server|cli\.main)|vllm"), "vllm"),
    (re.compile(r"sglang\.(launch_server|bench_one_batch(_server)?|bench_offline_throughput|srt\.server)"), "sglang"),
    (re.compile(r"tensorrt_llm\.commands\.(serve|bench)"), "trtllm"),
    (re.compile(r"lmdeploy"), "lmdeploy"),
)
_PROGRAMS = (
    (re.compile(r"vllm"), "vllm"),
    (re.compile(r"sglang"), "sglang"),
    (re.compile(r"trtllm-(serve|bench|eval|llmapi-launch)"), "trtllm"),
    (re.compile(r"llama-[a-z0-9-]+(\.exe)?"), "llama_cpp"),
    (re.compile(r"hf_ptq\.py|huggingface_example\.sh"), "modelopt"),
    (re.compile(r"lmdeploy"), "lmdeploy"),
    (re.compile(r"ollama"), "ollama"),
)
#: Sub-commands that talk to a server and start none.
_CLIENTS = {"vllm": {"chat", "complete", "collect-env"}, "ollama": {"list", "ps", "pull", "show"}}
_SUBCOMMANDS = {
    "vllm": {"serve", "bench", "run-batch", "latency", "throughput"},
    "sglang": {"serve", "generate"},
    "trtllm": {"serve", "disaggregated", "throughput", "latency"},
    "lmdeploy": {"serve", "api_server", "chat"},
    "ollama": {"serve", "run"},
}
#: Programs that start the next word with all the words behind it as they are.
_HANDS_WORDS_ON = {"exec", "nohup", "env", "sudo", "time", "command"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"python[0-9.]*(\.exe)?")
#: Other people's programs are called llama-something too: llama-swap, llama-stack.
_LLAMA_OWN = re.compile(
    r"llama-(server|cli|completion|bench|batched-bench|perplexity|speculative|mtmd-cli|imatrix|parallel)(\.exe)?"
)
_IMAGES = (
    (re.compile(r"(^|/)(vllm(-openai)?([-_](cpu|rocm|xpu|openai|tpu))*|vllm-[a-z0-9-]+)(:|@|$)"), "vllm"),
    (re.compile(r"(^|/)sglang([-_][a-z0-9]+)*(:|@|$)"), "sglang"),
    (re.compile(r"(^|/)(tensorrt-llm(/release|/devel)?|tensorrt_llm)(:|@|$)"), "trtllm"),
    (re.compile(r"(^|/)llama\.cpp(:|@|$)"), "llama_cpp"),
    (re.compile(r"(^|/)ollama(:|@|$)"), "ollama"),
)
_TAG_VERSION = re.compile(r"(?:^|[-_])v?(\d+\.\d+(?:\.\d+)?(?:rc\d+)?)(?:[-_.].*)?$")
_TAG_BUILD = re.compile(r"(?:^|[-_])(b\d{3,6})(?:[-_].*)?$")


@dataclass(frozen=True, slots=True)
class Image:
    """An engine's container image."""

    engine: str
    version: str = ""
    vendor: str = ""


def engine_word(text: str) -> str:
    """The id behind a word of --engine.

    Raises:
        UserError: no such engine.
    """
    word = text.strip().lower()
    found = _ALIASES.get(word, word)
    if found not in ENGINES:
        raise UserError(f"unknown engine {text[:40]!r}", allowed=ENGINES)
    return found


def image_of(name: str) -> Image | None:
    """The engine of an image's name, with the version in its tag; None for any other image."""
    text = name.strip().lower()
    engine = next((e for pattern, e in _IMAGES if pattern.search(text)), None)
    if engine is None:
        return None
    tag = text.rsplit(":", 1)[1] if ":" in text.rsplit("/", 1)[-1] else ""
    match = (_TAG_BUILD if engine == "llama_cpp" else _TAG_VERSION).search(tag)
    vendor = "amd" if "rocm" in text else "cpu" if re.search(r"[-_:]cpu($|[-_:])", text) else ""
    return Image(engine, match[1] if match else "", vendor)


def find_engine(words: Sequence[Word]) -> tuple[str, str, int] | None:
    """Engine, program and the index of the first word behind it; None if none of the words starts one."""
    for at, word in enumerate(words):
        name = word.text.replace("\\", "/").rsplit("/", 1)[-1]
        engine = None
        if at and words[at - 1].text == "-m":
            engine = next((e for pattern, e in _MODULES if pattern.fullmatch(word.text)), None)
        if engine is None and not word.opaque:
            engine = next((e for pattern, e in _PROGRAMS if pattern.fullmatch(name)), None)
            # `pip install vllm` and `--runner vllm` name it without starting it.
            if engine in _SUBCOMMANDS and not _starts(words, at, engine):
                engine = None
        if engine is None:
            continue
        first = at + 1
        while first < len(words) and words[first].text in _SUBCOMMANDS.get(engine, ()):
            if engine == "vllm" and words[first].text == "bench" and _text(words, first + 1) == "serve":
                return None
            first += 1
        if _text(words, at + 1) in _CLIENTS.get(engine, ()):
            return None
        return engine, name, first
    return None


def is_bare(words: Sequence[Word], program: str) -> bool:
    """Whether the engine's own program gets the words as they stand: none before it could drop or change some."""
    if program.startswith("llama-") and not _LLAMA_OWN.fullmatch(program):
        return False
    names = [w.text.replace("\\", "/").rsplit("/", 1)[-1] for w in words]
    at = 0
    while at < len(words) and (names[at] in _HANDS_WORDS_ON or _ASSIGNMENT.fullmatch(words[at].text)):
        at += 1
    if at < len(words) and _PYTHON.fullmatch(names[at]):
        at += 1
        while _text(words, at) in ("-u", "-O", "-m"):
            at += 1
    return at < len(words) and names[at] == program and not words[at].opaque


def _starts(words: Sequence[Word], at: int, engine: str) -> bool:
    name = words[at].text.rsplit("/", 1)[-1]
    if "-" in name:
        return True
    return _text(words, at + 1) in (_SUBCOMMANDS[engine] | _CLIENTS.get(engine, set()))


def _text(words: Sequence[Word], at: int) -> str:
    return words[at].text if at < len(words) else ""
