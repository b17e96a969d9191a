"""Words of a command -> settings, spelled as the engine's own parser would take them.

vLLM's parser takes "_" for "-" in a name up to its first dot, llama.cpp's in a name behind "--"; for the others that is
not known, so a name that fits only so is marked. vLLM's and SGLang's parsers are argparse's: the beginning of an
option's name that no other shares is that option. Values are not checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import EngineFacts, FlagRow, load
from kvgate.lint.command import ON, Command, Place, Setting, Word
from kvgate.lint.read.programs import Image, find_engine, image_of, is_bare
from kvgate.lint.read.shell import commands_of

_FACTS = ("vllm", "sglang", "trtllm", "llama_cpp")
#: Engines that take the model as a word without an option.
_POSITIONAL = ("vllm", "trtllm", "lmdeploy", "sglang")
#: Names of variables that hold options rather than a model.
_ARGUMENTS = re.compile(r"ARG|OPT|FLAG|EXTRA|PARAM|@|\*", re.IGNORECASE)
#: Key of a word that may hold options nobody here can see: `$ARGS`.
UNREAD = "unread_words"
#: Key of a word that is blank: a backslash with a blank behind it.
BLANK = "blank_word"
#: Programs that speak of a command and start none.
_SPEAKS = {"echo", "printf", "man", "which", "type", "alias", "grep", "pkill", "pgrep"}
#: Engines whose options argparse reads. TensorRT-LLM's reader is click, which takes whole names only.
_ARGPARSE = ("vllm", "sglang")
#: `--tp` is the shortest beginning that people write.
_MIN_SHORT = 4
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_MAX_NESTING = 3
_MAX_JSON_CHARS = 32_768
_ENV_OPTION = re.compile(r"--env=(.*)|-e(.+)", re.DOTALL)
_SHELLS = {"sh", "bash", "zsh", "dash", "ash"}
#: Programs that hand one word on to a shell, here or elsewhere.
_HANDS_ON = {"ssh", "tmux", "screen", "su", "wsl", "watch", "script"}
_CONTAINERS = {"docker", "podman", "nerdctl"}


def facts_of(engine: str) -> EngineFacts | None:
    """Facts, where this engine has a file of them."""
    return load(engine) if engine in _FACTS else None


def command_of(words: Sequence[Word], env: Mapping[str, str], place: Place, engine: str = "") -> Command | None:
    """The start of an engine that a simple command is; None if it is none.

    Args:
        engine: what the person said; arguments alone are then enough.
    """
    return _command_of(tuple(words), dict(env), place, engine, 0)


def _command_of(words: tuple[Word, ...], env: dict[str, str], place: Place, engine: str, depth: int) -> Command | None:
    name = words[0].text.rsplit("/", 1)[-1] if words else ""
    if name in _SHELLS and depth < _MAX_NESTING:
        inner = _shell_text(words)
        if inner is not None:
            return _inside_shell(inner, env, place, engine, depth)
    at = next((i for i, w in enumerate(words) if w.text in _CONTAINERS), None)
    if at is not None and at + 1 < len(words) and words[at + 1].text in ("run", "create"):
        return _of_container(words[at + 2 :], env, place, engine, depth)
    if name in _SPEAKS:
        return None
    if name in _HANDS_ON and depth < _MAX_NESTING and any(c.isspace() for c in words[-1].text):
        return _inside_shell(words[-1], env, place, engine, depth)
    if name in ("kubectl", "oc") and any(w.text == "run" for w in words[1:3]):
        return _of_kubectl(words, env, place, depth)
    found = find_engine(words)
    if found is not None:
        own, program, first = found
        prefix = {m[0]: m[2] for w in words[:first] if (m := w.text.partition("="))[1] and not w.text.startswith("-")}
        made = build(own, program, words[first:], {**env, **prefix}, place)
        return replace(made, bare=is_bare(words, program))
    if engine and words:
        first = (
            0
            if words[0].text.startswith("-")
            else next((i for i, w in enumerate(words) if w.text.startswith("-")), len(words))
        )
        if first < len(words) or any(k.startswith(("LLAMA_", "OLLAMA_", "VLLM_", "SGLANG_")) for k in env):
            return build(engine, "", words[first:], env, place)
    return None


def _shell_text(words: tuple[Word, ...]) -> Word | None:
    """The script of `sh -c SCRIPT`."""
    for at, word in enumerate(words[1:-1], 1):
        if re.fullmatch(r"-[a-z]*c", word.text):
            return words[at + 1]
    return None


def _inside_shell(inner: Word, env: dict[str, str], place: Place, engine: str, depth: int) -> Command | None:
    where = Place(place.file, inner.line or place.line, place.field)
    for own, words in commands_of(inner.text):
        moved = tuple(Word(w.text, max(inner.line, 1) + w.line - 1, w.opaque) for w in words)
        found = _command_of(moved, {**env, **own}, where, engine, depth + 1)
        if found is not None:
            return found
    return None


def _of_container(
    words: tuple[Word, ...], env: dict[str, str], place: Place, engine: str, depth: int
) -> Command | None:
    """`docker run [options] IMAGE [arguments]`; options are not known one by one, so the image is found by its name."""
    own = dict(env)
    for at, word in enumerate(words):
        match = _ENV_OPTION.fullmatch(word.text)
        pair = (match[1] or match[2]) if match else ""
        if word.text in ("-e", "--env") and at + 1 < len(words):
            pair = words[at + 1].text
        name, equals, value = pair.partition("=")
        if equals:
            own[name] = value
        image = (
            image_of(word.text) if not word.text.startswith("-") and (":" in word.text or "/" in word.text) else None
        )
        if image is None or (at and words[at - 1].text in ("-v", "--volume", "--mount", "--name", "-e", "--env")):
            continue
        entry = next((w.text for i, w in enumerate(words[1:at], 1) if words[i - 1].text == "--entrypoint"), "")
        rest = words[at + 1 :]
        inner = _command_of((Word(entry, word.line), *rest) if entry else rest, own, place, "", depth + 1)
        found = inner or build(image.engine, "", rest, own, place)
        return with_image(found, word.text, image)
    return None


def _of_kubectl(words: tuple[Word, ...], env: dict[str, str], place: Place, depth: int) -> Command | None:
    """`kubectl run NAME --image=IMAGE -- arguments`."""
    texts = [w.text for w in words]
    joined = [t.partition("=")[2] for t in texts if t.startswith("--image=")]
    apart = [after for before, after in pairwise(texts) if before == "--image"]
    name = next(iter((*joined, *apart)), "")
    own = {**env, **{m[0]: m[2] for t in texts if t.startswith("--env=") and (m := t[6:].partition("="))[1]}}
    rest = words[texts.index("--") + 1 :] if "--" in texts else ()
    image = image_of(name)
    inner = _command_of(rest, own, place, "", depth + 1) if rest else None
    if image is None:
        return inner
    return with_image(inner or build(image.engine, "", rest, own, place), name, image)


def with_image(command: Command, name: str, image: Image) -> Command:
    """The command, with what its image's tag says."""
    version, vendor = command.version or image.version, command.vendor or image.vendor
    return replace(command, image=name, version=version, vendor=vendor)


