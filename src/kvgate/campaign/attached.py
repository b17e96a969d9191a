"""Two servers that somebody else runs: `kvgate check CANDIDATE_URL --against BASE_URL`.

Nothing is started. What the servers say of themselves is all that is known: the KV type only from a log that the person
gives, capacity not at all. The noise floor is the base asked a second time. Only the serving lanes exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kvgate.campaign.arms import BASE, SERVING, Arm, Role
from kvgate.campaign.spec import DEFAULT_CONTEXT_TOKENS, CheckSpec
from kvgate.core import registry
from kvgate.core.deployment import NOT_SAID, Expected
from kvgate.core.engine import Attach, Launch, Request, Settings
from kvgate.core.errors import BadAnswer, EngineBusy, EngineChanged, EngineError, UserError
from kvgate.core.geometry import ModelFiles, ModelGeometry
from kvgate.core.recipe import Recipe, parse
from kvgate.core.source import Source
from kvgate.formats.spec import by_spelling

ENGINE = "openai"
#: The base asked again: how far one server differs from itself.
AGAIN = "again"
#: Variables that hold the servers' keys; they are never stored.
KEYS = {"base": "KVGATE_BASE_API_KEY", "candidate": "KVGATE_API_KEY"}
#: KV types of recipes that nobody named, and what else nobody knows of a server elsewhere.
UNKNOWN = NOT_SAID
#: Statuses of a server that keeps no model list.
_NO_LIST = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Pair:
    """Arms over two addresses, and what the servers say their model is; `untested` is what they are too short for."""

    arms: tuple[Arm, ...]
    model: ModelFiles
    context_tokens: int
    untested: Mapping[str, str] = field(default_factory=dict)


class About(NamedTuple):
    """What one server says of itself, or was found to hold; `stored` is its recipe, None where nothing tells it."""

    model: str
    context_tokens: int | None
    stored: str | None = None


def is_url(text: str) -> bool:
    """Whether MODEL is an address."""
    return text.strip().lower().startswith(("http://", "https://"))


def attach(spec: CheckSpec) -> Pair:
    """Ask both servers what they are, and make the arms.

    Raises:
        UserError: no base given, the same address twice, options that mean nothing here, nobody answers, the servers
            say that they serve different models, or nobody says what the candidate stores.
    """
    if spec.against is None:
        raise UserError(
            f"MODEL {spec.model!r} is a running server", fix="name the baseline's server: --against BASE_URL"
        )
    if not is_url(spec.against):
        raise UserError(f"--against {spec.against!r} is no address", fix="write --against http://HOST:PORT")
    if _address(spec.model) == _address(spec.against):
        raise UserError("candidate and baseline are the same server", fix="start one server a recipe")
    if len(spec.kv) > 1:
        raise UserError("a running server has one recipe", fix="give one --kv, or none")
    for name, given in (("--arm", spec.arms), ("--engine-python", spec.engine_python), ("--engine-env", spec.env)):
        if given:
            raise UserError(f"{name} is for engines that kvgate starts", fix="start the servers as you need them")
    recipe, base_recipe = parse(spec.kv[0]) if spec.kv else None, parse(spec.base)
    for stored in (recipe, base_recipe):
        for _, side in stored.sides() if stored is not None else ():
            _codec(side.codec)
    want = spec.context_tokens or DEFAULT_CONTEXT_TOKENS
    candidate = _about(spec.model, spec.log, "candidate", want, any_name=spec.same_model)
    base = _about(spec.against, spec.base_log, "base", want, any_name=spec.same_model)
    if candidate.model != base.model and not spec.same_model:
        raise UserError(
            f"the servers say that they serve {candidate.model!r} and {base.model!r}",
            fix="if it is one model under two names, add --same-model",
        )
    lengths = [x.context_tokens for x in (candidate, base) if x.context_tokens]
    context = min([*lengths, *([spec.context_tokens] if spec.context_tokens else [])], default=want)
    model = _model(base.model, min(lengths, default=context))
    recipe = recipe if recipe is not None else _observed(candidate, spec.model)
    name = str(recipe)
    if name in (BASE, AGAIN):
        raise UserError(f"candidate {name!r} has the name of an arm", fix="give --kv the recipe that it stores")
    settings = Settings(context_tokens=context)

    def arm(name: str, role: Role, url: str, stored: Recipe, log: Path | None) -> Arm:
        who = "candidate" if role is Role.CANDIDATE else "base"
        launch = _launch(url, model, stored, settings, log, who, any_name=spec.same_model)
        return Arm(name, role, frozenset({SERVING}), stored, (), launch)

    arms = (
        arm(BASE, Role.BASE, spec.against, base_recipe, spec.base_log),
        arm(AGAIN, Role.FLOOR, spec.against, base_recipe, spec.base_log),
        arm(name, Role.CANDIDATE, spec.model, recipe, spec.log),
    )
    sizes = {"candidate": candidate.context_tokens, "base": base.context_tokens}
    return Pair(arms, model, context, _too_short(sizes, want) if spec.context_tokens else {})


def _observed(candidate: About, url: str) -> Recipe:
    """The recipe of a candidate that the person did not name: what its log or its pages say that it stores.

    Raises:
        UserError: they say nothing, or a type that is no recipe.
    """
    if candidate.stored is None:
        raise UserError(
            f"nobody says what candidate {url} stores: no --kv, and neither a --log nor a page that names its KV type",
            fix="give --kv RECIPE, with --log FILE to prove it or --assume-engaged to take your word",
        )
    return parse(candidate.stored)


def _address(url: str) -> tuple[str, int | None, str]:
    try:
        parts = urlsplit(url.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme.lower())
    except ValueError as e:
        raise UserError(f"{url!r} is no address: {e}", fix="write http://HOST:PORT") from e
    return (parts.hostname or "").lower(), port, parts.path.rstrip("/")


def _too_short(sizes: Mapping[str, int | None], want: int) -> dict[str, str]:
    """What a context that is shorter than was asked for leaves untested."""
    short = {who: tokens for who, tokens in sizes.items() if tokens is not None and tokens < want}
    if not short:
        return {}
    said = " and ".join(f"{who} holds {tokens}" for who, tokens in short.items())
    why = f"{said} where --context asks for {want}: start it with a longer context"
    return {f"contexts over {min(short.values())} tokens": why}


def _about(url: str, log: Path | None, who: str, want_tokens: int, *, any_name: bool) -> About:
    """The server's model id and context, asked once; a context that it does not tell is found by trial.

    Raises:
        UserError: nobody answers there, or not as such a server does, or as another model than it lists.
    """
    from kvgate.engines._retry import FIRST_CONTACT
    from kvgate.engines.openai import DRIVER

    async def ask() -> About:
        to = Attach(url, api_key=os.environ.get(KEYS[who]), log=log)
        async with DRIVER.attach(to, backoff=FIRST_CONTACT, any_name=any_name) as session:
            await _listed(session, who, url)
            seen = await session.deployment()
            k, v = seen.consequence.k_codec, seen.consequence.v_codec
            stored = None if k is None or v is None else k if k == v else f"k={k},v={v}"
            context = seen.identity.context_tokens or await session.find_context(want_tokens)
            return About(await session.model_name(), context, stored)

    try:
        return asyncio.run(ask())
    except EngineChanged as e:
        fix = "start the model that it lists, or add --same-model if that is another name of it"
        raise UserError(f"{who} {url}: {e}", fix=fix) from e
    except EngineBusy as e:
        fix = "wait until it is ready, and give the address below which /v1/models lies"
        raise UserError(f"{who} {url}: {e}", fix=fix) from e
    except EngineError as e:
        raise UserError(f"{who} {url}: {e}", fix=f"start the server, or set {KEYS[who]} if it wants a key") from e


async def _listed(session: Any, who: str, url: str) -> None:
    """A server that refuses its model list, or gives something else, would be taken for one without a name.

    Raises:
        UserError: a key is missing or wrong, the server is not ready, or it is no such server.
    """
    try:
        await session.get_json("/v1/models")
    except BadAnswer as e:
        if e.status in _NO_LIST:
            return
        fix = "wait until it is ready, and give the address below which /v1/models lies"
        if e.status in (401, 403):
            fix = f"set {KEYS[who]} to its key"
        raise UserError(f"{who} {url}: {e}", fix=fix) from e


def _codec(word: str) -> str:
    """A codec by its own name, as a log names it, from the word of any engine; ambiguous words stay as they are.

    Raises:
        UserError: a word that no engine uses. No engine is asked to store it here, so nobody else would notice.
    """
    if word == UNKNOWN or any(word in registry.discover(kind) for kind in ("codec", "method")):
        return word
    found = set()
    for engine in ("vllm", "sglang", "trtllm", "llama_cpp"):
        with suppress(UserError):
            found.add(by_spelling(engine, word))
    if not found:
        raise UserError(f"no engine stores a KV cache in {word!r}", allowed=registry.discover("codec"))
    return found.pop() if len(found) == 1 else word


def _model(name: str, context_tokens: int) -> ModelFiles:
    """What there is to say of a model that lies elsewhere: its name."""
    source = Source("spec", "the servers' own model list", "")
    geometry = ModelGeometry(name, UNKNOWN, (), context_tokens, 0, source)
    digest = hashlib.sha256(f"served as {name}".encode("utf-8", "surrogatepass")).hexdigest()
    return ModelFiles(name, Path("/"), geometry, digest, None, None, UNKNOWN, 0)


def _launch(
    url: str,
    model: ModelFiles,
    recipe: Recipe,
    settings: Settings,
    log: Path | None,
    who: str,
    *,
    any_name: bool,
) -> Launch:
    sides = dict(recipe.sides())
    k, v = (_codec(sides[x].codec) if x in sides else UNKNOWN for x in "kv")
    return Launch(
        engine=ENGINE,
        request=Request(model, recipe, settings, str(recipe)),
        argv=("attach", url),
        env={},
        engine_options={"url": url, "key_variable": KEYS[who], "log": str(log) if log else "", "any_name": any_name},
        expected=Expected(k_codec=k, v_codec=v, bytes_per_token=0),
        effective=recipe,
    )
