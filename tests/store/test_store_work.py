"""Attempts, answers, positions, faults of the disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import SUITE, VERSION, answer, begin, block, case, positions, read

from kvgate.core.errors import StoreError
from kvgate.core.observation import FULL_VOCABULARY, PositionBlock, Raw, Work
from kvgate.store.columns import NotJson, pack_json, unpack_json
from kvgate.store.open import Store, open_store
from kvgate.store.reader import LOST

ONE = case(1)
WORK = Work("q8_0", ONE.id)
OK = Raw({"text": "yes"}, seed=3, started="2026-01-01T00:00:00", ms=12.5)
BAD = Raw(None, error="EngineDied: exit 134")


def states(store: Store) -> list[tuple[int, str, str]]:
    with store._db.read() as c:
        rows = c.exec_driver_sql("SELECT attempt, state, error FROM work ORDER BY suite, case_id, attempt").all()
    return [(r[0], r[1], r[2]) for r in rows]


def test_an_answer_comes_back(store: Store) -> None:
    """What was observed is read as it was written."""
    run_id = begin(store, [ONE])

    assert answer(store, run_id, WORK, OK) == 1
    assert store.done(run_id, SUITE, VERSION) == {WORK: "done"}
    assert read(store, run_id).raws == {("q8_0", ONE.id): (OK,)}


def test_failed_work_is_kept_and_can_be_retried(store: Store) -> None:
    """A failure is a row of its own; a later success is another attempt and the one that counts."""
    run_id = begin(store, [ONE])
    answer(store, run_id, WORK, BAD)

    assert store.done(run_id, SUITE, VERSION) == {WORK: "failed"}
    assert store.errors(run_id, SUITE) == {"q8_0": [BAD.error]}
    assert read(store, run_id).raws == {}
    assert answer(store, run_id, WORK, OK) == 2
    assert store.done(run_id, SUITE, VERSION) == {WORK: "done"}
    assert store.errors(run_id, SUITE) == {}
    assert read(store, run_id).raws == {("q8_0", ONE.id): (OK,)}
    assert states(store) == [(1, "failed", BAD.error), (2, "done", "")]


def test_an_attempt_of_a_dead_process_is_lost(store: Store, path: Path) -> None:
    """Work that was in flight is repeated under a new number; the old row stays."""
    run_id = begin(store, [ONE])
    store.start_work(run_id, SUITE, VERSION, WORK)
    with open_store(path) as other:
        assert other.done(run_id, SUITE, VERSION) == {}
        assert other.errors(run_id, SUITE) == {}
        assert other.start_work(run_id, SUITE, VERSION, WORK) == 2
    with pytest.raises(StoreError, match="attempt 1 of q8_0 is not running"):
        store.finish_work(run_id, SUITE, VERSION, WORK, 1, OK)

    assert states(store) == [(1, "lost", ""), (2, "running", "")]
    with store._db.write() as c:
        c.exec_driver_sql("UPDATE work SET state = 'lost'")
    assert store.errors(run_id, SUITE) == {"q8_0": [LOST]}


def test_a_retry_in_flight_is_not_finished(store: Store) -> None:
    """Killed during a retry, the work is outstanding, although an earlier attempt failed."""
    run_id = begin(store, [ONE])
    answer(store, run_id, WORK, BAD)
    store.start_work(run_id, SUITE, VERSION, WORK)

    assert store.done(run_id, SUITE, VERSION) == {}


def test_done_work_is_never_run_again(store: Store) -> None:
    """An answer cannot be replaced, nor an attempt finished twice or before it began."""
    run_id = begin(store, [ONE])
    answer(store, run_id, WORK, OK)

    with pytest.raises(StoreError, match="already done"):
        store.start_work(run_id, SUITE, VERSION, WORK)
    for attempt in (1, 2):
        with pytest.raises(StoreError, match="is not running"):
            store.finish_work(run_id, SUITE, VERSION, WORK, attempt, OK)
    assert states(store) == [(1, "done", "")]


def test_repeats_and_arms_are_apart(store: Store) -> None:
    """Repeats come back in order, arms under their own key, strangers not at all."""
    run_id = begin(store, [ONE])
    for repeat in (2, 0, 1):
        answer(store, run_id, Work("q8_0", ONE.id, repeat), Raw({"text": str(repeat)}))
    answer(store, run_id, Work("base", ONE.id), OK)
    answer(store, run_id, Work("*", ONE.id), Raw({"arms": 2}))
    answer(store, run_id, Work("stranger", ONE.id), OK)
    found = read(store, run_id)

    assert list(found.raws) == [("*", ONE.id), ("base", ONE.id), ("q8_0", ONE.id)]
    assert [r.body["text"] for r in found.raws[("q8_0", ONE.id)]] == ["0", "1", "2"]
    assert [a.work.repeat for a in store.answered(run_id, SUITE) if a.work.arm == "q8_0"] == [0, 1, 2]


def test_the_columns_for_the_eye(store: Store) -> None:
    """Finish reason, usage, timing and the digest of the question can be read with any SQL shell."""
    run_id = begin(store, [ONE])
    body = {"text": "", "finish_reason": "stop", "usage": {"b": 1, "a": 2}, "timings": {"ms": 1.5}}
    answer(store, run_id, WORK, Raw(body, seed=-(2**63)))
    answer(store, run_id, Work("base", ONE.id), Raw({"finish_reason": 7, "usage": "?"}, seed=2**63 - 1))
    query = "SELECT finish_reason, usage, timing, length(prompt_digest), seed FROM observations ORDER BY arm DESC"
    with store._db.read() as c:
        rows = [tuple(r) for r in c.exec_driver_sql(query).all()]

    assert rows == [("stop", '{"a":2,"b":1}', '{"ms":1.5}', 64, -(2**63)), (None, None, None, 64, 2**63 - 1)]


def test_redaction_comes_before_the_first_write(path: Path) -> None:
    """The hook sees every answer; what it removes is nowhere in the files."""

    def redact(raw: Raw) -> Raw:
        return Raw({"text": "***"}, raw.error.replace("s3cret", "***"), raw.seed, raw.started, raw.ms)

    with open_store(path, redact=redact) as s:
        run_id = begin(s, [ONE])
        answer(s, run_id, WORK, Raw({"text": "s3cret"}, error="BadAnswer: s3cret"))
        answer(s, run_id, WORK, Raw({"text": "s3cret"}))
        files = [p.read_bytes() for p in path.parent.glob("kvgate.db*") if p.is_file()]

        assert read(s, run_id).raws[("q8_0", ONE.id)][0].body == {"text": "***"}
    assert len(files) >= 2 and not any(b"s3cret" in f for f in files)


# what JSON can hold

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(value=json_value)
def test_every_json_value_survives_packing(value: Any) -> None:
    """Lone surrogates, NUL, huge integers and the sign of zero come back as they were."""
    back = unpack_json(pack_json(value, "x"), "x")

    assert repr(back) == repr(value) or back == value
    assert pack_json(back, "x") == pack_json(value, "x")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    body=st.none() | st.dictionaries(any_text, json_value, max_size=3), error=any_text, cluster=any_text, arm=any_text
)
def test_every_answer_survives_the_store(store: Store, body: Any, error: str, cluster: str, arm: str) -> None:
    """Text that databases cannot hold survives in bodies, errors, names and labels."""
    from kvgate.core.observation import Case

    one = Case.make(SUITE, cluster=cluster, category=error, bucket=arm, body={"b": body})
    run_id = begin(store, [one])
    work = Work(arm, one.id)
    attempt = store.start_work(run_id, SUITE, VERSION, work)
    raw = Raw(body, seed=1, started="t", ms=0.1, error=error)
    store.finish_work(run_id, SUITE, VERSION, work, attempt, raw)

    assert store.cases(run_id, SUITE) == {one.id: one}
    if error:
        assert store.errors(run_id, SUITE) == {arm: [error]}
    else:
        assert store.records(run_id, SUITE, base=arm, floors=(), candidates=()).raws == {(arm, one.id): (raw,)}


def test_two_lone_surrogates_stay_two(store: Store) -> None:
    """A pair of surrogates that came apart is not joined to one character."""
    text = "\ud83d" + "\ude00"

    assert unpack_json(pack_json([text], "x"), "x") == [text]
    assert len(unpack_json(pack_json([text], "x"), "x")[0]) == 2


@pytest.mark.parametrize(
    "raw",
    [
        Raw({"x": float("nan")}),
        Raw({"x": [{"y": float("-inf")}]}),
        Raw({"x": np.float32(1)}),
        Raw({1: "x"}),  # type: ignore[dict-item]
        Raw({"x": b"bytes"}),
        Raw({}, ms=float("nan")),
        Raw({}, seed=2**63),
    ],
    ids=["nan", "inf", "numpy", "key", "bytes", "ms", "seed"],
)
def test_what_is_not_json_is_refused(store: Store, raw: Raw) -> None:
    """Nothing is written, and the attempt can still be finished as a failure."""
    run_id = begin(store, [ONE])
    attempt = store.start_work(run_id, SUITE, VERSION, WORK)
    with pytest.raises(NotJson):
        store.finish_work(run_id, SUITE, VERSION, WORK, attempt, raw)

    assert states(store) == [(1, "running", "")]
    store.finish_work(run_id, SUITE, VERSION, WORK, attempt, BAD)
    assert store.done(run_id, SUITE, VERSION) == {WORK: "failed"}


def test_a_bottomless_body_is_refused(store: Store) -> None:
    """Nesting deeper than the interpreter's stack is one line."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotJson):
        pack_json(deep, "an answer")


