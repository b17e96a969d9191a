"""`kvgate policy`: what a policy demands, and whether a file is one."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli import _complete


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(help="Policies: what a candidate must show to pass.", no_args_is_help=True)
    group.command("list")(list_policies)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group, name="policy")


_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="smoke, default, strict, or a policy file (TOML).", autocompletion=_complete.policies
    ),
]


def list_policies(
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """List the policies that come with kvgate, and what each is for."""
    from kvgate.cli._layout import say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.gate.policy import builtin_policies, load_policy

    found = [load_policy(name) for name in builtin_policies()]
    if json_out:
        rows = [{"name": p.name, "about": p.about, "rules": len(p.rules), "digest": p.digest()} for p in found]
        print_json({"schema": "kvgate.policies/1", "policies": rows})
        return 0
    console = out_console()
    for policy in found:
        say(console, f"{policy.about}.", first=f"{policy.name:<9}", indent=9)
    say(console, "kvgate policy show NAME has the rules. To make your own, see docs/gate.md", style="dim")
    return 0


def show(
    policy: _Name = "default",
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print every rule of a policy with its parameters, and the digest that verdicts carry."""
    from kvgate.cli._layout import say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.gate.policy import load_policy

    found = load_policy(policy)
    rules = [
        {"id": r.id, "use": r.use, "role": r.role, "suite": r.suite, **r.params.model_dump(mode="json")}
        for r in found.rules
    ]
    if json_out:
        head = found.model_dump(mode="json", exclude={"rules"})
        print_json({"schema": "kvgate.policy.show/1", "digest": found.digest(), **head, "rules": rules})
        return 0
    console = out_console()
    say(console, f"{found.name}: alpha {found.alpha}, digest {found.digest()[:12]}")
    if found.about:
        say(console, f"{found.about}.")
    floor = f"floor: {', '.join(found.floor.arms)}; " + ", ".join(f"{m} <= {x}" for m, x in found.floor.max.items())
    say(console, floor)
    for rule in rules:
        words = [f"{k} {v}" for k, v in rule.items() if k not in ("id", "use", "role") and v not in (None, "", [], ())]
        say(console, f"{rule['id']}: {rule['use']}; {', '.join(words)}", first=f"{rule['role']:>6}  ", indent=4)
    return 0


def check(
    policy: _Name,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Read a policy and say whether it can be used: exit 0, or 2 with the line and the fix."""
    from kvgate.campaign.arms import choose_floors
    from kvgate.cli._layout import say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.gate.policy import load_policy

    found = load_policy(policy)
    choose_floors(found.floor.arms)
    if json_out:
        print_json({"schema": "kvgate.policy.check/1", "name": found.name, "digest": found.digest(), "ok": True})
    else:
        say(out_console(), f"{found.name}: {len(found.rules)} rules, digest {found.digest()[:12]}: can be used")
    return 0
