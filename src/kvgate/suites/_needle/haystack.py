"""Haystacks: plain sentences from seeded templates, with one sentence that holds a code.

Every haystack is a text of its own, drawn from a seed. There are no digits in the filler: seven digits are the code.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@cache
def _words() -> Mapping[str, Sequence[str]]:
    """Lists of `data/needle_words.toml` by name."""
    text = files("kvgate.suites").joinpath("data/needle_words.toml").read_text(encoding="utf-8")
    return {name: tuple(words) for name, words in tomllib.loads(text).items()}


@dataclass(frozen=True, slots=True)
class Needle:
    """What is hidden: the name that is asked for and its code."""

    name: str
    code: str

    @property
    def sentence(self) -> str:
        return f"The secret code of the {self.name} is {self.code}."


def make_needle(rng: random.Random) -> Needle:
    """A name of two words and seven digits, the first not 0."""
    words = _words()
    return Needle(
        f"{rng.choice(words['colours'])} {rng.choice(words['animals'])}", str(rng.randrange(1_000_000, 10_000_000))
    )


def sentences(rng: random.Random) -> Iterator[str]:
    """Filler without end: grammatical, varied, without digits."""

    def pick(name: str) -> str:
        return rng.choice(_words()[name])

    while True:
        who, did, what, where, when = (pick(n) for n in ("people", "deeds", "things", "places", "times"))
        shapes = (
            f"{who} {did} {what} {where} {when}.",
            f"{when}, {who} {did} {what} {where}.",
            f"{pick('weather')} {when}, and {who} {did} {what}.",
            f"{who} {did} {what} {pick('reasons')}.",
            f"{where}, {who} and {pick('people')} {did} {what}.",
            f"{who} {did} {what}, then {pick('deeds')} {pick('things')} {where}.",
        )
        text = rng.choice(shapes)
        yield text[0].upper() + text[1:]


def prompt(filler: list[str], needle: Needle, depth: float, salt: str) -> str:
    """The user's message: instruction, haystack with the needle at a sentence end, question.

    `salt` stands first, so that no two prompts share a prefix and no cache can serve one with another's work.
    """
    at = round(depth * len(filler))
    text = " ".join([*filler[:at], needle.sentence, *filler[at:]])
    return (
        f"[{salt}] Read the text below. One sentence in it holds a secret code.\n\n{text}\n\n"
        f"What is the secret code of the {needle.name}? Answer with the number only."
    )
