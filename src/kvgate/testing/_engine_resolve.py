"""Of an engine's driver, before anything starts: `resolve` is pure, and refuses in one line with what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.core.engine import Driver, Launch, Request
from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe, Side
from kvgate.testing._engine_report import EngineReport
from kvgate.testing._need import need

#: No engine stores a cache in this, and nothing is like it.
_NONSENSE = "zz9plural"
#: What a random key looks like in a launch or on a command line.
SECRET = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9a-f]{32,}|[A-Za-z0-9_-]{43,})(?![0-9a-zA-Z])")


def check_resolve(driver: Driver, request: Request, report: EngineReport) -> Launch:
    """Purity, shape and refusals; returns the launch."""
    before = dict(os.environ)
    launch = driver.resolve(request)
    need(dict(os.environ) == before, "resolve() changed the environment of this process")
    need(launch == driver.resolve(replace(request)), "resolve() is not pure: two calls with one request differ")
    _check_launch(driver, request, launch)
    _check_refusals(driver, request)
    report.checks += ["resolve is pure", "what cannot be stored is refused in one line"]
    return launch


def _check_launch(driver: Driver, request: Request, launch: Launch) -> None:
    need(launch.engine == driver.name, f"resolve() returned engine {launch.engine!r}, the driver is {driver.name!r}")
    need(launch.request == request, "the launch is of another request than was asked for")
    need(launch.expected.bytes_per_token > 0, "Expected.bytes_per_token is not positive")
    need(
        launch.expected.k_codec and launch.expected.v_codec, "Expected names no types: nothing could be held against it"
    )
    need(isinstance(launch.argv, tuple), "argv must be a tuple of arguments, never a shell line")
    need(launch.argv and all(isinstance(a, str) and a for a in launch.argv), "argv holds something else than words")
    need(all(isinstance(v, str) for v in launch.env.values()), "env holds something else than text")
    public = str(request.model.path) + request.model.digest
    for text in (*launch.argv, *launch.env.values(), *_words(launch.engine_options)):
        found = SECRET.search(text)
        need(found is None or found[0] in public, f"the launch holds what looks like a key: {text[:20]}...")


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _words(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _words(item)


def _check_refusals(driver: Driver, request: Request) -> None:
    """An unknown type names what is allowed; a slip of the fingers also the nearest."""
    error = refusal(driver, request, _NONSENSE)
    need(error.allowed, f"the refusal of {_NONSENSE!r} names nothing that is allowed: {error}")
    stored = None if request.recipe.k is None else request.recipe.k.codec
    if stored is not None:
        slip = stored + stored[-1]
        said = str(refusal(driver, request, slip))
        need(
            stored in re.split(r"[^a-z0-9_]+", said.partition(slip)[2]),
            f"the refusal of {slip!r} does not name {stored!r}: {said}",
        )


def refusal(driver: Driver, request: Request, codec: str) -> UserError:
    """How a driver refuses a recipe of `codec`.

    Raises:
        AssertionError: it does not, or not in one line that names the word.
    """
    recipe = Recipe(Side(codec), Side(codec))
    try:
        driver.resolve(replace(request, recipe=recipe, spelling=codec))
    except UserError as e:
        need(codec in str(e), f"the refusal of {codec!r} does not name it: {e}")
        need("\n" not in str(e), f"the refusal of {codec!r} has more than one line")
        return e
    except Exception as e:
        raise AssertionError(f"a recipe of {codec!r} raised {type(e).__name__}, not UserError: {e}") from e
    raise AssertionError(f"a recipe of {codec!r}, which nothing stores, was taken")