def test_a_big_body_survives(store: Store) -> None:
    """Ten megabytes of answer are no special case."""
    run_id = begin(store, [ONE])
    raw = Raw({"text": "ä" * 5_000_000})
    answer(store, run_id, WORK, raw)

    assert read(store, run_id).raws[("q8_0", ONE.id)] == (raw,)


# positions

PANEL = Work("*", ONE.id)


def test_positions_come_back(store: Store) -> None:
    """Blocks return bit for bit, in the order of case, arm, repeat, lane and start."""
    run_id = begin(store, [ONE])
    blocks = [block(ONE.id, arm, seed=i, lane=lane) for i, arm in enumerate(["twin", "q8_0"]) for lane in ("d", "p")]
    answer(store, run_id, PANEL, Raw({}), blocks)
    found = read(store, run_id).positions

    assert [(b.arm, b.lane) for b in found] == [("q8_0", "d"), ("q8_0", "p"), ("twin", "d"), ("twin", "p")]
    want = {(b.arm, b.lane): b.data.tobytes() for b in blocks}
    assert {(b.arm, b.lane): b.data.tobytes() for b in found} == want
    assert all(b.estimator == FULL_VOCABULARY and not b.data.flags.writeable for b in found)


def test_odd_floats_survive(store: Store) -> None:
    """NaN payloads, infinities and the sign of zero are bits like others."""
    run_id = begin(store, [ONE])
    odd = block(ONE.id, "q8_0", n=4)
    odd.data["kl"] = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], dtype="<u4").view("<f4")
    answer(store, run_id, PANEL, Raw({}), [odd])

    assert read(store, run_id).positions[0].data.tobytes() == odd.data.tobytes()


