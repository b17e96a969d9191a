"""Panel against server at one position: both compute the same model, so their log-probabilities must agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvgate.core.engine import ArmId, Pass
from kvgate.core.errors import BadAnswer, EngineError, LaneUnavailable
from kvgate.engines._llama_panel import LlamaCppPanel
from kvgate.engines._llama_serving import LlamaCppSession, completion_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The server's softmax sums to 1.00018 over 49,152 tokens, which shows as a constant 1.8e-4; the rest is for rounding.
MAX_NAT = 5e-4
#: Below this the CPU path takes another kernel for f16 and f32.
MIN_TOKENS = 64
#: Below this a probability is not written with enough digits to be compared (and floats of exp() end near -103).
FLOOR_NAT = -80.0


async def server_logprobs(session: LlamaCppSession, ids: Sequence[int]) -> dict[int, float]:
    """Log-probability (nat) of every token of the vocabulary after `ids`, from one `/completion` on token ids.

    Raises:
        BadAnswer: not one entry with finite log-probability per token of the vocabulary.
    """
    answer = await session.post_json("/completion", completion_of(list(ids), n_probs=session.n_vocab))
    try:
        rows = answer["completion_probabilities"][0]["top_logprobs"]
        found = {int(r["id"]): float(r["logprob"]) for r in rows}
    except (LookupError, TypeError, ValueError):
        raise BadAnswer("/completion answers without log-probabilities of the vocabulary", kind="bad_shape") from None
    if len(found) != session.n_vocab:
        raise BadAnswer(f"/completion gives {len(found)} of {session.n_vocab} log-probabilities", kind="bad_shape")
    if any(math.isnan(x) or x > 0.01 for x in found.values()):
        raise BadAnswer("/completion gives log-probabilities that are none", kind="degenerate_logprobs")
    return found


async def check_panel_agrees(panel: LlamaCppPanel, base: ArmId, session: LlamaCppSession, ids: Sequence[int]) -> float:
    """Largest difference (nat) between the panel's base arm and the server after `ids`, fed in one step on both sides.

    Empties every arm's cache.

    Raises:
        LaneUnavailable: they differ by more than `MAX_NAT`, the text is too short or too long for one step, or the
            server gave no answer to compare with.
        EngineError: the panel failed.
    """
    if not MIN_TOKENS <= len(ids) <= panel.max_rows:
        raise LaneUnavailable(
            f"panel and server are compared after {MIN_TOKENS} to {panel.max_rows} tokens, and there are {len(ids)}"
        )
    panel.begin(ids)
    row = panel.step(len(ids), Pass.PREFILL)[base][-1]
    try:
        theirs = await server_logprobs(session, ids)
    except EngineError as e:
        raise LaneUnavailable(f"the base's server gave no position to compare with: {e}") from e
    difference = largest_difference(row, theirs)
    if not difference <= MAX_NAT:
        raise LaneUnavailable(
            f"panel and server disagree by {difference:.2e} nat at one position (at most {MAX_NAT:g}): the panel does "
            "not compute what the server does"
        )
    return difference


def largest_difference(logits: NDArray[np.float32], logprobs: dict[int, float]) -> float:
    """Largest |log softmax(logits) - logprobs| over tokens that either side gives more than `FLOOR_NAT`."""
    import numpy as np

    x = np.asarray(logits, dtype=np.float64)
    mine = x - (x.max() + math.log(float(np.exp(x - x.max()).sum())))
    theirs = np.array([logprobs[i] for i in range(len(x))])
    compared = (mine > FLOOR_NAT) | (theirs > FLOOR_NAT)
    return float(np.abs(mine - theirs)[compared].max())
