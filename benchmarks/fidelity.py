"""The fidelity lane beside llama.cpp's own two passes: the same model, tokens, positions, ubatch and threads.

    python benchmarks/fidelity.py MODEL.gguf --peer BUILD/bin/llama-perplexity [--text FILE] [--chunks 4]
        [--context 512] [--candidates q8_0 q4_0] [--repeats 3] [--threads 1] [--ubatch 128] [--every] [--keep FILE]
        [--json]

The peer is built from llama.cpp's sources (b11434 and later), with the instruction set of the llama.cpp wheel that
kvgate runs, so that neither side has faster kernels; on x86-64:

    cmake -S llama.cpp -B BUILD -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON \\
        -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DLLAMA_CURL=OFF
    cmake --build BUILD --target llama-perplexity

Its first pass writes the f16 cache's log-probabilities to a file, 16 bits a vocabulary entry, and each candidate is a
pass that reads it (`--kl-divergence-base`, `--kl-divergence`). kvgate runs base and candidates in lockstep and keeps
34 bytes a position. The text is that of kvgate's own fidelity corpus unless another is given; tokens are read from the
peer's file. A chunk begins with BOS where the model wants one, and of each chunk only positions from its middle on are
scored (llama.cpp tools/perplexity/perplexity.cpp), and the same here.

Cost is CPU time of whole processes, start and loading included, over all their threads: on a machine that others use
too it is the steadier one. The sides take turns; numbers are medians of the repeats. A further candidate costs the
peer one more pass, and kvgate the difference between a run with two candidates and one with one. "All positions" is
the same work as the suite does it: every position of a chunk is scored, which the peer does not offer.

Agreement, on the same positions: mean, 99th percentile and share of equal top tokens of both, each within the other's
interval (bootstrap over chunks), or within what the file's 16 bits may do: half a step of a log-probability is
16 / 65535 / 2 nat, which moves the sum over the entries that the file keeps by at most that times 1 + KLD +
sqrt(2 KLD). And the base itself: every log-probability in the file is half a step from ours at most, which shows that
tokens, positions and baseline are the same before any candidate is compared.

Exit status 1: a promise is missed (at most 1.1 times the peer's cost a scored position, less than its pass for each
further candidate, under 64 bytes stored a position, agreement, base and all); 2: the peer or the model is not there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAD = b"_logits_"
#: Half a step of a log-probability in the peer's file, in nat: it keeps 16 nat below the largest in 65,535 steps.
HALF_STEP = 16 / 65535 / 2
#: What is kept is the value of a float32 sum under 32 nat: two roundings of half 2**-19.
MOST_BASE_DIFFERENCE = HALF_STEP + 2**-19
MOST_RATIO, MOST_BYTES = 1.1, 64
LEVEL = 0.95
#: More than a token has, so that the text is enough and the peer does not count tokens that nobody uses.
CHARS_A_TOKEN = 8
_BUILD = "cmake ... --target llama-perplexity, as the beginning of this file says"
_CHUNK = re.compile(r"^\s*(\d+)\s+[\d.]+ ±\s+[\d.]+\s+-?[\d.]+ ±\s+\S+\s+(-?[\d.]+) ±.*?([\d.]+) ±\s+\S+ %\s*$")


@dataclass(frozen=True)
class BaseFile:
    """The head of the peer's file. `tokens`: [chunks, context]; `bytes`: of the whole file."""

    context: int
    vocabulary: int
    tokens: NDArray[np.int32]
    bytes: int

    @property
    def scored(self) -> range:
        """Positions of a chunk whose next token is scored."""
        return scored_positions(self.context)

    @property
    def positions(self) -> int:
        return len(self.tokens) * len(self.scored)


