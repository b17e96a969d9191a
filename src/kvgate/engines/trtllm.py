"""TensorRT-LLM: a server in an interpreter of its own, ended with us; or one that already runs, by its address.

Not run by us: written from its source and documentation, processes and logs are tested against a stand-in. See
`_trtllm_resolve` for the command line and the file, `_trtllm_observe` for what is held against the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.engine import ArmId, Attach, Launch, Panel, Request, Session
from kvgate.core.errors import LaneUnavailable
from kvgate.engines import _trtllm_observe, _trtllm_resolve


class TrtllmDriver:
    """Starts TensorRT-LLM or attaches to it; see `core.engine.Driver`."""

    name = "trtllm"
    aliases: tuple[str, ...] = ("tensorrt-llm", "tensorrt_llm")
    #: What `kvgate check` gives it: a Hugging Face folder.
    model_kind = "folder"
    #: `Settings.arguments` go onto its command line.
    takes_arguments = True
    #: It has no option for one: anybody on this machine can ask the server while it runs.
    takes_key = False

    def resolve(self, want: Request) -> Launch:
        return _trtllm_resolve.resolve(want)

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A server of our own, or a session with a running one.

        Raises:
            UserError: (Attach) the address or the log is unusable.
        """
        from kvgate.engines._trtllm_serving import TrtllmAttached, serve

        return TrtllmAttached(launch) if isinstance(launch, Attach) else serve(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("TensorRT-LLM gives no logits of a whole vocabulary from several caches in lockstep")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: there is no panel to compare with."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return _trtllm_observe.engaged(expected, observed)


DRIVER = TrtllmDriver()
