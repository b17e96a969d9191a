"""Runs made by hand: a realistic one (q8_0 passes, q4_0 fails) and one in which every foreign string is hostile."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvgate.core.deployment import (
    CachePart,
    Consequence,
    Deployment,
    Engaged,
    Engagement,
    FieldDelta,
    Identity,
    Note,
    Sameness,
    Subject,
)
from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.geometry import LayerGeometry, ModelFiles, ModelGeometry
from kvgate.core.observation import Case, PairScore, Raw, Records, Score
from kvgate.core.source import Source
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Decision, Finding, NextStep, Status, Verdict
from kvgate.report.model import ArmView, CapacityRow, RunView

FEW = "the interval is unbounded: 2 documents, and under 8 clusters a bootstrap interval does not hold its level"
NO_MAX = "a maximum has no bootstrap interval: no resample holds a larger value than the data"
CATEGORIES = ("chat", "code", "documents", "languages", "science", "tools")
POSITIONS = ("1-63", "64-127", "128-255")


def nat(value: float, spread: float = 0.2, *, n: int = 2304, clusters: int = 12, unit: str = "nat") -> Estimate:
    """An estimate with a plausible interval; under 8 clusters it has none."""
    if clusters < 8:
        return Estimate(value, None, None, 0.9, n, clusters, unit, "cluster bootstrap, percentile, B=2000", FEW)
    half = abs(value) * spread
    lo, hi = value - half, value + 1.2 * half
    return Estimate(value, lo, hi, 0.9, n, clusters, unit, "cluster bootstrap, percentile, B=2000")


def lane(name: str, kl: float, flips: float, *, n: int, clusters: int, labels: bool = True) -> dict[str, Measure]:
    """All fidelity metrics of one arm in one lane."""
    out: dict[str, Measure] = {}
    for short, factor in (("kl_mean", 1.0), ("kl_median", 0.55), ("kl_p90", 2.3), ("kl_p95", 3.1), ("kl_p99", 5.2)):
        out[f"{name}.{short}"] = nat(kl * factor, n=n, clusters=clusters)
    out[f"{name}.kl_p999"] = Estimate.unknown(
        f"{n} positions; kl_p999 needs at least 10000", n=n, clusters=clusters, unit="nat"
    )
    out[f"{name}.kl_max"] = Estimate(kl * 24, None, None, 0.9, n, clusters, "nat", "largest position", NO_MAX)
    out[f"{name}.top1_flip_rate"] = nat(flips, n=n, clusters=clusters, unit="1")
    out[f"{name}.top1_flip_rate_confident"] = nat(flips / 9, n=n, clusters=clusters, unit="1")
    out[f"{name}.ppl_base"] = nat(14.21, 0.1, n=n, clusters=clusters, unit="1")
    out[f"{name}.ppl"] = nat(14.21 * (1 + kl), 0.1, n=n, clusters=clusters, unit="1")
    out[f"{name}.ppl_ratio"] = nat(1 + 0.9 * kl, 0.02, n=n, clusters=clusters, unit="1")
    if labels:
        for i, c in enumerate(CATEGORIES):
            out[f"{name}.kl_mean{{category={c}}}"] = nat(kl * (0.6 + 0.17 * i), n=n // 6, clusters=2)
        for i, p in enumerate(POSITIONS):
            out[f"{name}.kl_mean{{position={p}}}"] = nat(kl * (0.7 + 0.2 * i), n=n // 3, clusters=clusters)
    return out


def fidelity(kl: float, decode_kl: float, flips: float) -> Summary:
    """A fidelity summary beside a second context (floor 0) and a ubatch-32 floor (not 0)."""
    arms = {
        "mine": {
            **lane("prefill", kl, flips, n=2304, clusters=12),
            **lane("decode", decode_kl, flips, n=192, clusters=8),
        },
        "twin": {**lane("prefill", 0.0, 0.0, n=2304, clusters=12), **lane("decode", 0.0, 0.0, n=192, clusters=8)},
        "ubatch32": {
            **lane("prefill", 0.00376, 0.047, n=2304, clusters=12),
            **lane("decode", 0.0, 0.0, n=192, clusters=8),
        },
    }
    excess: dict[str, Estimate] = {}
    for metric, e in arms["mine"].items():
        floor = arms["ubatch32"][metric]
        wanted = ("kl", "flip")
        if not (isinstance(e, Estimate) and isinstance(floor, Estimate) and any(w in metric for w in wanted)):
            continue
        if e.value is None or floor.value is None:
            excess[metric] = e
        else:
            gap = e.value - floor.value
            half = 0.12 * e.value
            known = e.lo is not None
            excess[metric] = replace(e, value=gap, lo=gap - half if known else None, hi=gap + half if known else None)
    return Summary(
        arms["mine"],
        excess,
        {"twin": arms["twin"], "ubatch32": arms["ubatch32"]},
        (),
        ("prefill: 12 documents, 2304 positions, none past token 192: longer contexts are unseen",),
    )


def golden_summary(breaks: int, p: float) -> Summary:
    """24 prompts, `breaks` net breaks."""
    return Summary(
        {
            "golden.net_breaks": Test(float(breaks), p, "greater", "McNemar, exact, one-sided", breaks),
            "golden.confirmed_breaks": Estimate(breaks, breaks, breaks, 0.9, 12, 12, "prompts", "count"),
            "golden.changed_texts": nat(0.25, 0.5, n=12, clusters=12, unit="1"),
            "golden.break_rate": nat(breaks / 12, 0.5, n=12, clusters=12, unit="1"),
        },
        floor={"restart": {"golden.break_rate": nat(0.0, n=12, clusters=12, unit="1")}},
        blind_spots=("12 prompts: a 22 % break rate would go unseen",),
    )


def needle_summary(share: float) -> Summary:
    """Four needles at one length."""
    return Summary({"needle.accuracy{bucket=512}": nat(share, n=12, clusters=4, unit="1"),
                    "needle.accuracy": nat(share, n=12, clusters=4, unit="1")})  # fmt: skip


GOLDEN_TEXTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("invoice-json", "json", '{"invoice": "A-113", "total": 48.50, "currency": "EUR"}',
     '{"invoice": "A-113", "total": 48.50, "currency": "EUR"', "invalid_json"),
    ("weather-tool", "tools", "The forecast for Oslo is light rain with 7 degrees.",
     "The forecast for Oslo is light rain with 7 degrees. The forecast for Oslo is light rain with 7 degrees. The forecast for Oslo is "
     "light rain with 7 degrees.", "repetition_loop"),
    ("sum-of-list", "arithmetic", "The total is 17 + 25 + 8 = 50.", "The total is 17 + 25 + 8 = 60.", "number_drift"),
    ("capital", "chat", "The capital of Norway is Oslo, and it has been since 1814.",
     "The capital of Norway is Oslo. It has been the capital since 1814.", ""),
    ("haiku", "chat", "Snow on the cable / the lineman climbs anyway / light in each window",
     "Snow on the cable / the lineman climbs anyway / light in each window", ""),
    ("french", "languages", "Le train part à huit heures et arrive avant midi.",
     "Le train part à huit heures et arrive avant midi.", ""),
)  # fmt: skip


def golden_records(texts: tuple[tuple[str, str, str, str, str], ...] = GOLDEN_TEXTS) -> Records:
    """q8_0 answers like the base but for one word; q4_0 gives the third column."""
    cases: dict[str, Case] = {}
    raws: dict[tuple[str, str], tuple[Raw, ...]] = {}
    pairs: dict[tuple[str, str], PairScore] = {}
    for i, (name, category, base, q4, broke) in enumerate(texts):
        body: dict[str, Any] = {
            "name": name,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Prompt of {name}."}],
            "tags": ["critical"] if i == 0 else [],
        }
        case = Case.make("golden", cluster=name, category=category, body=body)
        cases[case.id] = case
        for arm, text in (("base", base), ("restart", base), ("q8_0", base), ("q4_0", q4)):
            raws[arm, case.id] = (Raw({"text": text, "finish_reason": "stop", "tool_calls": []}, ms=900.0),)
        pairs["restart", case.id] = PairScore("")
        pairs["q8_0", case.id] = PairScore("")
        pairs["q4_0", case.id] = PairScore(
            broke, True if broke and i != 2 else None, f"seen in {name}" if broke else ""
        )
    return Records("golden", "base", ("restart",), ("q8_0", "q4_0"), cases, raws, {}, pairs, digest="ab" * 32)


def needle_records() -> Records:
    """Two lengths, three depths, two salts; q4_0 loses the deep ones at the longer length."""
    cases: dict[str, Case] = {}
    scores: dict[tuple[str, str], tuple[Score, ...]] = {}
    for length in (512, 2048):
        for depth in (0.0, 0.5, 1.0):
            for salt in (1, 2):
                case = Case.make(
                    "needle",
                    cluster=f"s{salt}",
                    bucket=str(length),
                    body={"length": length, "depth": depth, "salt": salt},
                )
                cases[case.id] = case
                lost = length == 2048 and (depth == 0.5 or (depth == 0.0 and salt == 1))
                for arm, value in (("base", 1.0), ("q8_0", 1.0), ("q4_0", 0.0 if lost else 1.0)):
                    scores[arm, case.id] = (Score(value),)
    return Records("needle", "base", ("restart",), ("q8_0", "q4_0"), cases, {}, scores, {}, digest="cd" * 32)


def model() -> ModelFiles:
    """The demo model's facts."""
    layers = tuple(LayerGeometry(i, "full_attention", 3, 64, 64) for i in range(30))
    geometry = ModelGeometry("SmolLM2-135M-Instruct", "llama", layers, 8192, 49152, Source("file", "smollm2.gguf"))
    return ModelFiles(
        "SmolLM2-135M-Instruct", Path("smollm2.gguf"), geometry, "1f" * 32, "2e" * 32, "3d" * 32, "Q4_1", 91_730_048
    )


