"""vLLM in an interpreter of its own: a server in a family of processes, ended with us.

Recipes: one KV type for K and V, layers left native by `keep=`. See `_vllm_recipe` for what is refused, `_vllm_resolve`
for the command line, `_vllm_observe` for what is held against log and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.engine import ArmId, Attach, Launch, Panel, Request, Session
from kvgate.core.errors import LaneUnavailable
from kvgate.engines import _vllm_observe, _vllm_resolve


class VllmDriver:
    """Starts vLLM; see `core.engine.Driver`."""

    name = "vllm"
    aliases: tuple[str, ...] = ()
    #: What `kvgate check` gives it: a Hugging Face folder.
    model_kind = "folder"
    #: `Settings.arguments` go onto its command line.
    takes_arguments = True

    def resolve(self, want: Request) -> Launch:
        return _vllm_resolve.resolve(want)

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A server of our own, or a session with a running one."""
        if isinstance(launch, Attach):
            from kvgate.engines.openai import DRIVER as OPENAI

            return OPENAI.open(launch)
        from kvgate.engines._vllm_serving import serve

        return serve(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("vLLM gives no logits of a whole vocabulary from several caches in lockstep")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: there is no panel to compare with."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return _vllm_observe.engaged(expected, observed)


DRIVER = VllmDriver()
