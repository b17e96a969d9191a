"""llama.cpp through the xllamacpp wheel: a server in a child process, and a panel of contexts in another.

Recipes: one type for K and one for V, rotation by the engine's own rule or off (`+none`). See `_llama_resolve` for what
is refused, `_llama_observe` for what is held against the load log, `_llama_panel` for the panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.engine import ArmId, Attach, Launch, Panel, Request, Session, Speed
from kvgate.core.errors import LaneUnavailable
from kvgate.engines import _llama_observe, _llama_resolve
from kvgate.engines._llama_panel import LlamaCppPanel, panel_of
from kvgate.engines._llama_serving import LlamaCppSession, serve
from kvgate.engines._llama_verify import check_panel_agrees


class LlamaCppDriver:
    """Starts llama.cpp; see `core.engine.Driver`."""

    name = "llama_cpp"
    aliases: tuple[str, ...] = ("llama.cpp", "llamacpp")

    def resolve(self, want: Request) -> Launch:
        return _llama_resolve.resolve(want)

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A server of our own, or a session with a running one."""
        if isinstance(launch, Attach):
            from kvgate.engines.openai import DRIVER as OPENAI

            return OPENAI.open(launch)
        return serve(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        return panel_of(launches)

    async def speed(self, session: Session) -> Speed | None:
        """How fast a server of ours is on this machine now; None for one of somebody else."""
        from kvgate.engines._llama_speed import speed_of

        return await speed_of(session) if isinstance(session, LlamaCppSession) else None

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """One position, fed in one step on both sides; see `_llama_verify`."""
        if not isinstance(panel, LlamaCppPanel) or not isinstance(session, LlamaCppSession):
            raise LaneUnavailable("only a panel and a server that kvgate started itself can be compared")
        return await check_panel_agrees(panel, base, session, ids)

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return _llama_observe.engaged(expected, observed)


DRIVER = LlamaCppDriver()
