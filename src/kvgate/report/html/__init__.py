"""The HTML report: one file, no script, no request. Everything that a run recorded is data, never markup.

Three walls, each tested alone: Jinja2's autoescaping; `visible` on every string that a template prints (finalize), so
no control character or direction override reaches the page; and a Content-Security-Policy that allows inline styles
and data images and nothing else.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvgate.report.model import RunView
from kvgate.report.sections import floors, golden, needle, results, setup, verdicts
from kvgate.report.visible import bounded, one_line, visible

#: Longest name (of a recipe, an arm, a model) and longest other text of others that the page repeats.
NAME_CHARS, TEXT_CHARS = 120, 4000

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


def _neutral(value: Any) -> Any:
    """Every printed value that is not our own markup loses its control characters; None must not print 'None'."""
    if value is None:
        return "?"
    return visible(bounded(value, TEXT_CHARS)) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment() -> Environment:
    """The one environment of the report: autoescape on, undefined names are errors."""
    found = Environment(
        loader=PackageLoader("kvgate.report.html"),
        autoescape=True,
        finalize=_neutral,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["name"] = lambda text: one_line(str(text), NAME_CHARS)
    return found


def html(view: RunView, *, outputs: bool = True) -> str:
    """The whole report as one HTML document.

    Args:
        outputs: False leaves out every prompt, model text and break detail.
    """
    style = files("kvgate.report.html").joinpath("page.css").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("page.html")
        .render(
            csp=CONTENT_SECURITY_POLICY,
            style=Markup(style),  # noqa: S704 - our own file, no data in it
            outputs=outputs,
            run=view,
            created=setup.when(view.created),
            overall=verdicts.overall(view),
            cards=verdicts.verdict_views(view),
            facts=setup.run_facts(view),
            suites=results.suite_views(view),
            series=results.series_of(view),
            floor_words=floors.floor_sentences(view),
            golden=golden.golden_views(view, outputs=outputs),
            needles=needle.needle_grids(view),
            capacity=setup.capacity_views(view),
            arms=setup.arm_rows(view),
            deltas=setup.delta_rows(view),
            loud=setup.loud_lines(view),
            manifest=setup.manifest_rows(view),
            methods=setup.methods_used(view),
            counted=setup.units_counted(view),
            glossary=setup.GLOSSARY,
        )
    )