@pytest.mark.parametrize(("n", "rows"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (2500, 3)])
def test_long_blocks_are_split(store: Store, n: int, rows: int) -> None:
    """A row holds at most 1,024 positions; starts go on."""
    run_id = begin(store, [ONE])
    one = PositionBlock(ONE.id, 0, "prefill", "q8_0", 7, FULL_VOCABULARY, positions(n))
    answer(store, run_id, PANEL, Raw({}), [one])
    found = read(store, run_id).positions

    assert [b.start for b in found] == [7 + 1024 * i for i in range(rows)]
    assert b"".join(b.data.tobytes() for b in found) == one.data.tobytes()


def test_other_arms_and_other_references_are_left_out(store: Store) -> None:
    """Only positions of the named arms against the named base are read."""
    run_id = begin(store, [ONE])
    answer(store, run_id, PANEL, Raw({}), [block(ONE.id, a) for a in ("q8_0", "q4_0")])

    assert [b.arm for b in read(store, run_id).positions] == ["q8_0"]
    assert store.records(run_id, SUITE, base="other", floors=(), candidates=["q8_0"]).positions == ()


def test_positions_that_do_not_belong_are_refused(store: Store) -> None:
    """Of a failed attempt, another case, another arm, another dtype: a mistake of the caller."""
    run_id = begin(store, [ONE, case(2)])
    attempt = store.start_work(run_id, SUITE, VERSION, PANEL)
    rows = positions(3)
    wrong = [
        (BAD, block(ONE.id, "q8_0")),
        (OK, block(case(2).id, "q8_0")),
        (OK, PositionBlock(ONE.id, 1, "prefill", "q8_0", 0, FULL_VOCABULARY, rows)),
        (OK, PositionBlock(ONE.id, 0, "prefill", "q8_0", 0, FULL_VOCABULARY, rows["kl"])),
        (OK, PositionBlock(ONE.id, 0, "prefill", "q8_0", 0, FULL_VOCABULARY, rows.reshape(1, 3))),
    ]
    for raw, one in wrong:
        with pytest.raises(ValueError, match="positions"):
            store.finish_work(run_id, SUITE, VERSION, PANEL, attempt, raw, [one])
    single = store.start_work(run_id, SUITE, VERSION, Work("twin", ONE.id))
    with pytest.raises(ValueError, match="positions of q8_0"):
        store.finish_work(run_id, SUITE, VERSION, Work("twin", ONE.id), single, OK, [block(ONE.id, "q8_0")])


def test_positions_need_a_base(store: Store) -> None:
    """Without a recorded base arm nothing says what they were measured against."""
    run_id = store.begin_run("k", {})
    store.add_cases(run_id, [ONE])
    attempt = store.start_work(run_id, SUITE, VERSION, PANEL)

    with pytest.raises(StoreError, match="one base arm"):
        store.finish_work(run_id, SUITE, VERSION, PANEL, attempt, Raw({}), [block(ONE.id, "q8_0")])
    assert states(store) == [(1, "running", "")]


