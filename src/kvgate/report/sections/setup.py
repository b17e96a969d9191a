"""What ran: arms, engagement, identity against the base, capacity, the manifest, and the words of the statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvgate.core.deployment import FieldDelta, Sameness
from kvgate.core.estimate import Estimate, Test
from kvgate.core.units import bytes_text, duration_text, number_text
from kvgate.report.charts import bar_percent
from kvgate.report.measure import level_text
from kvgate.report.model import ArmView, CapacityRow, RunView
from kvgate.report.sections.floors import declared
from kvgate.report.visible import one_line

_MANIFEST_ROWS = 400


@dataclass(frozen=True, slots=True)
class PartView:
    """One cache of an engine: predicted and reported MiB, "?" where the engine said nothing."""

    kind: str
    cells: str
    predicted_k: str
    predicted_v: str
    reported_k: str
    reported_v: str


@dataclass(frozen=True, slots=True)
class CapacityView:
    recipe: str
    effective: str
    per_token: str
    exact: str
    ratio: str
    percent: float
    parts: tuple[PartView, ...]
    agrees: bool | None
    agreement: str
    source: str


def capacity_views(view: RunView) -> list[CapacityView]:
    """Predicted bytes beside the engine's own words."""
    largest = max((r.bytes_per_token for r in view.capacity), default=0)
    return [_capacity(r, largest) for r in view.capacity]


_AGREEMENT = {
    True: "equal to the engine's log",
    False: "differs from the engine's log",
    None: "? (the engine did not report it)",
}


def _capacity(r: CapacityRow, largest: int) -> CapacityView:
    reported = list(r.reported)
    parts = []
    for kind, cells, k_mib, v_mib in r.predicted:
        same = next((p for p in reported if p.kind == kind and p.cells == cells), None) or next(
            (p for p in reported if p.kind == kind), None
        )
        if same is not None:
            reported.remove(same)
        said = (f"{same.k_mib:.2f}", f"{same.v_mib:.2f}") if same is not None else ("?", "?")
        shown = f"{cells:,}" if same is None or same.cells == cells else f"{cells:,}, the engine says {same.cells:,}"
        parts.append(PartView(kind, shown, f"{k_mib:.2f}", f"{v_mib:.2f}", *said))
    parts += [PartView(p.kind, f"{p.cells:,}", "?", "?", f"{p.k_mib:.2f}", f"{p.v_mib:.2f}") for p in reported]
    return CapacityView(
        r.recipe,
        r.effective,
        bytes_text(r.bytes_per_token),
        f"{r.bytes_per_token:,} B",
        f"{number_text(r.ratio)} ×",
        bar_percent(r.bytes_per_token, largest),
        tuple(parts),
        r.agrees,
        _AGREEMENT[r.agrees],
        r.source,
    )


@dataclass(frozen=True, slots=True)
class EngagedView:
    place: str
    level: str
    reason: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm with how surely its recipe is in force, and the log lines that say so."""

    name: str
    role: str
    recipe: str
    effective: str
    perturb: str
    engaged: tuple[EngagedView, ...]


def arm_rows(view: RunView) -> list[ArmRow]:
    """Every arm of the run."""
    return [
        ArmRow(
            a.name,
            a.role,
            a.recipe,
            a.effective,
            declared(a, view) or "–",
            _engaged(a),
        )
        for a in view.arms
    ]


def _engaged(a: ArmView) -> tuple[EngagedView, ...]:
    """Places that say the same are one entry; a line of evidence that both logged is kept once."""
    places: dict[tuple[str, str], list[str]] = {}
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for place, e in a.engaged.items():
        key = (e.level.value, e.reason)
        places.setdefault(key, []).append(place)
        lines.setdefault(key, {}).update(dict.fromkeys(e.lines))
    return tuple(EngagedView(", ".join(p), *key, tuple(lines[key])) for key, p in places.items())


@dataclass(frozen=True, slots=True)
class DeltaRow:
    candidate: str
    place: str
    field: str
    status: str
    base: str
    arm: str


def delta_rows(view: RunView) -> list[DeltaRow]:
    """Identity fields that differ from the base or that nobody could read."""
    return [
        DeltaRow(name, place, d.field, d.status.value, _value(d.a), _value(d.b))
        for name, evidence in view.evidence.items()
        for place, deltas in evidence.deltas.items()
        for d in deltas
        if FieldDelta(*d).status is not Sameness.SAME
    ]


def loud_lines(view: RunView) -> list[str]:
    """Changed backends and kernels, engine failures: not refused, but said."""
    return [f"{name}: {line}" for name, e in view.evidence.items() for line in e.loud] + [
        f"{name}, {suite}: {line}"
        for name, e in view.evidence.items()
        for suite, errors in e.errors.items()
        for line in errors
    ]


def _value(x: Any) -> str:
    return "?" if x is None else one_line(str(x), 200)


def when(created: str) -> str:
    """An ISO time as '2026-11-30 10:03 UTC'; anything else as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    if moment.tzinfo is None:
        return moment.strftime("%Y-%m-%d %H:%M")
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def run_facts(view: RunView) -> list[tuple[str, str]]:
    """The run in one small table."""
    m = view.model
    versions = {
        " ".join(dict.fromkeys(x for x in (d.identity.version, d.identity.build) if x))
        for a in view.arms
        for d in a.deployments.values()
    }
    return [
        ("Model", f"{m.name} ({m.geometry.architecture}, weights {m.weights_dtype}, {bytes_text(m.size_bytes)})"),
        ("Model file sha256", m.digest),
        ("Engine", f"{view.engine} {', '.join(sorted(v for v in versions if v)) or '(version ?)'}"),
        ("Context", f"{view.context_tokens:,} tokens"),
        ("Policy and preset", f"{view.policy}, {view.preset}"),
        ("Seed", str(view.seed)),
        ("Run", view.run_id),
        ("Run key", view.key),
        ("Started", when(view.created)),
        ("Duration", duration_text(view.duration_s)),
    ]


