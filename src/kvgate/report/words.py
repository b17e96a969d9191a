"""What a metric is called and what it means, in one line each, for somebody who was not there."""

from __future__ import annotations

from typing import NamedTuple

from kvgate.core.metric import parse_metric


class Words(NamedTuple):
    """Name, and one line with the unit and the direction."""

    name: str
    meaning: str


_CONFIDENT = Words(
    "Confident flips (base margin over 0.1)",
    "flips where the base's own choice led by more than 0.1 in probability: these change answers",
)
_TAIL = "one position in {} is farther from the base than this; nat, 0 is identical"
_WORDS = {
    "kl_mean": Words("Mean KL", "average distance of the next-token predictions from the base's; nat, 0 is identical"),
    "kl_median": Words("Median KL", "half of the positions are nearer to the base than this; nat, 0 is identical"),
    "kl_p90": Words("KL, 90th percentile", _TAIL.format("10")),
    "kl_p95": Words("KL, 95th percentile", _TAIL.format("20")),
    "kl_p99": Words("KL, 99th percentile", _TAIL.format("100")),
    "kl_p999": Words("KL, 99.9th percentile", _TAIL.format("1,000")),
    "kl_max": Words("Largest KL", "the single position farthest from the base; nat, 0 is identical"),
    "top1_flip_rate": Words("Top token flips", "share of positions whose likeliest next token is not the base's"),
    "top1_flip_rate_confident": _CONFIDENT,
    "ppl_base": Words("Perplexity of the base", "how surprised the base is by the text; 1 is not at all, no unit"),
    "ppl": Words("Perplexity", "how surprised the model is by the text with this cache; lower is better, no unit"),
    "ppl_ratio": Words("Perplexity ratio", "this perplexity over the base's: 1 × is equal, more is worse"),
    "covered": Words(
        "Mass compared", "share of the base's probability that the compared tokens hold; the rest is unseen"
    ),
    "net_breaks": Words(
        "Breaks against repairs (McNemar)", "p: how often luck alone gives so many more breaks than repairs"
    ),
    "break_rate": Words(
        "Break rate", "share of prompts whose answer broke: JSON, tool call, a loop, a number, cut off"
    ),
    "confirmed_breaks": Words(
        "Confirmed breaks", "prompts that broke, broke again when asked again, and are whole on every floor arm"
    ),
    "critical_breaks": Words("Confirmed breaks of critical prompts", "those of them that are tagged critical"),
    "unconfirmed_breaks": Words(
        "Breaks that did not hold, or that a floor shows too", "prompts that broke once, which counts as noise"
    ),
    "undecided_breaks": Words("Breaks not asked again", "prompts that broke, but the reruns failed, so nobody knows"),
    "repairs": Words("Repairs", "prompts that the base breaks and this arm answers well"),
    "changed_texts": Words("Changed texts", "share of prompts answered with another text, broken or not"),
    "text_similarity": Words("Word similarity of the texts", "share of words that both answers have; 100 % is equal"),
    "drift": Words("Drift of numbers, values or length", "share of prompts with such a change where nothing broke"),
    "accuracy": Words("Needles found", "share of facts hidden in a long text that were found; higher is better"),
    "base_accuracy": Words("Needles that the base found", "share of hidden facts that the base found"),
    "accuracy_ratio": Words(
        "Needles found, ratio to the base", "share found over the base's: 1 × is equal, less is worse"
    ),
    "net_losses": Words(
        "Losses against gains (McNemar)", "p: how often luck alone gives so many more losses than gains"
    ),
    "lost": Words("Needles lost", "needles that the base found and this arm did not"),
    "gained": Words("Needles gained", "needles that this arm found and the base did not"),
}
_ALIASES = {
    "kl_p50": "kl_median",
    "kl_p99_9": "kl_p999",
    "confident_flip_rate": "top1_flip_rate_confident",
    "top1_flip_rate_margin": "top1_flip_rate_confident",
    "ppl_arm": "ppl",
}
#: Lanes whose metrics have the same names; the others' names say it all.
_LANES = {
    "prefill": "prefill",
    "decode": "decode",
    "topk_prefill": "prefill, likeliest tokens only",
    "topk_decode": "decode, likeliest tokens only",
}


def metric_words(metric: str) -> str:
    """A metric's name for people; unknown names are spelled out from the id."""
    short = _short(metric)
    found = _WORDS.get(short)
    return found.name if found else short.replace("_", " ").replace(".", " ").capitalize() if short else metric


def metric_meaning(metric: str) -> str:
    """What it means, with unit and direction; "" for one that is not known here."""
    found = _WORDS.get(_short(metric))
    return found.meaning if found else ""


def metric_title(metric: str) -> str:
    """The name with its lane: 'Mean KL, prefill'. "" for no metric."""
    lane = _LANES.get(metric.split(".", 1)[0], "")
    return f"{metric_words(metric)}{f', {lane}' if lane else ''}" if metric else ""


def _short(metric: str) -> str:
    """The name without lane and labels; "" where it is no metric id."""
    try:
        short = parse_metric(metric).name.split(".", 1)[1]
    except ValueError:
        return ""
    return _ALIASES.get(short, short)
