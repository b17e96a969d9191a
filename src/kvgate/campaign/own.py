"""Which verdicts of a run are its own: by the policy that its check was given. Others are what-ifs of `kvgate gate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvgate.campaign.measured import FACTS
from kvgate.store.open import Store

Document = Mapping[str, Any]


class Verdicts(NamedTuple):
    """Stored verdicts, each in the order of judging: the run's own, and those of other policies."""

    own: tuple[Document, ...]
    others: tuple[Document, ...]


def verdicts_of(store: Store, run_id: str) -> Verdicts:
    """The verdicts of a run; of an earlier kvgate, which kept no word on it, the first policy is the run's own."""
    found: Sequence[Document] = store.verdicts(run_id)
    digest = _own_digest(store, run_id) or (found[0]["policy_digest"] if found else "")
    return Verdicts(
        tuple(v for v in found if v["policy_digest"] == digest),
        tuple(v for v in found if v["policy_digest"] != digest),
    )


def _own_digest(store: Store, run_id: str) -> str:
    """Digest of the policy of the newest leg; "" where none was kept."""
    legs = [row.body for row in store.evidence(run_id, FACTS)]
    newest = max(legs, key=lambda f: (f.get("duration_s", 0.0), f.get("written", "")), default={})
    return str(newest.get("policy_digest", ""))