def deployment(recipe: str, effective: str, k_mib: float, ubatch_tokens: int = 512) -> Deployment:
    """A llama.cpp deployment with its log lines."""
    part = CachePart(
        kind="full_attention", cells=1024, layers=30, k_codec=recipe, v_codec=recipe, k_mib=k_mib, v_mib=k_mib
    )
    return Deployment(
        identity=Identity(
            engine="llama_cpp",
            version="2026.10.11549",
            build="b11549",
            context_tokens=1024,
            threads=2,
            ubatch_tokens=ubatch_tokens,
        ),
        subject=Subject(spelling=recipe, requested=recipe, effective=effective),
        consequence=Consequence(k_codec=recipe, v_codec=recipe, kv_mib=2 * k_mib, cells=1024, layers=30, parts=(part,)),
        note=Note(place="panel", pid=4242),
        evidence=(f"llama_kv_cache: size = {2 * k_mib:.2f} MiB (1024 cells, 30 layers)",),
    )


def arm(
    name: str,
    role: str,
    recipe: str,
    effective: str,
    k_mib: float,
    perturb: tuple[str, ...] = (),
    ubatch_tokens: int = 512,
) -> ArmView:
    """An arm that runs in both places and is confirmed by its log."""
    d = deployment(recipe, effective, k_mib, ubatch_tokens)
    engaged = Engaged(Engagement.CONFIRMED, "K and V types, sizes and rotation as expected", d.evidence)
    return ArmView(
        name, role, recipe, effective, perturb, {"serving": d, "panel": d}, {"serving": engaged, "panel": engaged}
    )


