"""Of a session: what was requested and observed, and that nothing is confirmed which was not observed."""

from __future__ import annotations

from kvgate.core.deployment import Consequence, Deployment, Engagement
from kvgate.core.engine import Driver, Launch, Session
from kvgate.testing._engine_report import EngineReport
from kvgate.testing._engine_resolve import SECRET
from kvgate.testing._need import need

#: No engine stores this; a deployment that is said to hold it contradicts every expectation.
_OTHER = "f64_of_another_engine"
_MAX_LINE_CHARS = 4096


async def check_deployment(driver: Driver, launch: Launch, session: Session, report: EngineReport) -> None:
    """Requested, observed, evidence, digest; the recipe is confirmed, and only by what was observed."""
    seen = report.deployment = await session.deployment()
    need(seen.identity.engine == driver.name, f"deployment() says engine {seen.identity.engine!r}")
    need(seen.subject.requested == str(launch.request.recipe), "deployment() names another recipe than was requested")
    need(seen.subject.effective, "deployment() does not say what recipe runs")
    need(seen.identity.version or seen.identity.build, "deployment() knows neither version nor build")
    need(seen.consequence.k_codec and seen.consequence.v_codec, "deployment() observed no KV cache types")
    need(seen.evidence, "deployment() has no evidence lines")
    check_evidence(seen)
    again = await session.deployment()
    need(seen.digest() == again.digest(), "deployment() changed between two calls on one server")
    need(Deployment.model_validate_json(seen.model_dump_json()) == seen, "deployment() does not survive being stored")
    engaged = driver.engaged(launch.expected, seen)
    need(engaged.level is Engagement.CONFIRMED, f"engaged() says {engaged.level.value}: {engaged.reason}")
    need(engaged.reason.strip() and engaged.lines, "engaged() confirms without a reason and lines that prove it")
    _check_unproven(driver, launch, seen)
    report.checks += ["deployment observed, recipe confirmed", "nothing unobserved is confirmed"]


def check_evidence(seen: Deployment) -> None:
    """Lines are lines, bounded, and hold no key."""
    for line in seen.evidence:
        need("\n" not in line and len(line) <= _MAX_LINE_CHARS, f"evidence is no line: {line[:60]!r}...")
        found = SECRET.search(line)
        digests = (seen.identity.model_digest, seen.identity.tokenizer_digest, seen.identity.template_digest)
        public = found is None or "/" in line or any(found[0] in (d or "") for d in digests)
        need(public, f"evidence holds what looks like a key: {line[:40]!r}...")


def _check_unproven(driver: Driver, launch: Launch, seen: Deployment) -> None:
    """Without observed types, or with others, there is nothing to confirm."""
    blind = seen.model_copy(update={"consequence": Consequence(), "evidence": ()})
    level = driver.engaged(launch.expected, blind).level
    need(level is not Engagement.CONFIRMED, "engaged() confirms a deployment of which nothing was observed")
    parts = tuple(p.model_copy(update={"k_codec": _OTHER, "v_codec": _OTHER}) for p in seen.consequence.parts)
    changed = {"k_codec": _OTHER, "v_codec": _OTHER, "parts": parts}
    other = seen.model_copy(update={"consequence": seen.consequence.model_copy(update=changed)})
    level = driver.engaged(launch.expected, other).level
    need(
        level is Engagement.CONTRADICTED, f"engaged() says {level.value} where other types were observed than expected"
    )
