"""What rules ask of a model: layers, traits, what its checkpoint asks of the cache; from files and the catalogue.

Never from the network: lint answers the same without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.lint.checkpoint import Checkpoint, read_checkpoint
from kvgate.models.attention_sinks import has_sinks
from kvgate.models.hub import from_catalogue, is_hub_id
from kvgate.models.hub_catalogue import hub_config
from kvgate.models.plan_model import plan_model_of_path
from kvgate.models.read_config import QUANT_KEY, read_config

#: What a name of `kvgate models` may look like.
_MODELS_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model.

    Attributes:
        name: as given. geometry: None where it could not be sized, `why` then says why.
        config: `config.json`, ModelOpt's file under its own key; empty for a GGUF file and an unknown model.
        checkpoint: what its safetensors files say; None where there are none here.
        is_local: its files are on this machine; the shipped catalogue has keys of a configuration, and no tensors.
    """

    name: str
    geometry: ModelGeometry | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    why: str = ""
    is_local: bool = True

    @property
    def layers(self) -> tuple[LayerGeometry, ...]:
        return tuple(y for y in self.geometry.layers if y.kv_heads > 0) if self.geometry else ()

    @property
    def layer_count(self) -> int:
        return self.geometry.layer_count or len(self.geometry.layers) if self.geometry else 0

    @property
    def is_mla(self) -> bool:
        return any(y.is_latent for y in self.layers)

    @property
    def is_sparse_mla(self) -> bool:
        return any(y.kind == "sparse_mla" for y in self.layers)

    @property
    def has_windows(self) -> bool:
        return any(y.window_tokens and not y.chunked for y in self.layers)

    @property
    def window_tokens(self) -> int:
        """The widest sliding window; 0 for none."""
        return max((y.window_tokens or 0 for y in self.layers if not y.chunked), default=0)

    @property
    def is_hybrid(self) -> bool:
        return any(y.state for y in self.geometry.layers) if self.geometry else False

    @property
    def head_dims(self) -> frozenset[int]:
        return frozenset(d for y in self.layers for d in (y.k_dim, y.v_dim) if d)

    @property
    def kv_heads(self) -> int:
        """The least of any layer that is divided among ranks; 0 for none."""
        return min((y.kv_heads for y in self.layers if not y.is_latent), default=0)

    @property
    def text_config(self) -> Mapping[str, object]:
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def has_sinks(self) -> bool:
        return has_sinks(self.config or {"model_type": self.model_type})

    @property
    def is_moe(self) -> bool:
        found = [self.text_config.get(k) for k in _EXPERT_KEYS]
        return any(isinstance(v, int) and v > 1 for v in found)

    @property
    def model_type(self) -> str:
        given = self.text_config.get("model_type") or self.config.get("model_type")
        if isinstance(given, str):
            return given.lower()
        return self.geometry.architecture.lower() if self.geometry else ""

    @property
    def quantization(self) -> Mapping[str, object]:
        """The checkpoint's own quantization, ModelOpt's file included; empty for none."""
        for place in (self.config, self.text_config):
            for key in ("quantization_config", "compression_config"):
                found = place.get(key)
                if isinstance(found, Mapping):
                    return found
        beside = self.config.get(QUANT_KEY)
        if isinstance(beside, Mapping):
            return {"quant_method": "modelopt", **beside}
        return {}

    @property
    def quant_method(self) -> str:
        found = self.quantization.get("quant_method")
        return found.lower() if isinstance(found, str) else ""

    @property
    def kv_scheme(self) -> Mapping[str, object] | None:
        """compressed-tensors' and ModelOpt's description of the cache; None for none."""
        found = self.quantization.get("kv_cache_scheme")
        return found if isinstance(found, Mapping) else None

    @property
    def kv_algorithm(self) -> str:
        """ModelOpt's word for the cache, upper case."""
        beside = self.config.get(QUANT_KEY)
        for place in (self.quantization, beside if isinstance(beside, Mapping) else {}):
            inner = place.get("quantization")
            for part in (place, inner if isinstance(inner, Mapping) else {}):
                found = part.get("kv_cache_quant_algo")
                if isinstance(found, str):
                    return found.upper()
                scheme = part.get("kv_cache_scheme")
                if isinstance(scheme, str):
                    return scheme.upper()
        return ""

    @property
    def context_tokens(self) -> int:
        return self.geometry.context_tokens if self.geometry else 0

    @property
    def traits(self) -> frozenset[str]:
        """Words that facts select by; only what is known."""
        known = self.geometry is not None
        found = {
            "windows": self.has_windows,
            "no_windows": known and not self.has_windows,
            "mla": self.is_mla,
            "hybrid": self.is_hybrid,
            "sinks": self.has_sinks,
            "moe": self.is_moe,
            "kv_scheme": self.asks_for_kv,
            "nvfp4_scheme": self.kv_algorithm.startswith("NVFP4"),
            "encoder_decoder": bool(self.config.get("is_encoder_decoder")),
        }
        return frozenset(word for word, holds in found.items() if holds)

    @property
    def asks_for_kv(self) -> bool:
        return bool(self.kv_scheme is not None or self.kv_algorithm or (self.geometry and self.geometry.kv_scheme))

    def is_called(self, patterns: tuple[str, ...]) -> bool:
        """Whether a name or the model's type fits one of the patterns (lower case, * and ?)."""
        names = {self.name.lower(), Path(self.name).name.lower(), self.model_type}
        if self.geometry is not None:
            names |= {self.geometry.name.lower(), self.geometry.architecture.lower()}
        return any(fnmatchcase(n, p) for n in names if n for p in patterns)