def manifest_rows(view: RunView) -> list[tuple[str, str]]:
    """The manifest as (path, value) rows, at most `_MANIFEST_ROWS` of them."""
    rows: list[tuple[str, str]] = []
    for path, value in _flat("", view.manifest):
        if len(rows) == _MANIFEST_ROWS:
            rows.append(("…", "more entries are in the store"))
            break
        rows.append((one_line(path, 200), one_line(value, 600)))
    return rows


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if not value:
            yield path, "(empty)"
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping | list | tuple) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(f"{path}[{i}]", inner)
    elif isinstance(value, list | tuple):
        yield path, ", ".join(map(str, value)) or "(empty)"
    else:
        yield path, "?" if value is None else str(value)


def methods_used(view: RunView) -> list[tuple[str, str]]:
    """(method, what for) of every interval and test in the run."""
    found: dict[str, set[str]] = {}
    for evidence in view.evidence.values():
        for summary in evidence.summaries.values():
            for metric, measure in (*summary.metrics.items(), *summary.excess.items()):
                if isinstance(measure, Test):
                    text = f"{measure.method} ({measure.alternative})"
                elif measure.method == "none":
                    continue
                else:
                    bounded = measure.lo is not None or measure.hi is not None
                    bounded = bounded and measure.method != "count"
                    text = _method(metric, measure.method)
                    text += f", {level_text(measure.level)} two-sided" if bounded else ""
                found.setdefault(text, set()).add(metric.split("{", 1)[0])
    return [(method, ", ".join(sorted(metrics))) for method, metrics in sorted(found.items())]


def _method(metric: str, method: str) -> str:
    """The method without the statistic's own name in front, so that one method is listed once."""
    short = metric.split("{", 1)[0].split(".", 1)[-1]
    return method.removeprefix(short).lstrip(", ") or method


def units_counted(view: RunView) -> list[str]:
    """'fidelity, prefill.kl_mean: 2,304 observations in 12 independent units' for each suite's first estimate."""
    lines: dict[tuple[str, str], str] = {}
    for evidence in view.evidence.values():
        for suite, summary in evidence.summaries.items():
            for metric, e in summary.metrics.items():
                lane = metric.split(".", 1)[0]
                if isinstance(e, Estimate) and "{" not in metric and e.n:
                    where = suite if suite == lane else f"{suite}, {lane}"
                    text = f"{where}: {e.n:,} observations in {e.clusters:,} independent units"
                    lines.setdefault((suite, lane), text)
    return list(lines.values())


#: Words that a reader of the page may not know.
GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "Recipe",
        "How the cache stores K and V: native is the model's own type, mostly 16 bits; q8_0 and q4_0 are about 8.5 and "
        "4.5 bits a number, fp8 is 8. k=...,v=... gives K and V their own. +hadamard is a rotation before storing, "
        "which some engines add by themselves.",
    ),
    (
        "KL (nat)",
        "How far the candidate's next-token distribution is from the base's: 0 is identical. Taken at every position "
        "of the same text, over the whole vocabulary unless the table says otherwise.",
    ),
    (
        "Top token flip",
        "The most likely next token is another one than the base's. Harmless where the base had a near tie.",
    ),
    (
        "Confident flip",
        "A flip where the base's best token led by more than 0.1 in probability. These flips change answers.",
    ),
    (
        "Prefill, decode",
        "Two ways an engine computes a position: many at once, or one by one. Engines can differ between them.",
    ),
    (
        "Floor",
        "The base compared with itself under a declared change (a restart, another batch size). It shows how far two "
        "runs of the same thing are apart on this engine.",
    ),
    (
        "Excess",
        "The statistic of the candidate minus the largest of the same statistic over the floors, inside each resample.",
    ),
    (
        "Interval",
        "The two-sided range of values that the data allow at the stated level. A ? end has no bound, which is not "
        "zero; the reason stands with it.",
    ),
    (
        "Independent units",
        "Documents or prompts. Positions of one document are not independent, so inference counts these (clusters).",
    ),
    ("McNemar", "An exact test that asks whether more prompts broke than were repaired than chance would give."),
    ("Confirmed break", "All floor arms are clean on the prompt, and the candidate breaks again in reruns."),
    (
        "Guard",
        "A rule that may fail a candidate but is too small to let it pass. What it cannot see is printed with it.",
    ),
    (
        "Engagement",
        "How sure it is that the engine runs the requested recipe: confirmed by its own log, behavioural, unobserved, "
        "or contradicted, which makes the verdict INVALID.",
    ),
)
