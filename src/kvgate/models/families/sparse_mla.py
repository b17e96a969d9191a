"""sparse_mla: latent attention with a sparse indexer (DeepSeek V3.2, GLM-5): the latent, and an index key beside it.

An index key is stored in FP8 with one float32 scale per 128 elements, whatever the cache is stored in: 132 bytes
for 128 elements. GLM-5.2 shares indices: only layers that `indexer_types` calls "full" own a key; without that list the
schedule is `index_topk_pattern` ("F" and "S") or `index_topk_freq` with `index_skip_topk_offset`. The MTP block owns
one. An engine may allocate the shared ones too (SGLang under HiSparse or with a draft).
Sources: vLLM 0.32 models/deepseek_v32/attention.py (skip_topk) and mla indexer cache; transformers GlmMoeDsaConfig;
sgl-project/sglang pull request 11309 (132 bytes measured).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import layer_count
from kvgate.models.families.mla import latent
from kvgate.models.indexer import index_row_bytes
from kvgate.models.layer_words import check_length, layer_words, unknown_word
from kvgate.models.mtp import mtp_layers

KIND = "sparse_mla"
#: What vLLM takes for `index_skip_topk_offset` where the file is silent.
_DEFAULT_OFFSET = 2


@dataclass(frozen=True, slots=True)
class SparseMla:
    name: str = KIND
    model_types: tuple[str, ...] = ("deepseek_v32", "glm_moe_dsa")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        index_bytes = index_row_bytes(keys)
        keys.ignore("index_share_for_mtp_iteration")
        # Some files name the kind of every layer too; a word for another kind is refused.
        layer_words(keys, "layer_types", count, ("deepseek_sparse_attention", "indexed_attention"))
        owns = _owners(keys, count)

        def layer(index: int, owns_key: bool) -> LayerGeometry:
            return replace(latent(keys, index), kind=KIND, index_bytes_per_token=index_bytes if owns_key else 0)

        layers = tuple(layer(n, own) for n, own in enumerate(owns))
        shared = count - sum(1 for layer in layers if layer.index_bytes_per_token)
        return ConfigLayers(
            layers,
            count,
            mtp_layers(keys, layer(0, True), count),
            (f"{shared} of {count} layers reuse another layer's indices and store no index key",) if shared else (),
        )


def _owners(keys: ConfigKeys, count: int) -> tuple[bool, ...]:
    """Which layers run an indexer of their own: by list, by pattern, or by frequency."""
    freq = keys.maybe_int("index_topk_freq", minimum=1, maximum=MAX_LAYERS) or 1
    offset = keys.maybe_int("index_skip_topk_offset", maximum=MAX_LAYERS)
    offset = _DEFAULT_OFFSET if offset is None else offset
    words = layer_words(keys, "indexer_types", count, ("full", "shared"))
    pattern = _pattern(keys, count)
    if words is not None:
        owns = tuple(word == "full" for word in words)
    elif pattern:
        owns = tuple(letter == "F" for letter in pattern)
    else:
        owns = tuple(max(n - offset + 1, 0) % freq == 0 for n in range(count))
    if not owns[0]:
        raise UserError(
            "the configuration gives the first layer no indexer (indexer_types, index_topk_pattern or "
            "index_skip_topk_offset), and there is none before it to share",
            fix="give the config.json as the model's authors published it",
        )
    return owns


def _pattern(keys: ConfigKeys, count: int) -> str:
    pattern = keys.text("index_topk_pattern")
    if pattern:
        check_length(keys, "index_topk_pattern", len(pattern), count)
    for n, letter in enumerate(pattern):
        if letter not in "FS":
            raise unknown_word(keys, "index_topk_pattern", n, letter, ("F", "S"))
    return pattern


CONFIG_FAMILY = SparseMla()