def build(engine: str, program: str, words: Sequence[Word], env: Mapping[str, str], place: Place) -> Command:
    """A command from the words behind its program."""
    settings = parse(engine, words, place)
    return Command(engine, program, (*_from_env(engine, env, place), *settings), dict(env), place)


def parse(engine: str, words: Sequence[Word], place: Place) -> tuple[Setting, ...]:
    """Settings in order; a word before the first option is the model where the engine takes it so."""
    found: list[Setting] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_option(word):
            where = Place(place.file, word.line or place.line, place.field)
            if word.text and not word.text.strip():
                found.append(Setting(BLANK, word.text, word.text, where))
                continue
            has_model = any(s.key == "model" for s in found) or engine not in _POSITIONAL
            if word.opaque and (has_model or (word.whole and _ARGUMENTS.search(word.text))):
                found.append(Setting(UNREAD, word.text, word.text, where, opaque=True))
                continue
            if not has_model:
                found.append(Setting("model", word.text, word.text, where, "MODEL", opaque=word.opaque))
            continue
        name, equals, value = word.text.partition("=")
        row, odd, sub = flag_row(engine, name)
        values = [Word(value, word.line, word.opaque)] if equals else []
        if not equals:
            takes = row.takes if row is not None else "maybe"
            while takes != "switch" and at < len(words) and not _is_option(words[at]):
                values.append(words[at])
                at += 1
                if takes != "list":
                    break
        made = settings_of(engine, name, row, odd, sub, values, Place(place.file, word.line or place.line, name))
        found += [replace(s, glued=True) for s in made] if equals else made
    return tuple(found)


def _is_option(word: Word) -> bool:
    text = word.text
    return len(text) > 1 and text[0] == "-" and not _NUMBER.fullmatch(text) and text[1] not in "{["