def capacity() -> tuple[CapacityRow, ...]:
    """f16, q8_0 and q4_0 of the demo model at 1,024 cells."""
    rows = []
    for recipe, effective, per_token, k_mib in (
        ("native", "native", 23040, 11.25),
        ("q8_0", "q8_0+hadamard", 12240, 5.98),
        ("q4_0", "q4_0+hadamard", 6480, 3.16),
    ):
        codec = "f16" if recipe == "native" else recipe
        part = CachePart(
            kind="full_attention", cells=1024, layers=30, k_codec=codec, v_codec=codec, k_mib=k_mib, v_mib=k_mib
        )
        predicted = (("full_attention", 1024, k_mib, k_mib),)
        rows.append(
            CapacityRow(
                recipe, effective, per_token, 23040 / per_token, predicted, (part,), True, "log: load log of the panel"
            )
        )
    return tuple(rows)


def engaged_finding() -> Finding:
    return Finding(
        "engaged", "engaged", "decide", Status.PASS, "The engine's own log confirms the recipe in serving and panel."
    )


def verdicts(summaries: dict[str, Summary]) -> tuple[Verdict, ...]:
    """q8_0 passes the smoke policy, q4_0 fails it."""
    q8 = summaries["q8_0"].excess["prefill.kl_mean"]
    q4 = summaries["q4_0"].excess["prefill.kl_mean"]
    kl8 = Finding("kl-mean", "ceiling", "decide", Status.PASS, "Excess mean KL stays under the ceiling with its whole interval.",
                  "prefill.kl_mean", q8, 0.01)  # fmt: skip
    kl4 = Finding("kl-mean", "ceiling", "decide", Status.FAIL, "Excess mean KL is over the ceiling with its whole interval.",
                  "prefill.kl_mean", q4, 0.01)  # fmt: skip
    guard8 = Finding("golden-breaks", "detect", "guard", Status.PASS, "No prompt broke.", "golden.net_breaks",
                     Test(0.0, 1.0, "greater", "McNemar, exact, one-sided", 0), None, None, "", "12 prompts: a 22 % break rate would go unseen")  # fmt: skip
    critical = Finding(
        "golden-critical",
        "detect",
        "guard",
        Status.FAIL,
        "Prompt invoice-json is tagged critical and broke: invalid_json.",
    )
    breaks = Finding("golden-breaks", "detect", "guard", Status.INCONCLUSIVE, "3 prompts broke and none was repaired.", "golden.net_breaks",
                     Test(3.0, 0.125, "greater", "McNemar, exact, one-sided", 3), None, 20)  # fmt: skip
    needle = Finding("needle-accuracy", "noninferior", "guard", Status.INCONCLUSIVE, "9 of 12 needles against 12 of 12.",
                     "needle.accuracy", nat(0.75, n=12, clusters=4, unit="1"), 0.95, None, "4 templates; no number of repeats of them would")  # fmt: skip
    untested = (
        "Contexts over 1,024 tokens",
        "Tool calls behind a long history",
        "Other models: a 135M model's result does not carry over",
    )
    digests = ("9a" * 32, "7b" * 32)
    return (
        Verdict("q8_0", Decision.PASS, (engaged_finding(), kl8, guard8), untested,
                NextStep("Run the default policy at your own context length", "a smoke pass is not a ship decision", "q8_0",
                         "kvgate check smollm2 --kv q8_0 --policy default --context 8192"), "smoke", *digests),
        Verdict("q4_0", Decision.FAIL, (engaged_finding(), kl4, critical, breaks, needle), untested,
                NextStep("Keep K in q8_0 and put only V into q4_0", "K errors move attention itself, V errors only blend values", "k=q8_0,v=q4_0",
                         "kvgate check smollm2 --kv k=q8_0,v=q4_0 --policy smoke"), "smoke", *digests),
    )  # fmt: skip


