"""Of a driver: a panel where `lanes()` promises one, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgate.core.engine import Driver, Lane, Launch, Panel, Pass
from kvgate.core.errors import LaneUnavailable
from kvgate.testing._engine_report import EngineReport
from kvgate.testing._need import need

#: llama.cpp's CPU path takes another kernel for smaller batches.
_PREFILL = 64


def check_panel(driver: Driver, launch: Launch, ids: Sequence[int], report: EngineReport) -> None:
    """Two arms of one launch: rows of the same shape, equal, finite, and the same again after `begin`."""
    if not report.has(Lane.PANEL):
        try:
            with driver.open_panel({"base": launch}):
                pass
        except LaneUnavailable as e:
            need(str(e).strip(), "open_panel() gives no reason")
            report.checks.append("no panel, with the reason")
            return
        raise AssertionError("lanes() says that there is no panel, and open_panel() opened one")
    try:
        with driver.open_panel({"base": launch, "twin": launch}) as panel:
            _check_rows(panel, ids, report)
    except LaneUnavailable as e:
        # A wheel whose layout is not in the table: the lane exists for the engine, not for this build.
        report.untested.append(f"panel: {e}")


def _check_rows(panel: Panel, ids: Sequence[int], report: EngineReport) -> None:
    import numpy as np

    text = (list(ids) * (_PREFILL // max(1, len(ids)) + 1))[: _PREFILL + 1]
    need(set(panel.deployments()) == {"base", "twin"}, "the panel's deployments are of other arms than were opened")

    def run() -> tuple[Any, Any]:
        panel.begin(text)
        first = {arm: np.array(rows) for arm, rows in panel.step(_PREFILL, Pass.PREFILL).items()}
        return first, {arm: np.array(rows) for arm, rows in panel.step(1, Pass.DECODE).items()}

    (prefill, decode), (again, _) = run(), run()
    for rows, n in ((prefill, _PREFILL), (decode, 1)):
        need(set(rows) == {"base", "twin"}, "a step gives rows of other arms than were opened")
        need(rows["base"].ndim == 2 and rows["base"].shape[0] == n, f"{n} positions gave rows {rows['base'].shape}")
        need(rows["base"].dtype == np.float32, f"rows are {rows['base'].dtype}, not float32")
        need(bool(np.isfinite(rows["base"]).all()), "rows hold what is no number")
        need(rows["base"].shape == rows["twin"].shape, "two arms of one model differ in their vocabulary")
    need(
        bool((prefill["base"] == again["base"]).all()), "begin() does not empty the cache: a text gave other rows again"
    )
    report.checks.append("the panel's rows are whole, and the same again")
