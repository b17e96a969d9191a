"""encoder: models that read text and write none: they have no KV cache, and are refused with that reason."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys


@dataclass(frozen=True, slots=True)
class Encoder:
    name: str = "encoder"
    model_types: tuple[str, ...] = (
        "albert",
        "big_bird",
        "bert",
        "camembert",
        "clip",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "eurobert",
        "megatron-bert",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "siglip",
        "vit",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    )

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        raise UserError(f"{keys.model_type} is an encoder: it has no KV cache", fix="give a text-generating model")


CONFIG_FAMILY = Encoder()
