"""phi3: the file may name a window, and llama.cpp does not use it ("Phi SWA is currently disabled").

Source: llama.cpp src/models/phi3.cpp, pull request 13676. vLLM 0.32 and transformers do use it; where the sizes
differ (the 4k models, whose window is 2,047), kvgate counts all tokens, which never is too little.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_windows import Windowed, no_windows
from kvgate.models.layers import WINDOW_KEY, attention_layers, refuse_unknown_keys


@dataclass(frozen=True, slots=True)
class Phi3:
    name: str = "phi3"
    architectures: tuple[str, ...] = ("phi3",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, (WINDOW_KEY,))
        return attention_layers(keys)


FAMILY = Phi3()
CONFIG_FAMILY = Windowed(
    name="phi3",
    model_types=("phi3", "phimoe", "phi4mm", "phi4_multimodal"),
    rule=no_windows,
    note="llama.cpp keeps all tokens of this family, and vLLM those of the window: all are counted, never too few",
)
