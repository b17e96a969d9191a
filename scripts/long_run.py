"""A long check: memory over the positions, a stop by Ctrl-C and one by kill -9, and the rest on another day.

    .venv/bin/python scripts/long_run.py --positions 250000 --folder /tmp/long

Runs `kvgate check --suite fidelity` on a real llama.cpp engine and a random model of two layers, which it makes (with
the gguf package) together with a corpus, from kvgate's own texts, of at least so many positions in every arm:

1. undisturbed, with the memory of kvgate and of all its children sampled against the documents done;
2. the same into another store: interrupted after a third, resumed, killed after two thirds, and resumed with the
   system clock a day ahead (libfaketime, package faketime) where it is installed.

It fails unless both give the same verdicts, no case was run twice but those in flight at the stops, memory stays flat
and the store under 64 bytes a position and arm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 2048
VOCABULARY = 2048
MAX_BYTES_PER_POSITION = 64
#: Growth over the second half of the run. Keeping the rows of three arms would be 9 MiB for each 100,000 positions; a
#: short run shows the page caches fill, which is a few MiB in all.
MAX_SLOPE_MIB, MAX_FILL_MIB = 4.0, 4.0
SAMPLE_S, MIN_SAMPLES = 0.5, 8


class NotShown(Exception):
    """What this script is there to show did not happen."""


@dataclass(frozen=True)
class Sample:
    """Memory in MiB of the main process and of its children together, at a number of documents done."""

    documents: int
    main_mib: float
    children_mib: float


@dataclass(frozen=True)
class Leg:
    """One start of the command: how it ended, what it printed and what it took."""

    code: int
    document: Mapping[str, Any] | None
    seconds: float
    samples: Sequence[Sample]


def make_model(path: Path, seed: int = 0) -> None:
    """A random llama of 2 layers, 2 heads and head_dim 64; one token a byte, and tokens that no text has."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(seed)
    width, heads, ffn, layers = 128, 2, 256, 2
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("random-2x2x64")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(width // heads)
    writer.add_value_length(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(VOCABULARY)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *([6] * 256)]
    spare = VOCABULARY - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *(f"<spare{i}>" for i in range(spare))])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([*kinds, *([5] * spare)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def weights(rows: int, columns: int, sd: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (rng.standard_normal((rows, columns)) * sd).astype(np.float32)

    def ones() -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.ones(width, dtype=np.float32)

    # Keys and queries are wide, so that attention looks at single places; outputs spread over some nat.
    writer.add_tensor("token_embd.weight", weights(VOCABULARY, width, 1.0))
    writer.add_tensor("output_norm.weight", ones())
    writer.add_tensor("output.weight", weights(VOCABULARY, width, 0.2))
    for i in range(layers):
        for name, rows, columns, sd in (
            ("attn_q", width, width, 0.25),
            ("attn_k", width, width, 0.25),
            ("attn_v", width, width, 0.1),
            ("attn_output", width, width, 0.1),
            ("ffn_up", ffn, width, 0.1),
            ("ffn_gate", ffn, width, 0.1),
            ("ffn_down", width, ffn, 0.05),
        ):
            writer.add_tensor(f"blk.{i}.{name}.weight", weights(rows, columns, sd))
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones())
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_corpus(folder: Path, positions: int, seed: int = 0) -> int:
    """Documents of a whole context each, from sentences of kvgate's own corpus in random order; gives their number."""
    rng = random.Random(seed)  # noqa: S311 - text, not a secret
    root = files("kvgate.suites") / "data" / "corpus"
    for number, category in enumerate(sorted(c.name for c in root.iterdir() if c.is_dir())):
        texts = [f.read_text(encoding="utf-8") for f in sorted((root / category).iterdir(), key=lambda f: f.name)]
        sentences = [s for text in texts for s in re.split(r"(?<=[.!?\n])\s+", text) if s]
        documents = -(-positions // (6 * (CONTEXT_TOKENS - 1)))
        (folder / category).mkdir(parents=True, exist_ok=True)
        for i in range(documents):
            words: list[str] = []
            size_bytes = 0
            while size_bytes < CONTEXT_TOKENS + 64:
                words.append(rng.choice(sentences))
                size_bytes += len(words[-1].encode()) + 1
            (folder / category / f"{number}{i:04}.txt").write_text(" ".join(words), encoding="utf-8")
    return 6 * documents


def command(folder: Path, name: str, *more: str) -> list[str]:
    """The check, into a store of its own."""
    return [
        *(sys.executable, "-m", "kvgate", "check", str(folder / "random.gguf"), "--kv", "q8_0", "--suite", "fidelity"),
        *("--policy", "default", "--context", str(CONTEXT_TOKENS), "--corpus", str(folder / "corpus")),
        *("--threads", "1", "--store", str(folder / f"{name}.db"), "--out", str(folder / name), "--json", *more),
    ]


def run(
    words: Sequence[str],
    store: Path,
    *,
    stop: signal.Signals | None = None,
    at: int = 0,
    env: Mapping[str, str] | None = None,
) -> Leg:
    """Run a check to its end, or until `at` documents are done and `stop` has been sent; samples memory meanwhile."""
    begun, sent = time.monotonic(), False
    samples: list[Sample] = []
    printed, said = store.with_suffix(".stdout"), store.with_suffix(".stderr")
    with printed.open("wb") as out, said.open("ab") as err:
        child = subprocess.Popen(words, stdout=out, stderr=err, env={**os.environ, **(env or {})})
        while child.poll() is None:
            time.sleep(SAMPLE_S)
            samples.append(_sample(child.pid, documents_done(store)))
            if stop is not None and not sent and samples[-1].documents >= at:
                child.send_signal(stop)
                sent = True
    text = printed.read_text(encoding="utf-8")
    document = json.loads(text) if text.startswith("{") else None
    return Leg(child.returncode, document, time.monotonic() - begun, samples)


def documents_done(store: Path) -> int:
    """Finished cases in a store that another process writes."""
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            return int(db.execute("SELECT COUNT(*) FROM work WHERE state = 'done'").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet
        return 0


def _sample(pid: int, documents: int) -> Sample:
    return Sample(documents, _pss_mib(pid), sum(_pss_mib(p) for p in _below(pid)))


def _below(pid: int) -> list[int]:
    """Children, and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    found = [pid]
    for at in found:
        found += [p for p, parent in parents.items() if parent == at]
    return found[1:]


def _pss_mib(pid: int) -> float:
    """Memory that a process has written; pages that several share are divided among them.

    Pages of files are left out: the share of a library's grows when a stranger who has it loaded too ends.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(kib) for kib in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", text, re.MULTILINE)) / 1024


def slope(samples: Sequence[Sample], positions_per_document: float, total: int, of: str) -> tuple[float, float, float]:
    """MiB per 100,000 positions by least squares, and the least and most MiB; the first half is warm-up.

    Args:
        of: "main_mib" or "children_mib".
    """
    used = [s for s in samples if total / 2 <= s.documents < total and s.children_mib]
    if len(used) < MIN_SAMPLES:
        raise NotShown(f"{len(used)} samples of memory are too few: give more --positions")
    x = [s.documents * positions_per_document / 1e5 for s in used]
    y = [float(getattr(s, of)) for s in used]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / spread, min(y), max(y)


def verdicts(store: Path) -> list[Any]:
    """What the store says of each candidate; its digest of the records stands for every position."""
    with closing(sqlite3.connect(store)) as db:
        rows = db.execute(
            "SELECT candidate, records_digest, body FROM verdicts ORDER BY candidate, revision"
        ).fetchall()
    return [(candidate, digest, json.loads(body)) for candidate, digest, body in rows]


def attempts(store: Path) -> dict[str, int]:
    """Cases that were begun more than once, and how often."""
    with closing(sqlite3.connect(store)) as db:
        query = "SELECT case_id, COUNT(*) FROM work GROUP BY arm, case_id, repeat HAVING COUNT(*) > 1"
        return dict(db.execute(query).fetchall())


def stored_positions(store: Path) -> tuple[int, int]:
    """Positions and arms of the positions table."""
    with closing(sqlite3.connect(store)) as db:
        n, arms = db.execute("SELECT SUM(n), COUNT(DISTINCT arm) FROM positions").fetchone()
    return int(n), int(arms)


def size_bytes(store: Path) -> int:
    """The database with what is beside it."""
    return sum(p.stat().st_size for p in store.parent.glob(store.name + "*") if p.is_file())


def undisturbed(folder: Path, documents: int) -> None:
    """The whole at once; memory and size are shown and held to their limits."""
    store = folder / "whole.db"
    leg = run(command(folder, "whole"), store)
    if leg.document is None:
        raise NotShown(f"the check ended with {leg.code}: see {store.with_suffix('.stderr')}")
    stored, arms = stored_positions(store)
    n = stored // arms
    each, half = n / documents, n / 2
    print(f"undisturbed: {n:,} positions in each of {arms} arms, {leg.seconds:.0f} s, exit code {leg.code}", flush=True)
    steep = False
    for what in ("main_mib", "children_mib"):
        per, low, high = slope(leg.samples, each, documents, what)
        name = "kvgate" if what == "main_mib" else "its children"
        print(f"  memory of {name}: {low:.1f} to {high:.1f} MiB, in the second half, slope {per:+.2f} MiB per 100,000")
        steep |= per * half / 1e5 > max(MAX_FILL_MIB, MAX_SLOPE_MIB * half / 1e5)
    for tenth in range(1, 11):
        at = [s for s in leg.samples if s.documents <= documents * tenth / 10 and s.children_mib][-1]
        shown = f"kvgate {at.main_mib:7.1f} MiB, children {at.children_mib:7.1f} MiB"
        print(f"  after {at.documents * each:>9,.0f} positions: {shown}")
    print(f"  judging: at most {max(s.main_mib for s in leg.samples):.1f} MiB")
    bytes_each = size_bytes(store) / stored
    print(f"  store: {size_bytes(store):,} bytes, {bytes_each:.1f} a position and arm")
    if steep or bytes_each >= MAX_BYTES_PER_POSITION:
        raise NotShown("memory is not flat, or the store is too large")


def disturbed(folder: Path, documents: int) -> None:
    """The same with two stops and another day; verdicts must be those of `undisturbed`."""
    store, words = folder / "stopped.db", command(folder, "stopped")
    for stop, at, code in ((signal.SIGINT, documents // 3, 130), (signal.SIGKILL, documents * 2 // 3, -signal.SIGKILL)):
        leg = run(words, store, stop=stop, at=at)
        done = documents_done(store)
        print(f"{stop.name} after {leg.samples[-1].documents} documents: exit code {leg.code}, {done} kept")
        if leg.code != code or not at <= done < documents:
            raise NotShown(f"{stop.name} should end it with {code} and leave part of the work")
    another_day = next_day()
    last = run(words, store, env=another_day)
    print(f"resumed {'a day later' if another_day else 'on the same day (no libfaketime)'}: exit code {last.code}")
    dates = days_of(store)
    print(f"  days in the store: {', '.join(dates)}")
    again = attempts(store)
    print(f"  cases begun more than once: {len(again)} of {documents}, in flight at 2 stops")
    same = verdicts(store) == verdicts(folder / "whole.db")
    print(f"  verdict: {'the same as undisturbed, to the digest of all positions' if same else 'ANOTHER'}")
    if not same or len(again) > 2 or any(n > 3 for n in again.values()) or (another_day and len(dates) < 2):
        raise NotShown("a stopped and resumed check is not the undisturbed one")


def next_day() -> dict[str, str]:
    """Environment in which every clock is a day ahead, those of files aside; empty without libfaketime.

    The monotonic clock goes with the others: with FAKETIME_DONT_FAKE_MONOTONIC, libfaketime 0.9.10 passes the system
    absolute times of the one clock for the other, and sleeping fails with EINVAL.
    """
    library = next((p for p in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), "FAKETIME": "+1d", "NO_FAKE_STAT": "1"}


def days_of(store: Path) -> list[str]:
    """Days on which the answers in a store were begun, by the clock of that time."""
    with closing(sqlite3.connect(store)) as db:
        return [r[0] for r in db.execute("SELECT DISTINCT substr(started, 1, 10) FROM observations ORDER BY 1")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory and resumption of a long check, on a real engine.")
    parser.add_argument("--positions", type=int, default=250_000, help="at least so many in every arm")
    parser.add_argument("--folder", type=Path, required=True, help="scratch; must be empty or not there yet")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if any(asked.folder.iterdir()):
        parser.error(f"{asked.folder} is not empty")
    # A shell that starts this in the background has Ctrl-C ignored, which a child would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    make_model(asked.folder / "random.gguf")
    documents = make_corpus(asked.folder / "corpus", asked.positions)
    print(f"{documents} documents of {CONTEXT_TOKENS} tokens", flush=True)
    try:
        undisturbed(asked.folder, documents)
        disturbed(asked.folder, documents)
    except NotShown as e:
        print(f"NOT SHOWN: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
