"""The digest of what a suite saw. It names the records in a verdict and seeds the resampling.

The same observations give the same digest on any machine, in any order of writing, and however often the run was
interrupted. So it leaves out everything that another start changes without changing an answer: times, request ids,
token counts that depend on what the server still had cached. It also leaves out scores and comparisons: they follow
from the answers, and a run that was interrupted after scoring must come to the same numbers as one that was not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.core.observation import Raw, Records
from kvgate.store.columns import canonical
from kvgate.store.positions import columns_bytes

#: Parts of an answer's body that differ between two runs of the same request.
UNSTABLE = frozenset({"events", "timing", "timings", "id", "created", "started", "ms", "host", "system_fingerprint"})
#: Where the rule above is also applied: the envelope of an OpenAI answer. Elsewhere an "id" is content.
_ENVELOPE = frozenset({"raw", "choices", "message", "tool_calls"})
_USAGE = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})


def stable(body: Any) -> Any:
    """The part of an answer's body that another run of the same request repeats."""
    if isinstance(body, list | tuple):
        return [stable(x) for x in body]
    if not isinstance(body, Mapping):
        return body
    kept = {}
    for key, value in body.items():
        if key in UNSTABLE:
            continue
        if key == "usage" and isinstance(value, Mapping):
            kept[key] = {k: v for k, v in value.items() if k in _USAGE}
        else:
            kept[key] = stable(value) if key in _ENVELOPE else value
    return kept


def records_digest(records: Records) -> str:
    """sha256 over arms, cases, answers and positions, in a fixed order."""
    h = hashlib.sha256()
    for line in _lines(records):
        h.update(canonical(line, "a record").encode("utf-8", "surrogatepass") + b"\n")
    return h.hexdigest()


def _lines(r: Records) -> Iterator[list[Any]]:
    yield ["kvgate.records/1", r.suite, r.base, sorted(r.floors), sorted(r.candidates)]
    for case_id, case in sorted(r.cases.items()):
        yield ["case", case_id, case.cluster, case.bucket, case.category, case.body]
    for (arm, case_id), raws in sorted(r.raws.items(), key=lambda item: (item[0][1], item[0][0])):
        yield ["raw", case_id, arm, [_raw(x) for x in raws]]
    for b in sorted(r.positions, key=lambda b: (b.case_id, b.arm, b.repeat, b.lane, b.start)):
        columns = hashlib.sha256(columns_bytes(b.data)).hexdigest()
        yield ["positions", b.case_id, b.arm, b.repeat, b.lane, b.start, b.estimator, len(b.data), columns]


def _raw(raw: Raw) -> list[Any]:
    return [raw.seed, raw.error, stable(raw.body)]
