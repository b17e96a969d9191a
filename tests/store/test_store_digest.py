"""The digest of records: the same for the same observations, another for any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_samples import SUITE, VERSION, answer, begin, block, case, positions, read

from kvgate.core.observation import POSITION_FIELDS, Case, PairScore, PositionBlock, Raw, Records, Score, Work
from kvgate.store.digest import records_digest, stable
from kvgate.store.open import Store, open_store

CASES = [case(1), case(2)]


def body(arm: str, i: int, **unstable: Any) -> dict[str, Any]:
    return {"text": f"{arm} {i}", "finish_reason": "stop", "usage": {"completion_tokens": 5}, **unstable}


def fill(store: Store, *, backwards: bool = False, again: bool = False) -> str:
    """Two cases on three arms, with positions: in one order or the other, with or without interruptions."""
    run_id = begin(store, list(reversed(CASES)) if backwards else CASES)
    todo: list[tuple[Work, int]] = [
        (Work(a, c.id, r), i) for i, c in enumerate(CASES) for a in ("base", "q8_0") for r in (0, 1)
    ]
    for work, i in reversed(todo) if backwards else todo:
        volatile = (
            {"events": [[123, 1]], "created": 99, "id": "x"} if again else {"events": [[4, 1], [5, 2]], "id": "y"}
        )
        if again:
            answer(store, run_id, work, Raw(None, error="EngineDied: 9"))
            store.start_work(run_id, SUITE, VERSION, work)
        raw = Raw(body(work.arm, i, **volatile), seed=5, started="later" if again else "now", ms=7.0 if again else 1.0)
        answer(store, run_id, work, raw)
    for i, one in enumerate(reversed(CASES) if backwards else CASES):
        n = 1 - i if backwards else i
        blocks = [block(one.id, a, seed=n, n=40) for a in ("twin", "q8_0")]
        answer(
            store, run_id, Work("*", one.id), Raw({"arms": 3}, ms=1.0 * again), blocks[::-1] if backwards else blocks
        )
    return run_id


def test_order_time_and_interruptions_do_not_matter(store: Store, tmp_path: Path) -> None:
    """Written in another order, later, after failures and lost attempts: the same records, the same digest."""
    one = read(store, fill(store))
    with open_store(tmp_path / "other.db") as other:
        two = read(other, fill(other, backwards=True, again=True))

    assert one.digest == two.digest and len(one.digest) == 64
    assert list(one.raws) == list(two.raws) and list(one.cases) == list(two.cases)
    assert [(b.case_id, b.arm) for b in one.positions] == [(b.case_id, b.arm) for b in two.positions]


def test_scoring_does_not_change_the_digest(store: Store) -> None:
    """A run interrupted after scoring comes to the same numbers as one that was not."""
    run_id = fill(store)
    before = read(store, run_id)
    work = Work("q8_0", CASES[0].id)
    store.save_scores(run_id, SUITE, 1, [(work, 1, Score(1.0)), (replace(work, repeat=1), 1, Score(0.5))])
    store.save_comparisons(run_id, SUITE, 1, "base", [("q8_0", CASES[0].id, PairScore("invalid_json"))])
    after = read(store, run_id)

    assert after.scores and after.pairs and not before.scores
    assert after.digest == before.digest


def flip(records: Records, column: str) -> Records:
    """One bit of one position."""
    first, *rest = records.positions
    data = first.data.copy()
    raw = data[column][3:4].view(np.uint8)
    raw[0] ^= 1
    data[column][3:4] = raw.view(data[column].dtype)
    return replace(records, positions=(replace(first, data=data), *rest))


def change_raw(records: Records, **changed: Any) -> Records:
    key = next(iter(k for k in records.raws if k[0] == "q8_0"))
    first, *rest = records.raws[key]
    return replace(records, raws={**records.raws, key: (replace(first, **changed), *rest)})


def change_case(records: Records, **changed: Any) -> Records:
    key, one = next(iter(records.cases.items()))
    return replace(records, cases={**records.cases, key: replace(one, **changed)})


CHANGES: dict[str, Callable[[Records], Records]] = {
    "a bit of a kl": lambda r: flip(r, "kl"),
    "a bit of a rank": lambda r: flip(r, "base_top1_rank"),
    "a block less": lambda r: replace(r, positions=r.positions[1:]),
    "a block of another arm": lambda r: replace(r, positions=(replace(r.positions[0], arm="x"), *r.positions[1:])),
    "a start": lambda r: replace(r, positions=(replace(r.positions[0], start=2), *r.positions[1:])),
    "an estimator": lambda r: replace(r, positions=(replace(r.positions[0], estimator="topk"), *r.positions[1:])),
    "a letter of a text": lambda r: change_raw(r, body=body("q8_0", 0) | {"text": "q8_0 0."}),
    "a token more": lambda r: change_raw(r, body=body("q8_0", 0) | {"usage": {"completion_tokens": 6}}),
    "a seed": lambda r: change_raw(r, seed=6),
    "an answer less": lambda r: replace(r, raws={k: v[1:] for k, v in r.raws.items()}),
    "a case's cluster": lambda r: change_case(r, cluster="z"),
    "a case's question": lambda r: change_case(r, body={}),
    "a candidate": lambda r: replace(r, candidates=()),
    "a base": lambda r: replace(r, base="twin"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_any_change_changes_the_digest(store: Store, what: str) -> None:
    """One bit of what was observed, or of what it was observed for, and the digest is another."""
    records = read(store, fill(store))

    assert records_digest(records) == records.digest
    assert records_digest(CHANGES[what](records)) != records.digest


def test_what_another_run_changes_is_left_out() -> None:
    """Request ids, times and cache hits are taken out of the envelope, but not out of content."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"id": 7}'}}
    one = {
        "text": "x",
        "tool_calls": [call],
        "parsed": {"id": 7, "created": 8},
        "usage": {"prompt_tokens": 3, "cached_tokens": 2},
        "raw": {"id": "c1", "created": 5, "timings": {"ms": 1}, "choices": [{"message": {"tool_calls": [call]}}]},
    }
    kept = {"type": "function", "function": {"name": "f", "arguments": '{"id": 7}'}}

    assert stable(one) == {
        "text": "x",
        "tool_calls": [kept],
        "parsed": {"id": 7, "created": 8},
        "usage": {"prompt_tokens": 3},
        "raw": {"choices": [{"message": {"tool_calls": [kept]}}]},
    }


def test_the_digest_is_that_of_a_written_form() -> None:
    """The form is fixed, so that another machine, or another program, comes to the same digest."""
    one = Case("i", "golden", "c", "", "code", {"p": "\ud800ü"})
    block = PositionBlock("i", 0, "decode", "q8_0", 4, "full", positions(2, seed=1))
    raws = {("q8_0", "i"): (Raw({"text": "a"}, seed=9, ms=3.0, started="x"),)}
    records = Records("golden", "base", ("f2", "f1"), ("q8_0",), {"i": one}, raws, positions=(block,))
    columns = b"".join(block.data[name].tobytes() for name, _ in POSITION_FIELDS)
    lines = [
        '["kvgate.records/1","golden","base",["f1","f2"],["q8_0"]]',
        '["case","i","c","","code",{"p":"\ud800ü"}]',
        '["raw","i","q8_0",[[9,"",{"text":"a"}]]]',
        f'["positions","i","q8_0",0,"decode",4,"full",2,"{hashlib.sha256(columns).hexdigest()}"]',
    ]
    want = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")

    assert records_digest(records) == hashlib.sha256(want).hexdigest()