def model_view(text: str) -> ModelView:
    """A model by path, by a name of `kvgate models`, or by hub id from the shipped catalogue.

    Whatever cannot be read leaves only the name.
    """
    given = text.strip()
    try:
        path = Path(given).expanduser()
        there = path.exists()
    except (OSError, ValueError, RuntimeError):
        there = False
    if not there:
        return _of_wheel(given) or _of_catalogue(given)
    if path.is_dir() and not (path / "config.json").is_file():
        return ModelView(given, why=f"{given} is a folder without config.json")
    geometry, why = None, ""
    try:
        geometry = plan_model_of_path(path).geometry
    except UserError as e:
        why = str(e)
    config: Mapping[str, object] = {}
    if path.is_dir() or path.suffix == ".json":
        try:
            config = read_config(path)
        except UserError as e:
            why = why or str(e)
    checkpoint = read_checkpoint(path if path.is_dir() else path.parent) if config else None
    return ModelView(given, geometry, config, checkpoint, why)


def _of_wheel(name: str) -> ModelView | None:
    """A name of `kvgate models`: its file where that was fetched; None for any other name."""
    if not _MODELS_NAME.fullmatch(name) or name.endswith(".gguf"):
        return None
    # Imported when needed: most commands name a hub id or a path, and start without pydantic and pip.
    from kvgate.models.catalogue import catalogue
    from kvgate.models.fetch import cached_path

    known = catalogue().get(name)
    if known is None:
        return None
    path = cached_path(known)
    if not path.is_file():
        return ModelView(name, why=f"{name} is not on this machine yet: kvgate models get {name}")
    try:
        return ModelView(name, plan_model_of_path(path).geometry)
    except UserError as e:
        return ModelView(name, why=str(e))


def _of_catalogue(name: str) -> ModelView:
    shipped = hub_config(name) if is_hub_id(name) else None
    if shipped is None:
        return ModelView(name, why=f"{name} is neither here nor in the shipped catalogue")
    from kvgate.models.geometry_from_config import geometry_from_config

    found = from_catalogue(shipped, "lint asks no network")
    try:
        return ModelView(
            name, geometry_from_config(found.config, found.name, found.source), found.config, is_local=False
        )
    except UserError as e:
        return ModelView(name, None, found.config, why=str(e))


def is_number(value: object) -> bool:
    """Whether it is a finite number and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
