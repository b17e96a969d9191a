"""The fidelity lane beside llama.cpp's own two passes: the same model, tokens, positions, ubatch and threads.

    python benchmarks/fidelity.py MODEL.gguf --peer BUILD/bin/llama-perplexity [--text FILE] [--chunks 4 16]
        [--context 512 256] [--candidates q8_0 q4_0] [--repeats 3] [--threads 1] [--ubatch 128] [--every] [--keep FILE]
        [--part cost agreement] [--json]

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

kvgate runs twice: with its wheel's engine, and with the peer's own libllama, so that what is ours is told from what
is the compiler's: two builds of one source differ in speed and in last bits.

Agreement, on chunks of their own (more and shorter), in three steps:

1. The base: every log-probability in the peer's file is half a step of 16 bits from ours at most. So tokens,
   positions and baseline are the same before any candidate is compared.
2. The peer's own arithmetic (its file, nothing below e**-16) on the logits that kvgate's panel gives with the peer's
   engine makes the numbers that the peer prints, to what it prints and float32 may do. So both measure the same thing;
   kvgate's exact numbers of these logits stand beside.
3. The wheel's engine rounds otherwise, which a quantized cache makes large: a code that flips in one layer flips
   others in the next. So positions differ one by one, and only their differences over chunks say whether the two are
   apart: paired, bootstrap over chunks, at a level that all numbers share (Bonferroni).

Exit status 1: a promise is missed (at most 1.1 times the peer's cost a scored position, less than its pass for each
further candidate, under 64 bytes stored a position, agreement in its three steps); 2: the peer or the model is not
there.
"""

from __future__ import annotations

import argparse
import json
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
PARTS = ("cost", "agreement")
LEVEL, RESAMPLES = 0.95, 4000
#: More than a token has, so that the text is enough and the peer does not count tokens that nobody uses.
CHARS_A_TOKEN = 8
_BUILD = "cmake ... --target llama-perplexity, as the beginning of this file says"
#: The peer leaves entries out whose probability in the base is not above this.
LOWEST_LOG = np.float32(-16)
#: Of a number that the peer prints: six decimals (a share: three of a percentage), and sums of float32 terms of up to
#: 32 nat, three roundings each.
MOST_PRINTED_DIFFERENCE = 5e-7 + 3 * 32 * 2**-24
#: Where b11434's llama.h is not the wheel's (b11549): `llama_context_params` has no field after `type_v` yet.
PEER_LAYOUT = {"llama_context_params": 160, "swa_full": 132, "kv_unified": 133}


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
class Numbers:
    """Of a candidate: mean KLD and its 99th percentile in nat, equal top tokens as a share."""

    mean: float
    p99: float
    same_top: float


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


