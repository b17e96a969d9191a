"""Bootstrap cost: kvgate's cluster bootstrap beside scipy.stats.bootstrap and a plain numpy loop.

    python benchmarks/bootstrap.py [--repeats 5] [--loop-resamples 200]

Data: 100,000 observations in 240 documents, heavy-tailed, with a shared document effect. kvgate: 10,000 resamples of
documents, mean and p99, candidate and one floor arm. The peers are timed at fewer resamples and scaled, since they
take minutes; each row says so. They resample documents too; scipy's draws are independent for each call, so it gives
no pairing between arms. Prints JSON: medians in seconds and the ratio to kvgate.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import bootstrap

from kvgate.stats.bootstrap import weighted_mean, weighted_quantile
from kvgate.stats.cluster import cluster_counts

OBSERVATIONS, DOCUMENTS, RESAMPLES, Q = 100_000, 240, 10_000, 0.99


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [n] and the document of each, [n]."""
    rng = np.random.default_rng(seed)
    cluster_of = np.sort(rng.integers(0, DOCUMENTS, OBSERVATIONS))
    values = rng.lognormal(-6, 1.5, OBSERVATIONS) * np.exp(rng.normal(0, 0.7, DOCUMENTS))[cluster_of]
    return values, cluster_of


def median_s(f: Callable[[], object], repeats: int) -> float:
    """Median wall time of `f` in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    """Time everything in one process and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loop-resamples", type=int, default=200)
    args = parser.parse_args()
    values, cluster_of = data(1)
    docs = [values[cluster_of == d] for d in range(DOCUMENTS)]
    strata = [str(d % 6) for d in range(DOCUMENTS)]

    def ours() -> None:
        counts = cluster_counts(strata, np.random.default_rng(2), RESAMPLES)
        weighted_mean(values, cluster_of, counts)
        weighted_quantile(values, cluster_of, counts, Q)

    def loop() -> None:
        rng = np.random.default_rng(3)
        for _ in range(args.loop_resamples):
            sample = np.concatenate([docs[i] for i in rng.integers(0, DOCUMENTS, DOCUMENTS)])
            sample.mean()
            np.quantile(sample, Q)

    index = np.arange(DOCUMENTS)

    def peer() -> None:
        for statistic in (np.mean, lambda x: np.quantile(x, Q)):
            bootstrap(
                (index,),
                lambda i, f=statistic: f(np.concatenate([docs[j] for j in i])),
                n_resamples=args.loop_resamples,
                vectorized=False,
                method="percentile",
                rng=np.random.default_rng(4),
            )

    scale = RESAMPLES / args.loop_resamples
    ours()  # pays the imports
    mine = median_s(ours, args.repeats)
    rows = {
        "kvgate": {"seconds": mine, "resamples": RESAMPLES},
        "numpy loop, scaled": {"seconds": median_s(loop, args.repeats) * scale, "resamples": args.loop_resamples},
        "scipy.stats.bootstrap, scaled": {
            "seconds": median_s(peer, args.repeats) * scale,
            "resamples": args.loop_resamples,
        },
    }
    for row in rows.values():
        row["times_kvgate"] = row["seconds"] / mine
    json.dump(
        {
            "observations": OBSERVATIONS,
            "documents": DOCUMENTS,
            "statistics": ["mean", f"quantile {Q}"],
            "repeats": args.repeats,
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "rows": rows,
        },
        sys.stdout,
        indent=2,
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
