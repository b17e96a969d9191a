"""Any server that speaks OpenAI's HTTP interface, run by somebody else; other endpoints are used where they exist."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.engine import ArmId, Attach, Launch, Panel, Request, Session
from kvgate.core.errors import LaneUnavailable, UserError
from kvgate.engines._attached import hold_against
from kvgate.engines._kvlog import read_log
from kvgate.engines._openai_session import OpenAISession
from kvgate.engines._retry import Backoff

__all__ = ["DRIVER", "OpenAIDriver", "OpenAISession"]


class OpenAIDriver:
    """Attaches to a running server; starts nothing."""

    name = "openai"
    aliases: tuple[str, ...] = ("openai-compatible",)

    def resolve(self, want: Request) -> Launch:
        """Always a UserError: there is nothing to start."""
        raise UserError(
            "engine 'openai' is only an address: kvgate cannot start it",
            fix="start the server yourself and give its URL, or choose an engine that kvgate starts",
        )

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A session at an address: of an `Attach`, or of a Launch that holds one ("url" in its options).

        Raises:
            UserError: the address or the log file is unusable, or the Launch is of an engine to be started.
        """
        if isinstance(launch, Attach):
            return self.attach(launch)
        any_name = bool(launch.engine_options.get("any_name"))
        return self.attach(self._attach(launch), any_name=any_name)

    def attach(self, to: Attach, *, backoff: Backoff | None = None, any_name: bool = False) -> OpenAISession:
        """A session at an address, with its patience for a busy server; errors as `open`."""
        log = read_log(to.log) if to.log is not None else None
        return OpenAISession(
            to.url, api_key=to.api_key, spelling=to.spelling, log=log, backoff=backoff, any_name=any_name
        )

    def _attach(self, launch: Launch) -> Attach:
        options = launch.engine_options
        if "url" not in options:
            self.resolve(launch.request)
        key = os.environ.get(str(options.get("key_variable", "")))
        log = Path(options["log"]) if options.get("log") else None
        return Attach(str(options["url"]), spelling=launch.request.spelling, api_key=key, log=log)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("no panel over HTTP: a server keeps its logits")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: there is no panel to compare with."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        """UNOBSERVED unless a log was given; then what the log says."""
        return hold_against(expected, observed)


DRIVER = OpenAIDriver()
