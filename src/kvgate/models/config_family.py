"""What a family of Hugging Face configurations is: one file in `families/`, attribute CONFIG_FAMILY."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, cast

from kvgate.core import registry
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_keys import ConfigKeys

#: The family that takes a model_type that nobody claims.
DEFAULT_FAMILY: Final = "dense"


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """What a family makes of a configuration.

    Attributes:
        layers: caches and states in layer order; a layer with two caches comes twice, a layer without any not at all.
        layer_count: transformer layers in all, those without a cache too, those of MTP not.
        mtp_layers: layers of multi-token prediction, numbered on from `layer_count`.
        notes: what a reader must know: an assumption, the default of an absent key.
    """

    layers: tuple[LayerGeometry, ...]
    layer_count: int
    mtp_layers: tuple[LayerGeometry, ...] = ()
    notes: tuple[str, ...] = ()


class ConfigFamily(Protocol):
    """The rule of one family of architectures.

    A family reads every key that shapes its cache through `keys`, or says `keys.ignore(...)` for one that does not:
    `geometry_from_config` refuses what is left over (`refuse_unread_cache_keys`), so a family cannot forget to.
    """

    @property
    def name(self) -> str: ...

    @property
    def model_types(self) -> tuple[str, ...]:
        """Values of `model_type` that this family claims, of the text part or of the parts around it."""
        ...

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        """Layers with a cache or a state.

        Raises:
            UserError: a key is missing or senseless, or a layer word is unknown; names the key.
        """
        ...


def config_family_of(keys: ConfigKeys) -> ConfigFamily:
    """The family that claims the inmost `model_type` that anybody claims, else the default one."""
    found = registry.discover("config_family")
    for model_type in keys.model_types:
        for family in found.values():
            if model_type in family.model_types:
                return cast(ConfigFamily, family)
    return cast(ConfigFamily, found[DEFAULT_FAMILY])
