"""Verdicts of a store, as the linter needs them; the command line reads them, since lint itself opens no store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse


@dataclass(frozen=True, slots=True)
class Asked:
    """The model of a command: what people may call it, and its file's sha256; empty where no file of it is here."""

    names: tuple[str, ...]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict: on which model and engine (empty is not recorded), which recipe, and what was decided.

    Attributes:
        asked: the model as it was typed; empty is not recorded. digest: sha256 of its file; empty where none was read.
        store: where the run lies, as `kvgate show --store` takes it; empty is not said.
    """

    model: str
    engine: str
    candidate: str
    decision: str
    run: str = ""
    asked: str = ""
    digest: str = ""
    store: str = ""

    def is_about(self, model: Asked, engine: str, k: str, v: str) -> bool:
        """Whether it judged these codecs on this model and engine. Options of the recipe (keep=) do not count."""
        if not self._is_of(model) or (self.engine and self.engine != engine):
            return False
        try:
            recipe = parse(self.candidate)
        except UserError:
            return False
        return recipe.k is not None and recipe.v is not None and (recipe.k.codec, recipe.v.codec) == (k, v)

    def _is_of(self, model: Asked) -> bool:
        """The same file where both are known, since many files are called `model.gguf`; else one of the names."""
        if self.digest and model.digest:
            return self.digest == model.digest
        own = {_plain(n) for n in (self.model, self.asked) if n}
        return not own.isdisjoint(_plain(n) for n in model.names)


def asked_model(name: str) -> Asked:
    """The model that a path, a catalogue name or a hub id means. Nothing is fetched; a file that is here is read."""
    from kvgate.models.catalogue import catalogue
    from kvgate.models.file_digest import file_sha256

    given = name.strip()
    digest = ""
    try:
        path = Path(given).expanduser()
        if path.is_file():
            digest = file_sha256(path)
    except (OSError, ValueError, RuntimeError, UserError):
        digest = ""
    plain = _plain(given)
    for known in catalogue().values():
        called = plain in (known.name, _plain(known.file_name))
        if digest == known.sha256 or (called and not digest):
            # Only the digest of a name of ours is sure; a stranger's path may hold another file of that name.
            sure = digest or (known.sha256 if given == known.name else "")
            return Asked((given, known.name, known.file_name), sure)
    return Asked((given,), digest)


def _plain(name: str) -> str:
    """Models by the last part of their name, without a GGUF file's ending; case does not count."""
    return PurePath(name.strip().lower()).name.removesuffix(".gguf")
