"""What a checkpoint asks of the KV cache, in its own words: method, algorithm, scheme. From `config.json` alone.

The same words mean different things to different engines, so this says what stands there, and the writers what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.launch.commands import Ask
from kvgate.models.read_config import QUANT_KEY


@dataclass(frozen=True, slots=True)
class CheckpointKv:
    """The checkpoint's own quantization.

    Attributes:
        method: `quant_method`, lower case; "" for none.
        algorithm: ModelOpt's word, upper case ("FP8", "NVFP4"); "" for none.
        scheme: compressed-tensors' or ModelOpt's description of the cache; None for none.
        name: the codec that geometry reads out of both; "" for none. no_weights: quant_algo is null.
    """

    method: str = ""
    algorithm: str = ""
    scheme: Mapping[str, object] | None = None
    name: str = ""
    no_weights: bool = False

    @property
    def per_head(self) -> bool:
        """One scale a head (compressed-tensors' attn_head)."""
        return self.scheme is not None and self.scheme.get("strategy") == "attn_head"

    @property
    def kv_only(self) -> bool:
        """ModelOpt quantized the cache and nothing else."""
        return self.method == "modelopt" and self.no_weights and bool(self.algorithm)

    @property
    def asks(self) -> bool:
        return bool(self.algorithm or self.scheme is not None or self.name)


def checkpoint_kv(ask: Ask) -> CheckpointKv:
    """The KV part of the model's quantization; empty where it has none, or the configuration is not known."""
    places = []
    for config in (ask.config, ask.text_config):
        places += [config.get(key) for key in ("quantization_config", "compression_config", QUANT_KEY)]
    found = [p for p in places if isinstance(p, Mapping)]
    method = next((str(p["quant_method"]).lower() for p in found if isinstance(p.get("quant_method"), str)), "")
    if not method and isinstance(ask.config.get(QUANT_KEY), Mapping):
        method = "modelopt"
    algorithm, scheme = "", None
    for place in found:
        inner = place.get("quantization")
        for part in (place, inner if isinstance(inner, Mapping) else {}):
            words = [part.get("kv_cache_quant_algo"), part.get("kv_cache_scheme")]
            algorithm = algorithm or next((w.upper() for w in words if isinstance(w, str) and w), "")
            described = part.get("kv_cache_scheme")
            scheme = scheme if scheme is not None or not isinstance(described, Mapping) else described
    parts = [part for p in found for part in (p, p.get("quantization")) if isinstance(part, Mapping)]
    no_weights = any("kv_cache_quant_algo" in p and p.get("quant_algo") is None for p in parts)
    return CheckpointKv(method, algorithm, scheme, ask.geometry.kv_scheme, no_weights)
