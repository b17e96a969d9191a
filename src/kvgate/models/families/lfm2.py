"""lfm2: short convolutions with attention in some layers; a zero in head_count_kv is a layer without a KV cache.

The convolution state (float32, one per sequence, not touched by cache types) is not counted.
Source: llama.cpp src/models/lfm2.cpp; sizes in gpustack/gguf-parser-go issue 31.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.layers import attention_layers, refuse_unknown_keys


@dataclass(frozen=True, slots=True)
class Lfm2:
    name: str = "lfm2"
    architectures: tuple[str, ...] = ("lfm2",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, ("shortconv.l_cache",))
        return attention_layers(keys)


FAMILY = Lfm2()
