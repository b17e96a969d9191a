"""The policy: what a candidate must show. Read from TOML, checked before anything starts, named by its digest."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kvgate.core.errors import UserError
from kvgate.core.metric import parse_metric
from kvgate.core.observation import content_digest
from kvgate.core.registry import discover
from kvgate.gate.rule import RuleSpec, alternatives

SCHEMA = "kvgate.policy/1"
ROLES = ("decide", "guard")
_MOST_BYTES = 1 << 20
_COMMON = ("id", "use", "role", "suite")


class Floor(BaseModel):
    """Noise floor that the policy asks for.

    Attributes:
        arms: floor arms that should have run; a missing one is reported as untested. (The floor is the largest of
            them, so a missing arm makes the excess larger, never smaller.)
        max: largest acceptable floor by metric. A noisier base makes the verdict INCONCLUSIVE, never PASS.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    arms: tuple[str, ...] = ()
    max: Mapping[str, float] = Field(default_factory=dict)

    @field_validator("max")
    @classmethod
    def _metrics(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        for metric in value:
            for one in alternatives(metric):
                parse_metric(one)
        return value


class Policy(BaseModel):
    """A checked policy. `rules` come from the [[rule]] tables, with each rule's own Params."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    #: What it is for, in one line. Decides nothing, so the digest is the same with and without it.
    about: str = Field(default="", max_length=200)
    #: One-sided. Suites make two-sided 90 % intervals, which serve a test at 5 % and above, not below.
    alpha: float = Field(default=0.05, ge=0.05, le=0.25)
    detect_correction: Literal["holm"] = "holm"
    floor: Floor = Floor()
    rules: tuple[RuleSpec, ...] = ()

    def digest(self) -> str:
        """sha256 of the canonical form: the same for any order of keys or rules, comments and spacing."""
        return content_digest(self.canonical())

    def canonical(self) -> dict[str, Any]:
        """What decides, as a JSON value with every default written out."""
        body = self.model_dump(mode="json", exclude={"rules", "about"})
        body["schema"] = SCHEMA
        body["rule"] = [
            {**r.params.model_dump(mode="json"), "id": r.id, "use": r.use, "role": r.role, "suite": r.suite}
            for r in sorted(self.rules, key=lambda r: r.id)
        ]
        return body


def builtin_policies() -> tuple[str, ...]:
    """Names of the policies that ship."""
    folder = resources.files("kvgate.gate") / "policies"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


def load_policy(name_or_path: str | Path) -> Policy:
    """A policy by built-in name or from a file.

    Raises:
        UserError: unknown name, unreadable file, bad TOML (with its line), unknown key or value (with the allowed).
    """
    names = builtin_policies()
    if str(name_or_path) in names:
        text = (resources.files("kvgate.gate") / "policies" / f"{name_or_path}.toml").read_text("utf-8-sig")
        return parse_policy(text, str(name_or_path))
    path = Path(name_or_path)
    try:
        if not path.is_file():
            raise UserError(f"no policy {str(name_or_path)!r}", allowed=names, fix="or give the path of a TOML file")
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"policy {path}: over {_MOST_BYTES} bytes", fix="a policy is a short TOML file")
        text = path.read_text("utf-8-sig")
    except OSError as e:
        raise UserError(f"policy {str(path)[:200]}: {e.strerror or e}", fix="give a readable file") from e
    except UnicodeDecodeError as e:
        raise UserError(f"policy {path}: not UTF-8 text", fix="save it as UTF-8") from e
    return parse_policy(text, str(path))


def parse_policy(text: str, where: str) -> Policy:
    """Read a policy's TOML; `where` names it in errors.

    Raises:
        UserError: as `load_policy`.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as e:  # also an integer of more digits than Python reads
        raise UserError(f"policy {where}: not TOML: {e}", fix="see docs/gate.md for a policy") from e
    if data.get("schema") != SCHEMA:
        raise UserError(f"policy {where}: schema is {data.get('schema')!r}", allowed=(SCHEMA,))
    data.pop("schema")
    tables = data.pop("rule", [])
    if "rules" in data or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise UserError(f"policy {where}: rules are tables", fix="write each rule under [[rule]]")
    rules = tuple(_rule(table, i, where) for i, table in enumerate(tables, start=1))
    ids = [r.id for r in rules]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise UserError(f"policy {where}: two rules have the id {twice[0]!r}", fix="give each rule its own id")
    try:
        return Policy.model_validate({**data, "rules": rules})
    except ValidationError as e:
        raise _refusal(e, f"policy {where}", Policy) from e


def _rule(table: dict[str, Any], number: int, where: str) -> RuleSpec:
    rule_id, use = table.get("id"), table.get("use")
    if not isinstance(rule_id, str) or not rule_id or not rule_id.isprintable():
        raise UserError(f"policy {where}: rule {number} has no id", fix='write id = "a-name"')
    what = f"policy {where}: rule {rule_id!r}"
    known = discover("rule")
    if not isinstance(use, str) or use not in known:
        raise UserError(f"{what}: unknown use {use!r}", allowed=known)
    role, suite = table.get("role", "decide"), table.get("suite")
    if role not in ROLES:
        raise UserError(f"{what}: unknown role {role!r}", allowed=ROLES)
    if suite is not None and not isinstance(suite, str):
        raise UserError(f"{what}: suite is {suite!r}", fix="write the name of one suite")
    rule = known[use]
    try:
        params = rule.Params.model_validate({k: v for k, v in table.items() if k not in _COMMON})
    except ValidationError as e:
        raise _refusal(e, what, rule.Params, more=_COMMON) from e
    return RuleSpec(rule_id, use, role, params, suite)


def _refusal(e: ValidationError, what: str, model: type[BaseModel], more: tuple[str, ...] = ()) -> UserError:
    """The first error as one line: the key, what is wrong with it, the allowed keys if it is unknown."""
    first = e.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        inside = Floor if first["loc"][0] == "floor" and len(first["loc"]) > 1 else model
        allowed = [*more, *(name if name != "rules" else "rule" for name in inside.model_fields)]
        if "metrics" in allowed:
            allowed.append("metric")
        return UserError(f"{what}: unknown key {key!r}", allowed=sorted(allowed))
    if first["type"] == "missing":
        return UserError(f"{what}: key {key!r} is missing", fix=f"add {key} = ...")
    problem = str(first["msg"]).removeprefix("Value error, ")
    return UserError(f"{what}: {key + ': ' if key else ''}{problem}", fix="correct the value")