def realistic() -> RunView:
    """The demo run."""
    fid = {"q8_0": fidelity(0.0043, 0.0051, 0.050), "q4_0": fidelity(0.0522, 0.0611, 0.147)}
    gold = {"q8_0": golden_summary(0, 1.0), "q4_0": golden_summary(3, 0.125)}
    needles = {"q8_0": needle_summary(1.0), "q4_0": needle_summary(0.75)}
    evidence = {
        name: CandidateEvidence(
            name,
            name,
            f"{name}+hadamard",
            {"panel": Engaged(Engagement.CONFIRMED, "as expected")},
            deltas={
                "panel": (
                    FieldDelta("device", Sameness.UNKNOWN, None, None),
                    FieldDelta("engine", Sameness.SAME, "a", "a"),
                )
            },
            loud=("kernel changed: tiled flash attention -> vector flash attention",) if name == "q4_0" else (),
            summaries={"fidelity": fid[name], "golden": gold[name], "needle": needles[name]},
        )
        for name in ("q8_0", "q4_0")
    }
    return RunView(
        run_id="20261130-0941-3f2a",
        key="5c" * 32,
        created="2026-11-30T09:41:12Z",
        duration_s=183.4,
        model=model(),
        engine="llama_cpp",
        policy="smoke",
        preset="smoke",
        seed=20260401,
        context_tokens=1024,
        arms=(
            arm("base", "base", "native", "native", 11.25),
            arm("restart", "floor", "native", "native", 11.25, ()),
            arm("twin", "floor", "native", "native", 11.25, ()),
            arm("ubatch32", "floor", "native", "native", 11.25, ("ubatch_tokens",), ubatch_tokens=32),
            arm("q8_0", "candidate", "q8_0", "q8_0+hadamard", 5.98),
            arm("q4_0", "candidate", "q4_0", "q4_0+hadamard", 3.16),
        ),
        capacity=capacity(),
        evidence=evidence,
        verdicts=verdicts(fid),
        records={"golden": golden_records(), "needle": needle_records()},
        manifest={
            "kvgate": "0.1.0",
            "python": "3.11.2",
            "engine": {
                "package": "xllamacpp",
                "version": "2026.10.11549",
                "options": {"n_ctx": 1024, "n_batch": 2048, "n_ubatch": 512},
            },
            "env": {"LLAMA_ARG_THREADS": "2"},
            "suites": [{"name": "fidelity", "version": 1}, {"name": "golden", "version": 1}],
            "floors": ["restart", "twin", "ubatch32"],
            "cpu": None,
        },
        caveats=(
            "Smoke policy: small and fixed, not a ship decision. A 135M model's result does not carry to another model.",
        ),
    )


