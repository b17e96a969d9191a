"""SGLang: a server in an interpreter of its own, ended with us; or one that already runs, by its address.

Not run on a device by us: requests and answers are held against the models of SGLang's own wheel
(`scripts/sglang_shapes.py`), processes and logs against a stand-in. See `_sglang_resolve` for the command line,
`_sglang_observe` for what is held against the log, `_sglang_logprobs` for the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from kvgate.core.deployment import Deployment, Engaged, Expected
from kvgate.core.engine import ArmId, Attach, Launch, Panel, Request, Session
from kvgate.core.errors import LaneUnavailable
from kvgate.engines import _sglang_observe, _sglang_resolve


class SglangDriver:
    """Starts SGLang or attaches to it; see `core.engine.Driver`."""

    name = "sglang"
    aliases: tuple[str, ...] = ()
    #: What `kvgate check` gives it: a Hugging Face folder.
    model_kind = "folder"
    #: `Settings.arguments` go onto its command line.
    takes_arguments = True

    def resolve(self, want: Request) -> Launch:
        return _sglang_resolve.resolve(want)

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A server of our own, or a session with a running one.

        Raises:
            UserError: (Attach) the address or the log is unusable.
        """
        from kvgate.engines._sglang_serving import SglangAttached, serve

        return SglangAttached(launch) if isinstance(launch, Attach) else serve(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("SGLang gives no logits of a whole vocabulary from several caches in lockstep")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: there is no panel to compare with."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        return _sglang_observe.engaged(expected, observed)


DRIVER = SglangDriver()
