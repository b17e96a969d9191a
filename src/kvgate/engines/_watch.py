"""Whether one and the same server answers, as far as its answers tell: their model and their fingerprint.

vLLM's fingerprint covers version, weights, dtypes and backend; a server that was restarted with other settings in the
middle of a run shows by it. llama.cpp's wheel says "b0-unknown" always, which tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kvgate.core.errors import EngineChanged

#: What joins a model's name and the date or tag of a snapshot ("gpt-4o" answers as "gpt-4o-2024-08-06").
_SNAPSHOT = "-@:"


class Watch:
    """What a session's answers have said so far. `clean` makes a server's words fit for a message."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self.fingerprint: str | None = None
        self.model: str | None = None
        self.names: Collection[str] = ()
        self.any_name = False

    def see(self, body: Any, asked: str | None) -> None:
        """Take one body; `asked` is the model of the request, None where it named none.

        Raises:
            EngineChanged: another fingerprint or model than before, or another model than was asked for.
        """
        if not isinstance(body, Mapping):
            return
        fingerprint, model = body.get("system_fingerprint"), body.get("model")
        if isinstance(fingerprint, str) and fingerprint:
            self._same("system_fingerprint", self.fingerprint, fingerprint)
            self.fingerprint = fingerprint
        if not isinstance(model, str) or not model or asked is None:
            return
        if not self.any_name and not same_name(asked, model, self.names):
            raise EngineChanged(
                f"asked for model {self._show(asked)}, answered by {self._show(model)}: this server does not run what "
                "it lists"
            )
        self._same("model", self.model, model)
        self.model = model

    def _same(self, what: str, before: str | None, now: str) -> None:
        if before is not None and before != now:
            raise EngineChanged(
                f"{what} was {self._show(before)} and is now {self._show(now)}: another server answers, or this one "
                "was restarted with other settings"
            )

    def _show(self, word: str) -> str:
        return repr(self._clean(word[:120]))


def same_name(asked: str, said: str, names: Collection[str] = ()) -> bool:
    """Whether an answer's model may be the one that was asked for.

    Args:
        names: other names that the server lists for it (its root, its aliases).
    """
    if said == asked or said in names:
        return True
    if said.startswith(asked) and said[len(asked)] in _SNAPSHOT:
        return True
    # A path and its last part: llama.cpp answers with the file it loaded.
    return bool(asked) and re.split(r"[/\\]", said)[-1] == re.split(r"[/\\]", asked)[-1]
