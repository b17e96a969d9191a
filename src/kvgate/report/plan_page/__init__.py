"""The page of `kvgate plan --html`: one file, no script, no request, every value data and never markup.

The same three walls as the report's page (`report/html`): autoescaping, `visible` on every printed string, and a
Content-Security-Policy that allows inline styles and data images and nothing else.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from kvgate.report.html import CONTENT_SECURITY_POLICY, environment
from kvgate.report.plan_page.chart import STYLES, concurrency
from kvgate.report.plan_page.model import PlanPage


@cache
def _environment() -> Environment:
    """The report's environment with this page's templates before its own."""
    folders = (PackageLoader("kvgate.report.plan_page"), PackageLoader("kvgate.report.html"))
    return environment().overlay(loader=ChoiceLoader(folders))


def plan_html(page: PlanPage) -> str:
    """The whole page as one HTML document."""
    style = files("kvgate.report.html").joinpath("page.css").read_text(encoding="utf-8")
    style += files("kvgate.report.plan_page").joinpath("plan.css").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("plan.html")
        .render(
            csp=CONTENT_SECURITY_POLICY,
            style=Markup(style),  # noqa: S704 - our own files, no data in them
            page=page,
            chart=concurrency(page.curves, asked_tokens=page.context_tokens, engine=page.engine),
            styles={recipe: STYLES[i % len(STYLES)] for i, recipe in enumerate(page.recipes)},
        )
    )
