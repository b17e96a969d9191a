"""Splits shell text into simple commands, as a shell would, without running or expanding anything.

Quotes, backslashes, line continuations, comments, here-documents, `;`, `&`, `|`, `&&`, `||` and redirections are
understood. A variable is replaced only where the same text assigns it a literal or an array; unquoted and alone it is
split at blanks. Any other `$`, backtick or template makes the word opaque. PowerShell's and cmd's line continuations,
their variables and paths with backslashes are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kvgate.core.errors import UserError
from kvgate.lint.command import Word

#: Bytes of a script, words of a text, characters of one word.
MAX_BYTES, MAX_WORDS, MAX_CHARS = 512 << 10, 20_000, 65_536
_OPERATORS = ";&|()\n"
_PLACEHOLDER = re.compile(r"<[A-Za-z][A-Za-z0-9_ .-]{0,60}>")
_REDIRECT = re.compile(r"\d*(>>?|<|>&|<&|&>>?)\S*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[$\ue001](?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
#: Stands in a word for a dollar sign that the text protects, so that it is not taken for a variable.
_PLAIN_DOLLAR = "\ue000"
#: Stands for a dollar sign inside double quotes, where a value is not split into words.
_QUOTED_DOLLAR = "\ue001"
#: Begins an array's value, and stands between its words.
_ARRAY = "\ue002"
_ARRAY_START = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_ARRAY_APPEND = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+=(.*)", re.DOTALL)
_ALONE = re.compile(r"[$\ue001](?:\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?\}|([A-Za-z_][A-Za-z0-9_]*))")
_POWERSHELL = re.compile(r"\$env:([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?", re.DOTALL)
_WINDOWS_PATH = re.compile(r"(?:[A-Za-z]:|\.{1,2})\\[^\s\"'`|&;<>]*")
_MAX_SPLIT = 2_000
_KEYWORDS = ("do", "then", "else", "if", "while", "until", "time", "!", "{", "done", "fi", "}")
#: Values of one loop that are looked at.
_MAX_TURNS = 16
_OPAQUE = re.compile(r"[$`\ue001]|\{\{")


def commands_of(text: str) -> list[tuple[dict[str, str], list[Word]]]:
    """Simple commands with the variables that hold for them (`A=b cmd`, `export A=b`).

    Raises:
        UserError: a quote that is not closed, or too much text.
    """
    if len(text) > MAX_BYTES:
        raise UserError(f"the text has {len(text):,} characters", fix=f"lint reads at most {MAX_BYTES:,}")
    exported: dict[str, str] = {}
    known: dict[str, str] = {}
    found = []
    loops: dict[str, tuple[str, ...]] = {}
    for raw in _loops_unrolled(_split(text), loops):
        words = [part for w in raw for part in _words_of(w, known)]
        if words and (match := _POWERSHELL.fullmatch(words[0].text)):
            value = match[2] if match[2] is not None else " ".join(w.text for w in words[2:3])
            if match[2] is not None or (len(words) > 2 and words[1].text == "="):
                known[match[1]] = exported[match[1]] = value
            continue
        if raw and (match := _ARRAY_APPEND.fullmatch(raw[0].text)):
            known[match[1]] = known.get(match[1], "") + match[2]
            continue
        own: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0].text)):
            if not words[0].opaque:
                own[match[1]] = match[2]
            words = words[1:]
        if not words:
            known |= own
            exported |= {k: v for k, v in own.items() if k in exported}
            continue
        if words[0].text in ("export", "declare", "local", "set", "readonly"):
            for word in words[1:]:
                if (match := _ASSIGNMENT.fullmatch(word.text)) and not word.opaque:
                    known[match[1]] = exported[match[1]] = match[2]
            continue
        found.append(({**exported, **own}, words))
    return found


def _loops_unrolled(parts: Iterator[list[Word]], loops: dict[str, tuple[str, ...]]) -> Iterator[list[Word]]:
    """`for NAME in A B; do CMD $NAME; done` is CMD A and CMD B; keywords in front of a command are taken away."""
    for given in parts:
        words = given
        if words[0].text == "for" and len(words) > 3 and words[2].text == "in":
            loops[words[1].text] = tuple(w.text for w in words[3 : 3 + _MAX_TURNS])
            continue
        while words and words[0].text in _KEYWORDS:
            words = words[1:]
        if not words:
            continue
        used = next((n for n in loops if any(n in _names(w.text) for w in words)), None)
        if used is None:
            yield words
            continue
        for value in loops[used]:
            yield [Word(_put_in(w.text, used, value), w.line, w.opaque) for w in words]


def _put_in(text: str, name: str, value: str) -> str:
    return _VARIABLE.sub(lambda m: value if name in (m[1], m[2]) else m[0], text)[:MAX_CHARS]


def _names(text: str) -> set[str]:
    return {m[1] or m[2] for m in _VARIABLE.finditer(text)}


def _words_of(word: Word, known: Mapping[str, str]) -> list[Word]:
    """A word with its variables put in; one that is a variable alone becomes the words of its value."""
    match = _ALONE.fullmatch(word.text)
    value = known.get(match[1] or match[2]) if match else None
    if value is None:
        return [_expanded(word, known)]
    if value.startswith(_ARRAY):
        parts = value.split(_ARRAY)[1:]
    elif word.text.startswith("$"):
        parts = value.split()
    else:
        return [_expanded(word, known)]
    return [_expanded(Word(part, word.line), known) for part in parts[:_MAX_SPLIT]]


def _expanded(word: Word, known: Mapping[str, str]) -> Word:
    alone = _ALONE.fullmatch(word.text)
    whole = bool(alone) and (word.text.startswith("$") or "[@]" in word.text)
    text = word.text.replace(_QUOTED_DOLLAR, "$")
    if "$" in text:
        text = _VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[0]).lstrip(_ARRAY), text)[:MAX_CHARS]
    opaque = bool(_OPAQUE.search(text))
    return Word(text.replace(_PLAIN_DOLLAR, "$"), word.line, opaque, opaque and whole)


def _split(text: str) -> Iterator[list[Word]]:
    """Words of each simple command."""
    words: list[Word] = []
    count = 0
    for token in _tokens(text):
        if token is None:
            if words:
                yield words
            words = []
            continue
        count += 1
        if count > MAX_WORDS:
            raise UserError(f"the text has more than {MAX_WORDS:,} words", fix="give the command alone")
        words.append(token)
    if words:
        yield words


def _tokens(text: str) -> Iterator[Word | None]:
    """Words, and None where a command ends."""
    at, line, size = 0, 1, len(text)
    ends: list[str] = []
    while at < size:
        c = text[at]
        if c == "\n":
            yield None
            at, line = at + 1, line + 1
            while ends:
                at, line = _after_here_document(text, at, line, ends.pop(0))
        elif c in " \t\r":
            at += 1
        elif c in "\\`^" and (text.startswith("\n", at + 1) or text.startswith("\r\n", at + 1)):
            at, line = at + (2 if text[at + 1] == "\n" else 3), line + 1
        elif c == "#":
            end = text.find("\n", at)
            at = size if end < 0 else end
        elif text.startswith("<<", at) and not text.startswith("<<<", at):
            at, end_word = _here_word(text, at + 2)
            ends.append(end_word)
        elif place := _PLACEHOLDER.match(text, at):
            yield Word("$" + place[0], line)
            at = place.end()
        elif redirect := _REDIRECT.match(text, at):
            at = redirect.end()
            if redirect[0].rstrip("<>&").strip("0123456789") == "" and not redirect[0].endswith(tuple("0123456789")):
                at = _skip_word(text, at)
        elif c in _OPERATORS:
            yield None
            at += 1
        else:
            start = line
            at, line, word = _word(text, at, line)
            if text.startswith("(", at) and _ARRAY_START.fullmatch(word):
                at, line, value = _array(text, at + 1, line)
                word += value
            yield Word(word, start)


def _array(text: str, at: int, line: int) -> tuple[int, int, str]:
    """The words of `NAME=( ... )` from behind its bracket."""
    found: list[str] = []
    while at < len(text) and text[at] != ")":
        c = text[at]
        if c.isspace():
            at, line = at + 1, line + (c == "\n")
        elif c == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif c in _OPERATORS or c in "<>":
            at += 1
        else:
            at, line, word = _word(text, at, line)
            found += [word] if word or text[at - 1] in "'\"" else []
    return at + 1, line, "".join(_ARRAY + w for w in found)


def _word(text: str, at: int, line: int) -> tuple[int, int, str]:
    """One word from `at`: end, line, text without its quotes."""
    out: list[str] = []
    size = len(text)
    if (path := _WINDOWS_PATH.match(text, at)) is not None:
        return path.end(), line, path[0].replace("\\", "/")
    while at < size and len(out) <= MAX_CHARS:
        c = text[at]
        if c in " \t\r\n;|()<>" or (c == "&"):
            break
        if c == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise UserError(f"line {line}: a single quote is not closed", fix="close it")
            inside = text[at + 1 : end]
            out.append(inside.replace("$", _PLAIN_DOLLAR))
            at, line = end + 1, line + inside.count("\n")
        elif c == '"':
            at, line, inside = _double_quoted(text, at + 1, line)
            out.append(inside.replace("$", _QUOTED_DOLLAR))
        elif c == "\\" and at + 1 < size:
            if text.startswith("\r\n", at + 1):
                at, line = at + 3, line + 1
            elif text[at + 1] == "\n":
                at, line = at + 2, line + 1
            else:
                out.append(_PLAIN_DOLLAR if text[at + 1] == "$" else text[at + 1])
                at += 2
        elif text.startswith("$(", at) or text.startswith("${", at) or text.startswith("{{", at):
            end = _closing(text, at, {"$(": ")", "${": "}", "{{": "}}"}[text[at : at + 2]])
            out.append(text[at:end])
            line += text.count("\n", at, end)
            at = end
        else:
            out.append(c)
            at += 1
    return at, line, "".join(out)


def _double_quoted(text: str, at: int, line: int) -> tuple[int, int, str]:
    start = line
    out: list[str] = []
    while at < len(text):
        c = text[at]
        if c == '"':
            return at + 1, line, "".join(out)
        if c == "\\" and at + 1 < len(text) and text[at + 1] in '"\\$`\n':
            following = text[at + 1]
            line += following == "\n"
            out.append("" if following == "\n" else _PLAIN_DOLLAR if following == "$" else following)
            at += 2
            continue
        line += c == "\n"
        out.append(c)
        at += 1
    raise UserError(f"line {start}: a double quote is not closed", fix="close it")


def _closing(text: str, at: int, end: str) -> int:
    found = text.find(end, at + 2)
    return len(text) if found < 0 else found + len(end)


def _skip_word(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    while at < len(text) and text[at] not in " \t\n;&|":
        at += 1
    return at


def _here_word(text: str, at: int) -> tuple[int, str]:
    end = _skip_word(text, at)
    return end, text[at:end].strip().strip("-").strip("'\"")


def _after_here_document(text: str, at: int, line: int, end: str) -> tuple[int, int]:
    """Behind the line that holds `end` alone."""
    while at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        own, at, line = text[at:stop].strip(), stop + 1, line + 1
        if own == end:
            break
    return min(at, len(text)), line