MARKER = "window.__kvgate_ran = 1"
#: What a model, a prompt, a log line or a file name may hold. Each would do harm in at least one of the four documents.
ATTACKS: tuple[str, ...] = (
    f"</script><script>{MARKER}</script>",
    f"<img src=x onerror='{MARKER}'>",
    f'"><svg onload="{MARKER}">',
    f"<a href='javascript:{MARKER}'>press</a> [press](javascript:{MARKER}) [go](http://127.0.0.1:9/go) <javascript:{MARKER}>",
    "<iframe src='http://127.0.0.1:9/x'></iframe><link rel=stylesheet href=http://127.0.0.1:9/y>",
    "![x](http://127.0.0.1:9/pixel.png) https://127.0.0.1:9/auto",
    "```\n<b>out of the fence</b>\n````\n<b>bold</b>\n~~~",
    "\x1b[31mred\x1b]8;;http://127.0.0.1:9\x07link\x1b]8;;\x07 \x9b2J",
    "nul \x00 bell \x07 del \x7f",
    "rtl \u202egnp.exe\u202c \u2066isolate\u2069 zero\u200bwidth \ufeffbom \U000e0041tag",
    "{{7*7}} {% raw %} {# c #} ${7*7} #{7*7}",
    "]]> <![CDATA[ &lt; &#x3c; <!-- --> <?xml?> <!DOCTYPE x>",
    "half \ud83d pair, line\u2028para\u2029sep, nonchar \uffff \ufdd0",
    "| a | b |\n| --- | --- |\n\n# heading\n- item\n1. one",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b",
    "</style><style>body{display:none}</style> style=\"position:fixed\" </title></textarea></pre>",
    "W" * 5000,
)  # fmt: skip
HUGE = 2_000_000


def hostile() -> RunView:
    """Every string that comes from outside is an attack; one answer has 2 MB."""
    run = realistic()
    all_of_it = "\n".join(ATTACKS)
    texts = tuple(
        (a, "x" + a[:40], f"same start {i} " + a, f"same start {i} !{a}", a[:60]) for i, a in enumerate(ATTACKS)
    )
    huge = ("huge", "json", "x" * HUGE, "x" * (HUGE - 5) + all_of_it, "truncated")
    records = golden_records((*texts, huge))
    evidence = {
        name: replace(
            e,
            loud=ATTACKS,
            errors={"golden": ATTACKS},
            deltas={"serving": tuple(FieldDelta(a[:30], Sameness.DIFFERS, a, {"x": a}) for a in ATTACKS)},
            summaries={s: replace(x, untested=ATTACKS, blind_spots=ATTACKS) for s, x in e.summaries.items()},
        )
        for name, e in run.evidence.items()
    }
    findings = tuple(
        Finding(a[:40], "detect", "decide", status, a, blind_spot=a, decide_why=a)
        for a, status in zip(ATTACKS, (*Status, *Status, *Status), strict=False)
    )
    verdict = replace(
        run.verdicts[1],
        decision=Decision.INVALID,
        findings=findings,
        untested=ATTACKS,
        caveats=ATTACKS,
        next=NextStep(all_of_it, all_of_it, all_of_it, all_of_it),
    )
    engaged = Engaged(Engagement.CONTRADICTED, all_of_it, ATTACKS)
    arms = [replace(a, recipe=all_of_it[:300], perturb=ATTACKS, engaged={"serving": engaged}) for a in run.arms]
    return replace(
        run,
        run_id=all_of_it[:500],
        created=all_of_it[:200],
        policy=ATTACKS[0],
        engine=ATTACKS[1],
        model=replace(run.model, name=ATTACKS[2] + ATTACKS[9]),
        arms=arms,
        capacity=[
            replace(c, recipe=a, effective=a, source=a, agrees=None)
            for c, a in zip(run.capacity, ATTACKS, strict=False)
        ],
        evidence=evidence,
        verdicts=(run.verdicts[0], verdict),
        records={"golden": records, "needle": run.records["needle"]},
        manifest={a: {"value": a, "list": list(ATTACKS)} for a in ATTACKS},
        caveats=ATTACKS,
    )