def filed(logits: NDArray[np.float32], rows: NDArray[np.uint16]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """KLD and equality of the top tokens of each row as the peer computes them from its file.

    Source: log_softmax of llama.cpp tools/perplexity/perplexity.cpp, b11434.
    """
    kld, same = np.empty(len(logits)), np.empty(len(logits), dtype=bool)
    for i, (ours, row) in enumerate(zip(logits, rows, strict=True)):
        step, lowest = row[:4].copy().view("<f4")
        base = step * row[4 : 4 + len(ours)].astype(np.float32) + lowest
        top = ours.max()
        lse = top + np.float32(np.log(np.exp(ours - top).sum(dtype=np.float64)))
        counted = base > LOWEST_LOG
        terms = np.exp(base[counted]) * (base[counted] - ours[counted] + lse)
        kld[i], same[i] = terms.sum(dtype=np.float64), base.argmax() == ours.argmax()
    return kld, same


def read_stats(text: str) -> Numbers:
    """The peer's printed statistics.

    Raises:
        ValueError: a line is missing (fewer than 100 positions, or another version's words).
    """

    def number(pattern: str) -> float:
        found = re.search(pattern, text)
        if found is None:
            raise ValueError(f"the peer did not print {pattern!r}")
        return float(found[1])

    return Numbers(
        number(r"Mean +KLD: +(-?[\d.]+)"),
        number(r"99\.0% +KLD: +(-?[\d.]+)"),
        number(r"Same top p: +([\d.]+)") / 100,
    )


def numbers(kld: NDArray[np.float64], same: NDArray[np.bool_]) -> Numbers:
    """The three of some positions; any shape."""
    return Numbers(float(kld.mean()), float(np.quantile(kld, 0.99)), float(same.mean()))


def kld_and_same(columns: NDArray[np.void]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of columns of `core.observation.POSITION_FIELDS`, in their shape."""
    return columns["kl"].astype(np.float64), columns["top1"] == columns["base_top1"]


def differences(ours: NDArray[np.void], others: NDArray[np.void], level: float) -> dict[str, dict[str, float]]:
    """Each number of `ours` minus that of `others`, with its interval: bootstrap over chunks, both in the same draw.

    Args:
        ours, others: [chunks, positions] columns of the same positions.
    """
    (kld, same), (kld2, same2) = kld_and_same(ours), kld_and_same(others)
    rng, n = np.random.default_rng(1), len(kld)
    drawn = []
    for _ in range(RESAMPLES):
        at = rng.integers(0, n, n)
        drawn.append(_minus(numbers(kld[at], same[at]), numbers(kld2[at], same2[at])))
    point = _minus(numbers(kld, same), numbers(kld2, same2))
    lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    names = asdict(numbers(kld, same))
    return {k: {"difference": point[i], "lo": float(lo[i]), "hi": float(hi[i])} for i, k in enumerate(names)}


def _minus(a: Numbers, b: Numbers) -> tuple[float, ...]:
    return a.mean - b.mean, a.p99 - b.p99, a.same_top - b.same_top


def agreement(
    wheel: NDArray[np.void], own: NDArray[np.void], formula: Numbers, printed: Numbers, level: float
) -> dict[str, Any]:
    """Steps 2 and 3 for one candidate.

    Args:
        wheel, own: [chunks, positions] columns of kvgate with the wheel's engine and with the peer's.
        formula: the peer's arithmetic on the logits behind `own`. level: of each interval.
    """
    apart = [abs(x) for x in _minus(formula, printed)]
    paired = differences(wheel, own, level)
    kld, kld2 = kld_and_same(wheel)[0], kld_and_same(own)[0]
    return {
        "kvgate, wheel": asdict(numbers(*kld_and_same(wheel))),
        "kvgate, peer's engine": asdict(numbers(*kld_and_same(own))),
        "peer's arithmetic": asdict(formula),
        "peer": asdict(printed),
        "printed_difference": max(apart),
        "wheel_minus_peers_engine": paired,
        "sd_of_a_position": float((kld - kld2).std()),
        "same_measure": max(apart) <= MOST_PRINTED_DIFFERENCE,
        "no_difference_seen": all(d["lo"] <= 0 <= d["hi"] for d in paired.values()),
    }


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
    args: argparse.Namespace, base: Path, candidates: Sequence[str], *, every: bool = False, own: bool = False
) -> tuple[Cost, Any]:
    """One run of ours in a process of its own; `own`: with the peer's engine."""
    job = _job(args, base) | {"candidates": list(candidates), "every": every}
    job["library"] = str(library_of(args.peer)) if own else None
    cost, text = timed([sys.executable, __file__, "--job", json.dumps(job)])
    with np.load(job["out"]) as columns:
        return cost, {"parts": json.loads(text.splitlines()[-1]), "columns": {c: columns[c] for c in candidates}}


def checked(args: argparse.Namespace, base: Path) -> dict[str, Any]:
    """Ours with the peer's engine, compared with the file: the base's distance, and the peer's numbers by candidate."""
    job = _job(args, base) | {"candidates": args.candidates, "every": False, "verify": True}
    job["library"] = str(library_of(args.peer))
    said = json.loads(timed([sys.executable, __file__, "--job", json.dumps(job)])[1].splitlines()[-1])
    return {
        "base_difference": said["base_difference"],
        "formula": {c: Numbers(**said["formula"][c]) for c in args.candidates},
    }


def _job(args: argparse.Namespace, base: Path) -> dict[str, Any]:
    return {
        "model": str(args.model),
        "base": str(base),
        "verify": False,
        "threads": args.threads,
        "ubatch": args.ubatch,
        "out": str(base.with_suffix(".npz")),
    }


def library_of(peer: Path) -> Path:
    """The peer's own engine, as its build leaves it."""
    return peer.parent / "libllama.so"


def run_on(library: Path) -> None:
    """Let this process's panels load another build of the engine.

    The worker reads the defaults of its structs back, so a layout that is not this build's is refused.
    """
    from kvgate.engines import _llama_panel

    known = _llama_panel._layout

    def layout(here: Any, facts: Any) -> Any:
        row = known(here, facts)
        here["libraries"] = [str(library)]
        sizes = row.sizes | {"llama_context_params": PEER_LAYOUT["llama_context_params"]}
        places = {k: PEER_LAYOUT.get(k, at) for k, at in row.offsets["llama_context_params"].items()}
        return row.model_copy(update={"sizes": sizes, "offsets": row.offsets | {"llama_context_params": places}})

    _llama_panel._layout = layout


def work(job: Mapping[str, Any]) -> dict[str, Any]:
    """Ours: base and candidates in lockstep over the peer's tokens; columns of the scored positions by candidate."""
    from kvgate.core.engine import Pass, Request, Settings
    from kvgate.core.recipe import parse
    from kvgate.core.registry import get
    from kvgate.models.resolve import model_files
    from kvgate.stats.divergence import score_arms

    if job["library"]:
        run_on(Path(job["library"]))
    head, files = read_base(Path(job["base"])), model_files(Path(job["model"]))
    bos = chunk_start(Path(job["model"]))
    settings = Settings(context_tokens=max(256, head.context), threads=job["threads"], ubatch_tokens=job["ubatch"])
    driver = get("engine", "llama_cpp")
    arms = {"base": "f16", **{c: c for c in job["candidates"]}}
    launches = {a: driver.resolve(Request(files, parse(r), settings, r)) for a, r in arms.items()}
    found: dict[str, list[Any]] = {c: [] for c in job["candidates"]}
    as_filed: dict[str, list[Any]] = {c: [] for c in job["candidates"]}
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
                    for c, pieces in as_filed.items():
                        pieces.append(filed(rows[c][lo:hi], kept_rows))
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
                if pieces:
                    found[c].append(np.concatenate(pieces))
    if job["verify"]:
        whole = {c: [np.concatenate(x) for x in zip(*pieces, strict=True)] for c, pieces in as_filed.items()}
        return {"base_difference": difference, "formula": {c: asdict(numbers(*x)) for c, x in whole.items()}}
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


def text_for(args: argparse.Namespace, folder: Path, chunks: int, context: int) -> argparse.Namespace:
    """The same arguments with sizes of one part, and its text if none was given."""
    made = argparse.Namespace(**vars(args) | {"chunks": chunks, "context": context})
    if made.text is None:
        from kvgate.suites._fidelity_corpus import read_corpus

        made.text = folder / f"{chunks}x{context}.txt"
        text = "\n\n".join(d.text for d in read_corpus(None).documents)
        made.text.write_text(text[: chunks * context * CHARS_A_TOKEN])
    return made


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The parts that were asked for."""
    found: dict[str, Any] = {
        "schema": "kvgate.benchmark.fidelity/2",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {"xllamacpp": version("xllamacpp"), "peer": peer_version(args.peer), "numpy": np.__version__},
        "settings": {k: getattr(args, k) for k in ("chunks", "context", "ubatch", "threads", "repeats")},
    }
    with tempfile.TemporaryDirectory() as name:
        for part, run, chunks, context in zip(
            ("cost", "agreement"), (measure_cost, measure_agreement), args.chunks, args.context, strict=True
        ):
            if part in args.part:
                found |= run(text_for(args, Path(name), chunks, context), Path(name) / f"{part}.kld")
    return found | {"held": all(p["held"] for part in PARTS for p in found.get(f"{part}_promises", ()))}


def measure_agreement(args: argparse.Namespace, base: Path) -> dict[str, Any]:
    """Both sides once, and kvgate with the peer's engine."""
    peer_pass(args, base, "f16", write=True)
    printed = {c: read_stats(peer_pass(args, base, c, write=False)[1]) for c in args.candidates}
    wheel, own = (our_run(args, base, args.candidates, own=own)[1]["columns"] for own in (False, True))
    same = checked(args, base)
    level = 1 - (1 - LEVEL) / (3 * len(args.candidates))
    rows = {c: agreement(wheel[c], own[c], same["formula"][c], printed[c], level) for c in args.candidates}
    difference = same["base_difference"]
    promises = [promise("largest difference of the base, nat", difference, MOST_BASE_DIFFERENCE)]
    for c, row in rows.items():
        limit = MOST_PRINTED_DIFFERENCE
        promises.append(promise(f"{c}: the peer's arithmetic, from print", row["printed_difference"], limit))
        promises.append({"what": f"{c}: no difference of the engines seen", "held": row["no_difference_seen"]})
    return {
        "agreement": rows,
        "agreement_level": level,
        "agreement_chunks": len(next(iter(wheel.values()))),
        "agreement_positions": read_base(base).positions,
        "base_difference_nat": difference,
        "agreement_promises": promises,
    }


def promise(what: str, value: float, limit: float) -> dict[str, Any]:
    """One limit and whether it is kept."""
    return {"what": what, "value": value, "limit": limit, "held": value <= limit}


def measure_cost(args: argparse.Namespace, base: Path) -> dict[str, Any]:
    """Both sides in turn, `repeats` times."""
    costs = kept(args.keep)
    so_far = [args.candidates[: i + 1] for i in range(len(args.candidates))]
    ours: Any = None

    def note(who: str, cost: Cost) -> None:
        print(f"{who}: {cost.cpu_s:.1f} s CPU, {cost.wall_s:.1f} s", file=sys.stderr)
        costs.setdefault(who, []).append(cost)

    done = min((len(runs) for runs in costs.values()), default=0)
    for _ in range(done, max(args.repeats, done + 1)):
        base.unlink(missing_ok=True)
        note("peer, base", peer_pass(args, base, "f16", write=True)[0])
        for candidates in so_far:
            c = candidates[-1]
            note(f"peer, {c}", peer_pass(args, base, c, write=False)[0])
            cost, ours = our_run(args, base, candidates)
            note(f"kvgate, {', '.join(candidates)}", cost)
            note(f"kvgate on the peer's engine, {', '.join(candidates)}", our_run(args, base, candidates, own=True)[0])
        if args.every:
            first = args.candidates[:1]
            note(f"kvgate, {first[0]}, all positions", our_run(args, base, first, every=True)[0])
        if args.keep:
            args.keep.write_text(json.dumps({who: [asdict(c) for c in runs] for who, runs in costs.items()}))
    return report(args, read_base(base), costs, ours)


def kept(path: Path | None) -> dict[str, list[Cost]]:
    """Costs of earlier repeats; each of them took its turns within one go."""
    if path is None or not path.exists():
        return {}
    return {who: [Cost(**c) for c in runs] for who, runs in json.loads(path.read_text()).items()}


def report(args: argparse.Namespace, head: BaseFile, costs: Mapping[str, Sequence[Cost]], ours: Any) -> dict[str, Any]:
    """Medians, ratios and promises of the cost."""
    cpu = {who: statistics.median(c.cpu_s for c in runs) for who, runs in costs.items()}
    first, n = args.candidates[0], head.positions
    both = cpu["peer, base"] + cpu[f"peer, {first}"]
    ratios: dict[str, float] = {}
    for who, where in (("kvgate", ""), ("kvgate on the peer's engine", ", on the peer's engine")):
        ratios[f"base and {first}{where}"] = cpu[f"{who}, {first}"] / both
        so_far = [first]
        for c in args.candidates[1:]:
            before, so_far = cpu[f"{who}, {', '.join(so_far)}"], [*so_far, c]
            ratios[f"further {c}{where}"] = (cpu[f"{who}, {', '.join(so_far)}"] - before) / cpu[f"peer, {c}"]
    if args.every:
        per_ours = cpu[f"kvgate, {first}, all positions"] / (len(head.tokens) * (head.context - 1))
        ratios[f"base and {first}, all positions"] = per_ours / (both / n)
    stored, parts = stored_bytes(ours["columns"]), ours["parts"]
    promises = [
        promise(f"{k}, of the peer's CPU", v, 1.0 if k.startswith("further") else MOST_RATIO) for k, v in ratios.items()
    ]
    promises.append(promise("bytes stored a position", stored, MOST_BYTES))
    return {
        "scored_positions": n,
        "costs": {who: [asdict(c) for c in runs] for who, runs in costs.items()},
        "cpu_s": cpu,
        "cpu_ms_per_position": {who: 1000 * s / n for who, s in cpu.items()},
        "last_run_parts": parts,
        "scoring_cpu_ms_per_position": 1000 * parts["scoring_cpu_s"] / n / len(args.candidates),
        "ratios": ratios,
        "peer_file_bytes_per_position": head.bytes / n,
        "stored_bytes_per_position": stored,
        "cost_promises": promises,
    }


def peer_version(peer: Path) -> str:
    """ "b11434" as the peer says it, else "unknown"."""
    done = subprocess.run([peer, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version: (\d+)", done.stdout + done.stderr)
    return f"b{found[1]}" if found else "unknown"


def markdown(r: Mapping[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    lines: list[str] = []
    if "ratios" in r:
        lines += ["| run | CPU ms a scored position |", "|---|---|"]
        lines += [f"| {who} | {ms:.2f} |" for who, ms in r["cpu_ms_per_position"].items()]
        lines += ["", "| kvgate's cost as a multiple of llama-perplexity's | |", "|---|---|"]
        lines += [f"| {what} | {ratio:.2f} |" for what, ratio in r["ratios"].items()]
        stored, file = r["stored_bytes_per_position"], r["peer_file_bytes_per_position"]
        lines += [
            "",
            f"Kept on disk, a scored position: {stored:.1f} bytes and candidate, {file:,.0f} in the file.",
            "",
        ]
    if "agreement" in r:
        n, chunks = r["agreement_positions"], r["agreement_chunks"]
        lines += [f"{n:,} positions in {chunks} chunks; intervals at {r['agreement_level']:.1%}.", ""]
        lines += [
            "| candidate | number | llama-perplexity prints | its arithmetic on kvgate's logits, its engine |"
            " kvgate, its engine | kvgate, wheel | wheel - its engine |",
            "|---|---|---|---|---|---|---|",
        ]
        for c, a in r["agreement"].items():
            for k, d in a["wheel_minus_peers_engine"].items():
                values = [a[who][k] for who in ("peer", "peer's arithmetic", "kvgate, peer's engine", "kvgate, wheel")]
                cells = " | ".join(f"{v:.6f}" for v in values)
                difference = f"{d['difference']:+.5f} [{d['lo']:+.5f}, {d['hi']:+.5f}]"
                lines.append(f"| {c} | {k} | {cells} | {difference} |")
        lines += ["", f"Largest difference of a base's log-probability: {r['base_difference_nat']:.3e} nat."]
        lines += [
            f"{c}: KLD of a position on the two engines, standard deviation of the difference"
            f" {a['sd_of_a_position']:.4f} nat."
            for c, a in r["agreement"].items()
        ]
    missed = [p["what"] for part in PARTS for p in r.get(f"{part}_promises", ()) if not p["held"]]
    return "\n".join([*lines, "", f"Missed: {'; '.join(missed) or 'nothing'}."])


def main() -> None:
    """Measure and print; see the module for the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--text", type=Path, help="instead of the documents that come with kvgate")
    parser.add_argument("--peer", type=Path, help="llama-perplexity")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--chunks", type=int, nargs=2, default=[4, 16], help="of cost, of agreement")
    parser.add_argument("--context", type=int, nargs=2, default=[512, 256], help="tokens of a chunk, likewise")
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
    if not library_of(args.peer).is_file():
        print(f"--peer: no {library_of(args.peer).name} beside it: build it as shared libraries", file=sys.stderr)
        sys.exit(2)
    if args.model is None or not args.model.is_file() or (args.text and not args.text.is_file()):
        print("give a GGUF file, and --text a file that is there", file=sys.stderr)
        sys.exit(2)
    found = measure(args)
    print(json.dumps(found, indent=1) if args.json else markdown(found))
    sys.exit(not found["held"])


if __name__ == "__main__":
    main()
