"""Why a published number carries less far than it looks."""

from __future__ import annotations

from enum import StrEnum


class Caveat(StrEnum):
    """One reason; `WORDS` has it in a sentence."""

    VENDOR = "vendor"
    PREPRINT = "preprint"
    ONE_OPERATOR = "one_operator"
    WITHIN_NOISE = "within_noise"
    OUTDATED = "outdated"
    CONTRADICTED = "contradicted"
    FIGURE_READ = "figure_read"
    UNVERIFIED = "unverified"
    SECONDARY = "secondary"
    BF16_WEIGHTS = "bf16_weights"
    FP8_WEIGHTS = "fp8_weights"
    UNCALIBRATED = "uncalibrated"
    NO_INTERVAL = "no_interval"
    SMALL_SAMPLE = "small_sample"
    PROXY = "proxy"
    VERSION_UNKNOWN = "version_unknown"
    SYNTHETIC = "synthetic"


WORDS: dict[Caveat, str] = {
    Caveat.VENDOR: "told by the maker of the hardware or the engine",
    Caveat.PREPRINT: "a preprint, or a method's own paper: its authors tested their own work",
    Caveat.ONE_OPERATOR: "one person's set-up, not repeated by anyone else",
    Caveat.WITHIN_NOISE: "no bigger than what the same test shows between two equal runs",
    Caveat.OUTDATED: "of a version that has changed since in just this point",
    Caveat.CONTRADICTED: "another claim says otherwise",
    Caveat.FIGURE_READ: "read off a figure, or stated only beside one",
    Caveat.UNVERIFIED: "we have not seen the primary text",
    Caveat.SECONDARY: "from a page that quotes the source",
    Caveat.BF16_WEIGHTS: "weights in BF16: says nothing of quantized weights",
    Caveat.FP8_WEIGHTS: "weights in FP8 as well",
    Caveat.UNCALIBRATED: "all scales at 1.0, which its authors call the worst case",
    Caveat.NO_INTERVAL: "printed without an interval or the number of runs",
    Caveat.SMALL_SAMPLE: "few prompts or few positions",
    Caveat.PROXY: "perplexity, divergence or text similarity: no task was scored",
    Caveat.VERSION_UNKNOWN: "the engine's version was not told",
    Caveat.SYNTHETIC: "a calculation or a simulation, not a run of a model",
}