#: A name that others give: a folder of texts, a served model's recipe in words, an engine's version, a path.
NAME = "<b>n</b> [x](javascript:y) `c` |p\\|q \x1b]0;t\x07\x1b[31m \u202egnp\u202c " + "W" * 10_000


def foreign() -> RunView:
    """Every name is hostile and 10,000 characters long: candidates, floors, categories, suites, rules, versions, paths."""
    run = realistic()
    names = {old: f"{i}{NAME}" for i, old in enumerate(("q8_0", "q4_0", "twin", "ubatch32", "restart", "base"))}
    evidence, verdicts = {}, []
    for v in run.verdicts:
        e = run.evidence[v.candidate]
        name = names[v.candidate]
        summaries = {
            f"{suite}{NAME}": Summary(
                _foreign_metrics(s.metrics),
                dict(s.excess),
                {names[a]: _foreign_metrics(m) for a, m in s.floor.items()},
                (NAME,),
                (NAME,),
            )
            for suite, s in e.summaries.items()
        }
        evidence[name] = replace(e, candidate=name, recipe=name, effective=name, summaries=summaries, loud=(NAME,))
        findings = tuple(replace(f, rule=f"{f.rule}{NAME}", message=f"{f.message} {NAME}") for f in v.findings)
        verdicts.append(replace(v, candidate=name, findings=findings, untested=(NAME,), policy=NAME))
    arms = [
        replace(a, name=names[a.name], recipe=names.get(a.recipe, NAME), effective=NAME, perturb=(NAME,))
        for a in run.arms
    ]
    records = {suite: _foreign_records(r, names) for suite, r in run.records.items()}
    model = replace(run.model, name=NAME, path=Path("/models") / NAME.replace("/", "_"), weights_dtype=NAME)
    capacity = [replace(c, recipe=names.get(c.recipe, NAME), effective=NAME) for c in run.capacity]
    return replace(
        run,
        engine=NAME,
        policy=NAME,
        preset=NAME,
        model=model,
        arms=arms,
        evidence=evidence,
        verdicts=verdicts,
        records=records,
        capacity=capacity,
        manifest={NAME: {"path": NAME}},
        caveats=(NAME,),
    )


def _foreign_metrics(metrics: Mapping[str, Measure]) -> dict[str, Measure]:
    label = NAME.replace(",", "").replace("=", "")
    return {m.replace("category=", f"category={label}"): e for m, e in metrics.items()}


def _foreign_records(r: Records, names: Mapping[str, str]) -> Records:
    cases = {i: replace(c, category=NAME, cluster=NAME, body={**c.body, "name": NAME}) for i, c in r.cases.items()}
    return replace(
        r,
        base=names[r.base],
        floors=tuple(names[a] for a in r.floors),
        candidates=tuple(names[a] for a in r.candidates),
        cases=cases,
        raws={(names[a], i): x for (a, i), x in r.raws.items()},
        scores={(names[a], i): x for (a, i), x in r.scores.items()},
        pairs={(names[a], i): replace(p, detail=p.detail and NAME) for (a, i), p in r.pairs.items()},
    )
