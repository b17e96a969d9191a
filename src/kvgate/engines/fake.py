"""An engine that stands in for none: a real HTTP server and a panel with scripted faults, noise and clock.

It exists to prove that suites, statistics, gate and bench find planted defects and pass A/A pairs. What it does is in
`_fake_script.FakeScript`; an unscripted fake is healthy.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from urllib.parse import urlsplit

from kvgate.core.deployment import Consequence, Deployment, Engaged, Engagement, Expected, Identity, Note, Subject
from kvgate.core.engine import ArmId, Attach, Available, Lane, Launch, Missing, Panel, Request, Session
from kvgate.core.recipe import Recipe, Side
from kvgate.core.units import MIB_BYTES
from kvgate.engines._attached import hold_against
from kvgate.engines._fake_child import FakeChild
from kvgate.engines._fake_script import SCRIPT_VARIABLE, FakeScript, read_script
from kvgate.engines._kvlog import LogFacts, facts_of
from kvgate.engines.openai import OpenAISession

VERSION = "1"
_NATIVE = "f16"


class FakeSession(OpenAISession):
    """A session whose server wrote a load log."""

    def __init__(self, url: str, child: FakeChild, launch: Launch) -> None:
        super().__init__(url, api_key=child.api_key, alive=child.ended)
        self._child, self._launch = child, launch

    async def deployment(self) -> Deployment:
        """Requested from the launch, observed from the log."""
        return _deployment(self._launch, facts_of(self._child.log()), self._http.url, self._child.pid)

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Asked with tiny requests; the panel is a process of its own and always there."""
        return {**await super().lanes(), Lane.PANEL: Available()}


