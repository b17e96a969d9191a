"""What a reader makes of a command line or a configuration: settings with their place, in the words of kvgate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: What a switch without a value is set to.
ON = "on"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a file ("" is the command line given), a line from 1 (0 is unknown), a field."""

    file: str = ""
    line: int = 0
    field: str = ""

    def __str__(self) -> str:
        parts = [self.file] if self.file else []
        if self.line and (self.file or self.line > 1):
            parts.append(f"line {self.line}")
        if self.field:
            parts.append(self.field)
        return ", ".join(parts) or "command"

    def at(self, field_: str) -> Place:
        """The same place, another field."""
        return Place(self.file, self.line, field_)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    Attributes:
        opaque: it holds a variable or template whose value nobody here knows. whole: it is that variable, unquoted, so
            that it may become several words.
    """

    text: str
    line: int = 0
    opaque: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as written.

    Attributes:
        key: kvgate's word for it where a fact has one, else the option's own name with underscores.
        written: as it stands in the text. name: the engine's own spelling; empty where the option is not known.
        value: text; "on" for a bare switch. Not to be used where `opaque`.
        origin: "argv", "file" (a configuration) or "env".
        glued: written as NAME=VALUE, in one word. unset: no value stands behind it, or an empty one.
        odd_spelling: recognised only by changing "_" and "-", which this engine's parser is not known to do.
    """

    key: str
    written: str
    value: str
    place: Place
    name: str = ""
    origin: str = "argv"
    opaque: bool = False
    odd_spelling: bool = False
    glued: bool = False
    unset: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One start of one engine.

    Attributes:
        engine: id. program: what is started ("llama-server"). settings: in order; a later one of a key wins.
        env: variables set in front of it, or by a manifest. image: of the container. version, vendor: from its tag.
        notes: what could not be read. bare: the engine's own parser reads these words, with no wrapper before it.
    """

    engine: str
    program: str = ""
    settings: tuple[Setting, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    place: Place = Place()
    version: str = ""
    vendor: str = ""
    image: str = ""
    notes: tuple[str, ...] = ()
    bare: bool = False

    def setting(self, key: str) -> Setting | None:
        """The one that counts: argv before the environment before files, and the last of each."""
        rank = {"argv": 2, "env": 1, "file": 0}
        found = [s for s in self.settings if s.key == key]
        return max(reversed(found), key=lambda s: rank[s.origin], default=None)

    def get(self, key: str) -> str | None:
        """Its value; None where it is not given, or not readable here."""
        found = self.setting(key)
        return None if found is None or found.opaque else found.value

    def given(self, key: str) -> bool:
        return self.setting(key) is not None

    def place_of(self, key: str) -> Place:
        """Where the option stands, else the command."""
        found = self.setting(key)
        return self.place if found is None else found.place
