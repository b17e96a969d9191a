"""dense: every layer caches K and V for all tokens. Takes each architecture that no other file claims.

A file with a window, a recurrent state, shared layers or a latent cache is refused, because its size would be a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.layers import attention_layers, refuse_unknown_keys


@dataclass(frozen=True, slots=True)
class Dense:
    name: str = "dense"
    architectures: tuple[str, ...] = ()

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys)
        return attention_layers(keys)


FAMILY = Dense()