@dataclass(frozen=True)
class PeerStats:
    """What the peer prints of a candidate: KLD in nat, equal top tokens as a share; both also of each chunk."""

    mean: float
    p99: float
    same_top: float
    chunk_mean: tuple[float, ...]
    chunk_same_top: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of one process and all that it started."""

    cpu_s: float
    wall_s: float


def scored_positions(context: int) -> range:
    """From the middle of a chunk to the token before its last."""
    return range(context // 2, context - 1)


def read_base(path: Path) -> BaseFile:
    """The head of a file of `--kl-divergence-base`.

    Raises:
        ValueError: not such a file, or shorter than its head says.
    """
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(len(HEAD))
        numbers = np.frombuffer(f.read(12), dtype="<i4")
        if head != HEAD or len(numbers) != 3 or (numbers < 1).any():
            raise ValueError(f"{path} is no file of log-probabilities")
        context, vocabulary, chunks = (int(n) for n in numbers)
        tokens = np.frombuffer(f.read(4 * context * chunks), dtype="<i4")
    row = 2 * (2 * ((vocabulary + 1) // 2) + 4)
    whole = len(HEAD) + 12 + 4 * context * chunks + chunks * len(scored_positions(context)) * row
    if len(tokens) != context * chunks or size != whole:
        raise ValueError(f"{path} has {size} bytes; its head says {whole}")
    return BaseFile(context, vocabulary, tokens.reshape(chunks, context), size)


def read_rows(path: Path, head: BaseFile, chunk: int) -> NDArray[np.uint16]:
    """A chunk's rows as kept: two float32 (step, lowest log-probability) in four codes, then a code for each entry."""
    row, n = 2 * ((head.vocabulary + 1) // 2) + 4, len(head.scored)
    start = len(HEAD) + 12 + 4 * head.tokens.size + chunk * n * row * 2
    return np.fromfile(path, dtype="<u2", count=n * row, offset=start).reshape(n, row)


def base_difference(logits: NDArray[np.float32], rows: NDArray[np.uint16]) -> float:
    """Largest distance of a kept log-probability from that of our logits; entries that were cut off (code 0) apart."""
    largest = 0.0
    for ours, row in zip(logits.astype(np.float64), rows, strict=True):
        step, lowest = (float(x) for x in row[:4].copy().view("<f4"))
        codes = row[4 : 4 + len(ours)]
        lp = ours - ours.max() - np.log(np.exp(ours - ours.max()).sum())
        largest = max(largest, float(np.abs(lp - (lowest + step * codes))[codes > 0].max()))
    return largest


def read_stats(text: str) -> PeerStats:
    """The peer's printed statistics. Its lines of chunks are running means: taken apart here.

    Raises:
        ValueError: a line is missing (fewer than 100 positions, or another version's words).
    """

    def number(pattern: str) -> float:
        found = re.search(pattern, text)
        if found is None:
            raise ValueError(f"the peer did not print {pattern!r}")
        return float(found[1])

    rows = [m for line in text.splitlines() if (m := _CHUNK.match(line))]
    if [int(m[1]) for m in rows] != list(range(1, len(rows) + 1)) or not rows:
        raise ValueError("the peer's lines of chunks are not 1, 2, 3, ...")
    return PeerStats(
        number(r"Mean +KLD: +(-?[\d.]+)"),
        number(r"99\.0% +KLD: +(-?[\d.]+)"),
        number(r"Same top p: +([\d.]+)") / 100,
        apart([float(m[2]) for m in rows]),
        apart([float(m[3]) / 100 for m in rows]),
    )


def apart(running: Sequence[float]) -> tuple[float, ...]:
    """Means of equal parts from the means of the first 1, 2, 3, ... of them."""
    sums = [mean * n for n, mean in enumerate(running, 1)]
    return tuple(b - a for a, b in zip([0.0, *sums], sums, strict=False))


def interval(chunks: Sequence[NDArray[np.float64]], of: Any) -> tuple[float, float]:
    """Percentile bootstrap of a statistic over whole chunks."""
    rng = np.random.default_rng(1)
    drawn = [of(np.concatenate([chunks[i] for i in rng.integers(0, len(chunks), len(chunks))])) for _ in range(2000)]
    lo, hi = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(lo), float(hi)


def file_bound(kld: float) -> float:
    """How far 16 bits a log-probability may move a KLD: E|ln p/q| is at most KLD + sqrt(2 KLD)."""
    return HALF_STEP * (1 + kld + math.sqrt(2 * max(kld, 0.0)))


def agreement(ours: NDArray[np.void], theirs: PeerStats) -> list[dict[str, Any]]:
    """The three numbers of both sides, with intervals, and whether they agree.

    Args:
        ours: [chunks, positions], columns of `core.observation.POSITION_FIELDS`.
    """
    kl = [chunk["kl"].astype(np.float64) for chunk in ours]
    same = [(chunk["top1"] == chunk["base_top1"]).astype(np.float64) for chunk in ours]
    rows = []
    for what, chunks, of, peer, peer_chunks in (
        ("mean KLD", kl, np.mean, theirs.mean, theirs.chunk_mean),
        ("99th percentile", kl, lambda x: np.quantile(x, 0.99), theirs.p99, None),
        ("same top token", same, np.mean, theirs.same_top, theirs.chunk_same_top),
    ):
        value = float(of(np.concatenate(chunks)))
        lo, hi = interval(chunks, of)
        row: dict[str, Any] = {"what": what, "kvgate": value, "kvgate_interval": [lo, hi], "peer": peer}
        inside = lo <= peer <= hi
        if peer_chunks is not None:
            row["peer_interval"] = interval([np.asarray([c]) for c in peer_chunks], np.mean)
            inside = inside and row["peer_interval"][0] <= value <= row["peer_interval"][1]
        near = what != "same top token" and abs(value - peer) <= file_bound(max(value, peer))
        rows.append({**row, "agrees": bool(inside or near), "by": "interval" if inside else "file" if near else ""})
    return rows


def timed(argv: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[Cost, str]:
    """Run a process to its end; its cost with all its children, and what it printed on both streams.

    Raises:
        SystemExit: it failed; the end of its output is the message.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        began = time.perf_counter()
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise SystemExit(f"{Path(argv[0]).name} ended with {process.returncode}: {text[-600:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall), text


def peer_pass(args: argparse.Namespace, base: Path, codec: str, *, write: bool) -> tuple[Cost, str]:
    """One pass of the peer: the base that writes the file, or a candidate that reads it."""
    argv = [args.peer, "-m", args.model, "-c", args.context, "-b", args.context, "-ub", args.ubatch, "-t", args.threads]
    argv += ["-fa", "on", "-ctk", codec, "-ctv", codec, "--no-warmup", "--kl-divergence-base", base]
    argv += ["-f", args.text, "--chunks", args.chunks] if write else ["--kl-divergence"]
    return timed([str(a) for a in argv], os.environ | {"OMP_NUM_THREADS": str(args.threads)})


def our_run(
    args: argparse.Namespace, base: Path, candidates: Sequence[str], *, every: bool = False, verify: bool = False
) -> tuple[Cost, Any]:
    """One run of ours in a process of its own. `verify` compares the base with the peer's file instead of scoring."""
    job = {
        "model": str(args.model),
        "base": str(base),
        "candidates": list(candidates),
        "every": every,
        "verify": verify,
        "threads": args.threads,
        "ubatch": args.ubatch,
        "out": str(base.with_suffix(".npz")),
    }
    cost, text = timed([sys.executable, __file__, "--job", json.dumps(job)])
    if verify:
        return cost, json.loads(text.splitlines()[-1])["base_difference"]
    with np.load(job["out"]) as columns:
        return cost, {"parts": json.loads(text.splitlines()[-1]), "columns": {c: columns[c] for c in candidates}}


def work(job: Mapping[str, Any]) -> dict[str, Any]:
    """Ours: base and candidates in lockstep over the peer's tokens; columns of the scored positions by candidate."""
    from kvgate.core.engine import Pass, Request, Settings
    from kvgate.core.recipe import parse
    from kvgate.core.registry import get
    from kvgate.models.resolve import model_files
    from kvgate.stats.divergence import score_arms

    head, files = read_base(Path(job["base"])), model_files(Path(job["model"]))
    bos = chunk_start(Path(job["model"]))
    settings = Settings(context_tokens=max(256, head.context), threads=job["threads"], ubatch_tokens=job["ubatch"])
    driver = get("engine", "llama_cpp")
    arms = {"base": "f16", **{c: c for c in job["candidates"]}}
    launches = {a: driver.resolve(Request(files, parse(r), settings, r)) for a, r in arms.items()}
    found: dict[str, list[Any]] = {c: [] for c in job["candidates"]}
    scoring_s, start_s, difference = 0.0, time.process_time(), 0.0
    with driver.open_panel(launches) as panel:
        for chunk, tokens in enumerate(head.tokens):
            ids = tokens.astype(np.int64)
            if bos is not None:
                ids[0] = bos
            panel.begin(ids.tolist())
            scored = range(head.context - 1) if job["every"] else head.scored
            columns: dict[str, list[Any]] = {c: [] for c in found}
            at, n = 0, 0
            while (at := at + n) < head.context:
                # Cut at the first scored token: what stands before it needs no logits, and the peer asks for none.
                n = min(job["ubatch"], (scored.start if at < scored.start else head.context) - at)
                if at < scored.start:
                    panel.feed(n)
                    continue
                rows = panel.step(n, Pass.PREFILL)
                lo, hi = 0, min(at + n, scored.stop) - at
                if job["verify"]:
                    kept_rows = read_rows(Path(job["base"]), head, chunk)[
                        at + lo - scored.start : at + hi - scored.start
                    ]
                    difference = max(difference, base_difference(rows["base"][lo:hi], kept_rows))
                    continue
                began = time.process_time()
                # The peer's own target of the last position of a chunk is not scored; ours ends there too.
                targets = ids[at + lo + 1 : at + hi + 1]
                for c, positions in score_arms(
                    rows["base"][lo:hi], {c: rows[c][lo:hi] for c in found}, targets
                ).items():
                    columns[c].append(positions)
                scoring_s += time.process_time() - began
            for c, pieces in columns.items():
                found[c].append(np.concatenate(pieces))
    if job["verify"]:
        return {"base_difference": difference}
    np.savez(job["out"], allow_pickle=False, **{c: np.stack(chunks) for c, chunks in found.items()})
    engine = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "start_cpu_s": start_s,
        "scoring_cpu_s": scoring_s,
        "own_cpu_s": time.process_time(),
        "engine_cpu_s": engine.ru_utime + engine.ru_stime,
    }


def chunk_start(model: Path) -> int | None:
    """The token that the peer puts at the start of a chunk; None where the model does not want one."""
    from kvgate.models.read_gguf import read_gguf

    keys = read_gguf(model).meta
    bos = keys.get("tokenizer.ggml.bos_token_id")
    return bos if keys.get("tokenizer.ggml.add_bos_token", False) and isinstance(bos, int) else None


def stored_bytes(found: Mapping[str, Sequence[Any]]) -> float:
    """Bytes a position of a fresh store that holds these positions, beyond the same store without them."""
    from kvgate.core.observation import FULL_VOCABULARY, Case, PositionBlock, Raw, Work
    from kvgate.store.open import open_store
    from kvgate.store.rows import ArmRow

    sizes = []
    for filled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "k.db"
            with open_store(str(path)) as store, store.lease("k"):
                run = store.begin_run("k", {})
                store.save_arm(run, ArmRow("base", "panel", "base", "native"))
                if filled:
                    n = len(next(iter(found.values())))
                    cases = [Case.make("fidelity", cluster=str(i), body={"chunk": i}) for i in range(n)]
                    store.add_cases(run, cases)
                    for i, case in enumerate(cases):
                        blocks = [
                            PositionBlock(case.id, 0, "prefill", c, 1, FULL_VOCABULARY, chunks[i])
                            for c, chunks in found.items()
                        ]
                        at = Work("*", case.id)
                        attempt = store.start_work(run, "fidelity", 1, at)
                        store.finish_work(run, "fidelity", 1, at, attempt, Raw({"arms": len(blocks)}), blocks)
            sizes.append(path.stat().st_size)
    return (sizes[1] - sizes[0]) / sum(len(x) for chunks in found.values() for x in chunks)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turn, `repeats` times."""
    first, rest = args.candidates[0], args.candidates[1:]
    costs = kept(args.keep)
    theirs: dict[str, PeerStats] = {}
    ours: Any = None

    def note(who: str, cost: Cost) -> None:
        print(f"{who}: {cost.cpu_s:.1f} s CPU, {cost.wall_s:.1f} s", file=sys.stderr)
        costs.setdefault(who, []).append(cost)

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base.kld"
        if args.text is None:
            from kvgate.suites._fidelity_corpus import read_corpus

            args.text = Path(folder) / "text.txt"
            text = "\n\n".join(d.text for d in read_corpus(None).documents)
            args.text.write_text(text[: args.chunks * args.context * CHARS_A_TOKEN])
        done = min((len(runs) for runs in costs.values()), default=0)
        for _ in range(done, max(args.repeats, done + 1)):
            base.unlink(missing_ok=True)
            note("peer, base", peer_pass(args, base, "f16", write=True)[0])
            head = read_base(base)
            cost, found = our_run(args, base, [first])
            note(f"kvgate, {first}", cost)
            for c in args.candidates:
                cost, text = peer_pass(args, base, c, write=False)
                note(f"peer, {c}", cost)
                theirs[c] = read_stats(text)
            ours = found
            for more in range(1, len(rest) + 1):
                cost, ours = our_run(args, base, [first, *rest[:more]])
                note(f"kvgate, {', '.join([first, *rest[:more]])}", cost)
            if args.every:
                note(f"kvgate, {first}, all positions", our_run(args, base, [first], every=True)[0])
            if args.keep:
                args.keep.write_text(json.dumps({who: [asdict(c) for c in runs] for who, runs in costs.items()}))
        ours["base_difference"] = our_run(args, base, [], verify=True)[1]
    return report(args, head, costs, theirs, ours)


def kept(path: Path | None) -> dict[str, list[Cost]]:
    """Costs of earlier repeats; each of them took its turns within one go."""
    if path is None or not path.exists():
        return {}
    return {who: [Cost(**c) for c in runs] for who, runs in json.loads(path.read_text()).items()}


def report(
    args: argparse.Namespace,
    head: BaseFile,
    costs: Mapping[str, Sequence[Cost]],
    theirs: Mapping[str, PeerStats],
    ours: Any,
) -> dict[str, Any]:
    """Medians, ratios and promises."""
    cpu = {who: statistics.median(c.cpu_s for c in runs) for who, runs in costs.items()}
    first = args.candidates[0]
    n = head.positions
    ratios = {f"base and {first}": cpu[f"kvgate, {first}"] / (cpu["peer, base"] + cpu[f"peer, {first}"])}
    so_far = [first]
    for c in args.candidates[1:]:
        before, so_far = cpu[f"kvgate, {', '.join(so_far)}"], [*so_far, c]
        ratios[f"further {c}"] = (cpu[f"kvgate, {', '.join(so_far)}"] - before) / cpu[f"peer, {c}"]
    if args.every:
        per_ours = cpu[f"kvgate, {first}, all positions"] / (len(head.tokens) * (head.context - 1))
        ratios[f"base and {first}, all positions"] = per_ours / ((cpu["peer, base"] + cpu[f"peer, {first}"]) / n)
    agree = {c: agreement(ours["columns"][c], theirs[c]) for c in args.candidates}
    stored, parts = stored_bytes(ours["columns"]), ours["parts"]
    promises: list[dict[str, Any]] = [
        {"what": f"{k}, of the peer's CPU", "value": v, "limit": 1.0 if k.startswith("further") else MOST_RATIO}
        for k, v in ratios.items()
    ]
    difference = ours["base_difference"]
    promises.append({"what": "largest difference of the base", "value": difference, "limit": MOST_BASE_DIFFERENCE})
    promises.append({"what": "bytes stored a position", "value": stored, "limit": MOST_BYTES})
    return {
        "schema": "kvgate.benchmark.fidelity/1",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {"xllamacpp": version("xllamacpp"), "peer": peer_version(args.peer), "numpy": np.__version__},
        "settings": {k: getattr(args, k) for k in ("chunks", "context", "ubatch", "threads", "repeats")},
        "scored_positions": n,
        "costs": {who: [asdict(c) for c in runs] for who, runs in costs.items()},
        "cpu_s": cpu,
        "cpu_ms_per_position": {who: 1000 * s / n for who, s in cpu.items()},
        "last_run_parts": parts,
        "scoring_cpu_ms_per_position": 1000 * parts["scoring_cpu_s"] / n / len(args.candidates),
        "ratios": ratios,
        "peer_file_bytes_per_position": head.bytes / n,
        "stored_bytes_per_position": stored,
        "base_difference_nat": difference,
        "agreement": agree,
        "promises": promises,
        "held": all(p["value"] <= p["limit"] for p in promises) and all(r["agrees"] for a in agree.values() for r in a),
    }


def peer_version(peer: Path) -> str:
    """ "b11434" as the peer says it, else "unknown"."""
    done = subprocess.run([peer, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version: (\d+)", done.stdout + done.stderr)
    return f"b{found[1]}" if found else "unknown"


def markdown(r: Mapping[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    lines = ["| run | CPU ms a scored position |", "|---|---|"]
    lines += [f"| {who} | {ms:.2f} |" for who, ms in r["cpu_ms_per_position"].items()]
    lines += ["", "| kvgate's cost as a multiple of llama-perplexity's | |", "|---|---|"]
    lines += [f"| {what} | {ratio:.2f} |" for what, ratio in r["ratios"].items()]
    lines += ["", "| candidate | number | kvgate | llama-perplexity | agree by |", "|---|---|---|---|---|"]
    for c, rows in r["agreement"].items():
        for a in rows:
            lo, hi = a["kvgate_interval"]
            lines.append(
                f"| {c} | {a['what']} | {a['kvgate']:.5f} [{lo:.5f}, {hi:.5f}] | {a['peer']:.5f} | {a['by'] or 'NO'} |"
            )
    lines += ["", f"Largest difference of a base's log-probability: {r['base_difference_nat']:.2e} nat."]
    stored, file = r["stored_bytes_per_position"], r["peer_file_bytes_per_position"]
    lines += [
        "",
        f"Kept on disk, a scored position: {stored:.1f} bytes and candidate, against {file:,.0f} in the file.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; see the module for the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--text", type=Path, help="instead of the documents that come with kvgate")
    parser.add_argument("--peer", type=Path, help="llama-perplexity")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--ubatch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--candidates", nargs="+", default=["q8_0", "q4_0"])
    parser.add_argument("--every", action="store_true", help="also score all positions, as the suite does")
    parser.add_argument("--keep", type=Path, help="file with the costs of repeats that are done; at least one is added")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        with redirect_stdout(sys.stderr):
            done = work(json.loads(args.job))
        print(json.dumps(done))
        return
    if args.peer is None or not args.peer.is_file():
        print(f"--peer: no llama-perplexity {args.peer or ''}: build it with {_BUILD}", file=sys.stderr)
        sys.exit(2)
    if args.model is None or not args.model.is_file() or (args.text and not args.text.is_file()):
        print("give a GGUF file, and --text a file that is there", file=sys.stderr)
        sys.exit(2)
    found = measure(args)
    print(json.dumps(found, indent=1) if args.json else markdown(found))
    sys.exit(not found["held"])


if __name__ == "__main__":
    main()