def settings_of(
    engine: str,
    written: str,
    row: FlagRow | None,
    odd: bool,
    sub: str,
    values: Sequence[Word],
    place: Place,
    origin: str = "argv",
) -> list[Setting]:
    """One option as settings; the parts of a JSON value follow it, as `key.part`."""
    name = row.name or row.file if row is not None else ""
    key = row.key if row is not None else written.lstrip("-").replace("-", "_")
    value = " ".join(w.text for w in values) if values else ON
    opaque = any(w.opaque for w in values)
    if sub:
        key = f"{key}.{sub.replace('-', '_')}"
    if row is not None and not row.name.startswith("--no-") and _plain(written).startswith("--no-"):
        key = f"no_{key}"
    unset = not opaque and not any(w.text for w in values)
    found = [Setting(key, written, value, place, name, origin, opaque, odd, unset=unset)]
    if value.startswith("{") and not opaque:
        found += [Setting(f"{key}.{k}", written, v, place, name, origin) for k, v in _json_parts(value)]
    return found


def _json_parts(text: str) -> list[tuple[str, str]]:
    if len(text) > _MAX_JSON_CHARS:
        return []
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(body, dict):
        return []
    return [
        (k.replace("-", "_"), v if isinstance(v, str) else json.dumps(v))
        for k, v in list(body.items())[:200]
        if not isinstance(v, (dict, list)) or len(str(v)) < _MAX_JSON_CHARS
    ]


def flag_row(engine: str, name: str) -> tuple[FlagRow | None, bool, str]:
    """The fact behind a name as written; whether it fits only with "_" and "-" changed; the part behind a dot."""
    facts = facts_of(engine)
    if facts is None:
        return None, False, ""
    head, _, sub = name.partition(".")
    table = _flag_table(engine)
    if head in table:
        return table[head], False, sub
    plain = _plain(head)
    if plain in (folded := _folded_table(engine)) and head.startswith("-"):
        return folded[plain], facts.underscores != "same", sub
    return abbreviated(engine, plain if facts.underscores == "same" else head), False, sub


def abbreviated(engine: str, head: str) -> FlagRow | None:
    """The option that argparse takes a shortened name for; None where two would fit, or the parser takes none.

    Only options in the facts are known, so that a name another option shares is read as the one that is in them.
    """
    if engine not in _ARGPARSE or not head.startswith("--") or len(head) < _MIN_SHORT:
        return None
    fits = {id(row): row for name, row in _flag_table(engine).items() if name.startswith(head)}
    return next(iter(fits.values())) if len(fits) == 1 else None


def is_whole_name(engine: str, name: str) -> bool:
    """Whether an option is written out, in either spelling of its dashes."""
    return name in _flag_table(engine) or _plain(name) in _folded_table(engine)


@cache
def _flag_table(engine: str) -> Mapping[str, FlagRow]:
    facts = facts_of(engine)
    return {n: row for row in facts.flag for n in (row.name, *row.aliases) if n} if facts else {}


@cache
def _folded_table(engine: str) -> Mapping[str, FlagRow]:
    return {_plain(name): row for name, row in _flag_table(engine).items()}


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _from_env(engine: str, env: Mapping[str, str], place: Place) -> list[Setting]:
    """Settings that a variable makes."""
    facts = facts_of(engine)
    rows = facts.flag if facts else ()
    found = [
        Setting(row.key, row.env, env[row.env], place.at(row.env), row.name, "env") for row in rows if row.env in env
    ]
    if engine == "ollama" and "OLLAMA_KV_CACHE_TYPE" in env:
        value = env["OLLAMA_KV_CACHE_TYPE"]
        where = place.at("OLLAMA_KV_CACHE_TYPE")
        found += [Setting(k, "OLLAMA_KV_CACHE_TYPE", value, where, k, "env") for k in ("k_dtype", "v_dtype")]
    return found


def commands_in_shell(text: str, file: str, engine: str) -> list[Command]:
    """All starts of engines in a shell text.

    Raises:
        UserError: it cannot be split into words.
    """
    found = []
    for env, words in commands_of(text):
        command = command_of(words, env, Place(file, words[0].line), engine)
        if command is not None:
            found.append(command)
    if not found and not engine:
        return []
    return found


def need_engine(what: str) -> UserError:
    """What to say where nothing starts an engine that lint knows."""
    return UserError(
        f"{what} starts no engine that lint knows",
        allowed=("vllm serve", "sglang.launch_server", "trtllm-serve", "llama-server", "ollama serve", "hf_ptq.py"),
        fix="give the whole command, or add --engine",
    )
