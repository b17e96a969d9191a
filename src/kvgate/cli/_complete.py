"""What a shell may complete: names that are known without starting anything.

A completion that fails is silent: whoever presses Tab wants no error in the middle of a command line. Where no name
fits, the shell goes on with files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvgate.core.errors import KvgateError

Completion = Callable[[str], list[str]]


def _beginning(names: Callable[[], Iterable[str]]) -> Completion:
    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except (KvgateError, OSError, ImportError):
            return []

    return complete


def _policies() -> Iterable[str]:
    from kvgate.gate.policy import builtin_policies

    return builtin_policies()


def _presets() -> Iterable[str]:
    from kvgate.campaign.prepare import PRESETS

    return PRESETS


def _registered(kind: str) -> Callable[[], Iterable[str]]:
    def names() -> Iterable[str]:
        from kvgate.core import registry

        return sorted(registry.discover(kind))

    return names


def _models() -> Iterable[str]:
    from kvgate.models.fetch import list_models

    return [m.model.name for m in list_models()]


def _runs() -> Iterable[str]:
    from kvgate.store.location import ServerUrl, default_location
    from kvgate.store.open import open_store

    if isinstance(default_location(), ServerUrl):
        return ["last"]  # nobody waits for a server at a Tab
    with open_store(create=False) as store:
        return ["last", *(row.run_id for row in store.runs())]


policies = _beginning(_policies)
presets = _beginning(_presets)
engines = _beginning(_registered("engine"))
suites = _beginning(_registered("suite"))
models = _beginning(_models)
runs = _beginning(_runs)
