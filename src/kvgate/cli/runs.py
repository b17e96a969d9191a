"""`kvgate runs`: what has been run."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(runs)


def runs(
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """List the runs in the store, newest first, each with its own verdict: by the policy that its check was given."""
    from kvgate.campaign.own import verdicts_of
    from kvgate.cli._layout import say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.text import one_line
    from kvgate.store.open import open_store

    with open_store(store, create=store in (None, os.environ.get("KVGATE_STORE"))) as opened:
        rows = []
        for r in opened.runs():
            own, others = verdicts_of(opened, r.run_id)
            rows.append(
                {
                    "run": r.run_id,
                    "state": r.state,
                    "created": r.created,
                    "model": r.manifest.get("model", {}).get("name"),
                    "policy": own[0]["policy"] if own else None,
                    "verdicts": {v["candidate"]: v["headline"] for v in own},
                    "also_judged_by": sorted({v["policy"] for v in others}),
                }
            )
    if json_out:
        print_json({"schema": "kvgate.runs/1", "runs": rows})
        return 0
    console = out_console()
    if not rows:
        say(console, "no runs yet: kvgate check smollm2 --kv q8_0 --policy smoke")
    for row in rows:
        said = ", ".join(f"{c} {h}" for c, h in row["verdicts"].items()) or "no verdict yet"
        if row["also_judged_by"]:
            said += (
                f" (by {row['policy']}; also judged by {', '.join(row['also_judged_by'])}: kvgate show {row['run']})"
            )
        say(console, one_line(f"{row['model']}  {said}"), first=f"{row['run']}  {row['state']:<11}  ")
    return 0
