"""dense: every layer caches K and V for all tokens. Takes each architecture that no other file claims.

A file with a window, a recurrent state, shared layers or a latent cache is refused, because its size would be a guess.
In a `config.json`, a window is taken only where the keys also say which layers have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import FULL
from kvgate.models.config_windows import Windowed, every_nth, from_max_window_layers, window_size
from kvgate.models.layers import attention_layers, refuse_unknown_keys


@dataclass(frozen=True, slots=True)
class Dense:
    name: str = "dense"
    architectures: tuple[str, ...] = ()

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys)
        return attention_layers(keys)


FAMILY = Dense()


def _rule(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    """All layers see all tokens, unless the keys say which do not.

    Raises:
        UserError: a window, and nothing that says which layers have it.
    """
    window = window_size(keys)
    if window is None:
        return (FULL,) * count
    if keys.has("use_sliding_window"):
        return from_max_window_layers(keys, count)
    if keys.has("sliding_window_pattern"):
        return every_nth(1)(keys, count)
    raise UserError(
        f"the configuration names a sliding_window of {window} tokens and not which layers have it, and kvgate has no "
        f"rule for the model_type {keys.model_type!r}",
        fix="add layer_types, or set sliding_window to null if the engine does not use it",
    )


CONFIG_FAMILY = Windowed(name="dense", model_types=(), rule=_rule)