def test_an_answer_and_its_positions_are_one(store: Store) -> None:
    """If the positions cannot be written, neither is the answer."""
    run_id = begin(store, [ONE])
    attempt = store.start_work(run_id, SUITE, VERSION, PANEL)
    twice = [block(ONE.id, "q8_0"), block(ONE.id, "q8_0")]

    with pytest.raises(StoreError, match="refused a row"):
        store.finish_work(run_id, SUITE, VERSION, PANEL, attempt, Raw({}), twice)
    with store._db.read() as c:
        assert c.exec_driver_sql("SELECT count(*) FROM observations").scalar() == 0
    assert states(store) == [(1, "running", "")]
    assert store.done(run_id, SUITE, VERSION) == {}


DAMAGE = {
    "a bit of the data": ("positions", "data", lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], "positions run"),
    "data cut off": ("positions", "data", lambda b: b[:-5], "positions run"),
    "more data": ("positions", "data", lambda b: __import__("zlib").compress(bytes(34 * 6)), "positions run"),
    "other data": ("positions", "data", lambda b: __import__("zlib").compress(bytes(34 * 5)), "wrong checksum"),
    "an answer": ("observations", "raw", lambda b: b[:-3] + b"abc", "answer of \\* to"),
    "a case": ("cases", "body", lambda b: b"x", "golden case"),
    "evidence": ("evidence", "body", lambda b: pack_json({"a": 2}, "x"), "wrong checksum"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named(store: Store, what: str) -> None:
    """Changed bytes in a row are an error that names the row, never data."""
    table, column, change, said = DAMAGE[what]
    run_id = begin(store, [ONE])
    answer(store, run_id, PANEL, Raw({"text": "some answer"}), [block(ONE.id, "q8_0")])
    store.add_evidence(run_id, "log", "", {"a": 1})
    with store._db.write() as c:
        blob = c.exec_driver_sql(f"SELECT {column} FROM {table}").scalar()
        c.execute(sa.text(f"UPDATE {table} SET {column} = :b"), {"b": change(blob)})

    with pytest.raises(StoreError, match=said) as e:
        read(store, run_id)
        store.evidence(run_id)
    assert "damaged" in str(e.value) and "\n" not in str(e.value)


# faults of the disk


def fill(store: Store, run_id: str) -> int:
    """Write noise until the store refuses; the number of answers that were accepted."""
    rng = np.random.default_rng(1)
    for i in range(10_000):
        try:
            answer(store, run_id, Work("q8_0", ONE.id, i), Raw({"text": rng.bytes(20_000).hex()}))
        except StoreError as e:
            assert "is full; nothing already recorded is lost" in str(e) and "\n" not in str(e)
            return i
    raise AssertionError("it never got full")


def test_a_full_disk_loses_nothing(path: Path, small_disk: Path | None) -> None:
    """All that was accepted is there: on a real file system of 1 MiB, or under a limit where we may not mount one."""
    place = path if small_disk is None else small_disk / "kvgate.db"
    with open_store(place) as s:
        if small_disk is None:
            sa.event.listen(s._db.engine, "checkout", lambda c, r, p: c.execute("PRAGMA max_page_count = 150"))
        run_id = begin(s, [ONE])
        accepted = fill(s, run_id)
        assert accepted > 3

        assert len(read(s, run_id).raws[("q8_0", ONE.id)]) == accepted
    with open_store(place) as s:
        assert len([w for w, state in s.done(run_id, SUITE, VERSION).items() if state == "done"]) == accepted


@pytest.mark.sqlite
def test_the_databases_own_limit_is_a_full_disk(store: Store) -> None:
    """SQLite's "database or disk is full" is the same one line; with room again, work goes on."""
    run_id = begin(store, [ONE])
    limit = ["PRAGMA max_page_count = 200"]
    sa.event.listen(store._db.engine, "checkout", lambda c, r, p: c.execute(limit[0]))
    accepted = fill(store, run_id)
    limit[0] = "PRAGMA max_page_count = 100000"
    answer(store, run_id, Work("q8_0", ONE.id, accepted), OK)

    assert len(read(store, run_id).raws[("q8_0", ONE.id)]) == accepted + 1


def test_a_lock_held_too_long_is_one_line(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that never ends makes the other give up with a reason."""
    run_id = begin(store, [ONE])
    sa.event.listen(store._db.engine, "checkout", lambda c, r, p: c.execute("PRAGMA busy_timeout = 10"))
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="stayed locked by another process"):
        store.start_work(run_id, SUITE, VERSION, WORK)
    assert store.run_for("key") is not None
    other.close()
    assert store.start_work(run_id, SUITE, VERSION, WORK) == 1
