"""compressed_mla: DeepSeek V4. A layer keeps one vector of its last 128 tokens, and one for every r tokens before.

`compress_ratios` has a number a layer, then one for each MTP block: 0 keeps only the window, 4 (CSA) a row for four
tokens with an index key, 128 (HCA) a row for 128 tokens without one. The window is a ring that a sequence holds whole
from its first token on, so it is a fixed cache here. The vector has `head_dim` elements, the last `qk_rope_head_dim`
of them rotated. Not counted: float32 state of the compressors, and pages rounded to 576 bytes.
Source: vLLM 0.32 vllm/models/deepseek_v4/attention.py (compress ratios, caches), SGLang's deepseek_v4 model.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import layer_count
from kvgate.models.indexer import index_row_bytes
from kvgate.models.layer_words import unknown_word
from kvgate.models.mtp import mtp_count

#: Compressed rows have only packed kernels, as sparse MLA has; a recipe's `keep=` takes both by this word.
ROWS_KIND, WINDOW_KIND = "sparse_mla", "sliding_window"
#: Ratios with a rule; those with an index key.
RATIOS, INDEXED = (0, 4, 128), (4,)


@dataclass(frozen=True, slots=True)
class CompressedMla:
    name: str = "compressed_mla"
    model_types: tuple[str, ...] = ("deepseek_v4", "deepseek_ref")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        ratios = _ratios(keys, count)
        made = _caches(keys)
        blocks = mtp_count(keys)
        # A block without an entry keeps only its window, as the engine has it.
        more = (*ratios[count:], *(0,) * blocks)[:blocks]
        return ConfigLayers(
            layers=tuple(cache for n in range(count) for cache in made.of(n, ratios[n])),
            layer_count=count,
            mtp_layers=tuple(cache for n, ratio in enumerate(more) for cache in made.of(count + n, ratio)),
            notes=("the compressors' float32 state is not counted",) if any(ratios[:count]) else (),
        )


@dataclass(frozen=True, slots=True)
class _Caches:
    """The two caches of a layer, but for its ratio."""

    dim: int
    rope: int
    window_tokens: int
    index_bytes: int

    def of(self, index: int, ratio: int) -> tuple[LayerGeometry, ...]:
        window = LayerGeometry(
            index,
            WINDOW_KIND,
            kv_heads=1,
            k_dim=self.dim,
            v_dim=0,
            rope_dim=self.rope,
            window_tokens=self.window_tokens,
            fixed_tokens=self.window_tokens,
        )
        if ratio == 0:
            return (window,)
        rows = LayerGeometry(
            index,
            ROWS_KIND,
            kv_heads=1,
            k_dim=self.dim,
            v_dim=0,
            rope_dim=self.rope,
            tokens_per_row=ratio,
            index_bytes_per_token=self.index_bytes if ratio in INDEXED else 0,
        )
        return (window, rows)


def _caches(keys: ConfigKeys) -> _Caches:
    keys.integer("num_attention_heads", maximum=MAX_HEADS)
    keys.ignore("q_lora_rank", "o_lora_rank")
    if (heads := keys.maybe_int("num_key_value_heads", maximum=MAX_HEADS)) not in (None, 1):
        raise UserError(f"{keys.label('num_key_value_heads')} is {heads}: this family caches one vector for all heads")
    dim, rope = keys.integer("head_dim", maximum=MAX_DIM), keys.integer("qk_rope_head_dim", minimum=0, maximum=MAX_DIM)
    if rope >= dim:
        raise UserError(f"{keys.label('qk_rope_head_dim')} is {rope}, and the whole vector has head_dim {dim}")
    return _Caches(dim, rope, keys.integer("sliding_window"), index_row_bytes(keys))


def _ratios(keys: ConfigKeys, count: int) -> tuple[int, ...]:
    ratios = keys.ints("compress_ratios")
    if ratios is None:
        raise keys.lacks("compress_ratios")
    if len(ratios) < count:
        raise UserError(f"{keys.label('compress_ratios')} has {len(ratios)} entries for {count} layers")
    for index, ratio in enumerate(ratios):
        if ratio not in RATIOS:
            raise unknown_word(keys, "compress_ratios", index, str(ratio), [str(r) for r in RATIOS])
    return ratios


CONFIG_FAMILY = CompressedMla()