class FakeDriver:
    """See the module."""

    name = "fake"
    aliases: tuple[str, ...] = ()

    def resolve(self, want: Request) -> Launch:
        """Any registered codec. The script comes from `KVGATE_FAKE_SCRIPT` in the settings' environment.

        Raises:
            UserError: no such codec, a head size that its block does not divide, or a script that is none.
        """
        script = read_script(want.settings.env.get(SCRIPT_VARIABLE, "{}"))
        script = script.for_recipe(want.spelling, str(want.recipe))
        effective = _with_canonical_names(want.recipe)
        return Launch(
            engine=self.name,
            request=want,
            argv=(sys.executable, "-m", "kvgate.engines._fake_server"),
            env={k: v for k, v in want.settings.env.items() if k != SCRIPT_VARIABLE},
            engine_options={"script": script.model_dump(mode="json", exclude_unset=True)},
            expected=_expected(want, effective),
            effective=effective,
        )

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """Start a server, or attach to one.

        Raises:
            EngineDied, EngineTimeout: (on entering) it did not load.
        """
        if isinstance(launch, Attach):
            return OpenAISession(launch.url, api_key=launch.api_key, spelling=launch.spelling)
        return _started(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        """All arms in this process. Vocabulary and seed come from the scripts and must be equal."""
        # numpy is only needed here.
        from kvgate.engines._fake_panel import FakePanel, PanelArm, noise_sd

        arms = {}
        for arm, launch in launches.items():
            script = _script(launch)
            sd = noise_sd(launch.effective, script, launch.request.settings.ubatch_tokens)
            facts = facts_of("\n".join(_log_lines(launch, script)))
            arms[arm] = PanelArm(script, sd, _deployment(launch, facts, None, None))
        return FakePanel(arms)

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: server and panel are two different toys."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        """The log confirms or contradicts; a log that says nothing contradicts, because we started this engine."""
        if observed.consequence.k_codec is None:
            return Engaged(Engagement.CONTRADICTED, "the load log does not name the KV cache", observed.evidence)
        return hold_against(expected, observed)


DRIVER = FakeDriver()


@asynccontextmanager
async def _started(launch: Launch) -> AsyncIterator[Session]:
    script = _script(launch)
    settings = {
        "script": script.model_dump(mode="json", exclude={"per_recipe"}, exclude_unset=True),
        "context_tokens": launch.request.settings.context_tokens,
        "model": launch.request.model.name,
        "log_lines": _log_lines(launch, script),
    }
    child = FakeChild(launch.argv, settings, launch.env)
    try:
        url = await child.address(script.load_timeout_s)
        async with FakeSession(url, child, launch) as session:
            yield session
    finally:
        child.close()


def _script(launch: Launch) -> FakeScript:
    return FakeScript.model_validate(launch.engine_options.get("script", {}))


def _with_canonical_names(recipe: Recipe) -> Recipe:
    """Spellings such as fp8 in the registry's names."""
    sides = [_canonical(side) for _, side in recipe.sides()]
    return recipe.with_sides(*sides) if sides else recipe


def _canonical(side: Side) -> Side:
    from kvgate.formats.spec import by_spelling

    return Side(by_spelling("fake", side.codec), side.params, side.origin, side.transforms)


def _codecs(recipe: Recipe) -> tuple[str, str]:
    if recipe.k is None or recipe.v is None:
        return _NATIVE, _NATIVE
    return recipe.k.codec, recipe.v.codec


def _expected(want: Request, effective: Recipe) -> Expected:
    from kvgate.formats.spec import codec

    k, v = (codec(name) for name in _codecs(effective))
    layers = want.model.geometry.layers
    k_bytes = sum(k.slot_bytes(layer, "k") for layer in layers)
    v_bytes = sum(v.slot_bytes(layer, "v") for layer in layers)
    cells = want.settings.context_tokens * want.settings.slots
    part = ("full_attention", cells, round(k_bytes * cells / MIB_BYTES, 2), round(v_bytes * cells / MIB_BYTES, 2))
    return Expected(
        k_codec=k.name,
        v_codec=v.name,
        k_rotation=0,
        v_rotation=0,
        bytes_per_token=k_bytes + v_bytes,
        parts_mib=(part,),
        lossless_against=tuple(sorted({k.name, *k.lossless_from} & {v.name, *v.lossless_from})),
    )


def _log_lines(launch: Launch, script: FakeScript) -> list[str]:
    """What the server will say of its cache: the truth, but for a scripted lie about the type."""
    if script.silent_log:
        return []
    expected = launch.expected
    ((_, cells, k_mib, v_mib),) = expected.parts_mib
    k, v = script.wrong_dtype or expected.k_codec, script.wrong_dtype or expected.v_codec
    layers, slots = len(launch.request.model.geometry.layers), launch.request.settings.slots
    return [
        f"fake_kv_cache: size = {k_mib + v_mib:8.2f} MiB ({cells:6d} cells, {layers:3d} layers, {slots}/{slots} seqs), "
        f"K ({k}): {k_mib:7.2f} MiB, V ({v}): {v_mib:7.2f} MiB"
    ]


def _deployment(launch: Launch, facts: LogFacts, url: str | None, pid: int | None) -> Deployment:
    want, settings = launch.request, launch.request.settings
    observed = facts.consequence
    if observed.parts:
        # The fake engine rotates nothing, and says so by saying nothing.
        observed = Consequence.model_validate(observed.model_dump() | {"k_rotation": 0, "v_rotation": 0})
    place = urlsplit(url) if url is not None else None
    return Deployment(
        identity=Identity(
            engine="fake",
            version=VERSION,
            build=VERSION,
            model_digest=want.model.digest,
            tokenizer_digest="fake-512",
            template_digest="fake",
            weights_dtype=want.model.weights_dtype,
            device="none",
            context_tokens=settings.context_tokens,
            batch_tokens=settings.batch_tokens,
            ubatch_tokens=settings.ubatch_tokens,
            slots=settings.slots,
            threads=settings.threads,
            checkpoints=settings.checkpoints,
            prefix_cache=False,
            sampling="greedy",
            flash_attention="none",
            env=launch.env,
        ),
        subject=Subject(
            spelling=want.spelling or str(want.recipe), requested=str(want.recipe), effective=str(launch.effective)
        ),
        consequence=observed,
        note=Note(
            place="serving" if url else "panel",
            host=place.hostname if place else None,
            port=place.port if place else None,
            pid=pid,
        ),
        evidence=facts.lines,
    )
