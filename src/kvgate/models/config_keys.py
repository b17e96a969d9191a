"""A model's `config.json`, read with types and bounds: the text part of nested configurations, and what was read.

null is absent. A value of a wrong type or size is a `UserError` that names the key. Every key that a family reads is
remembered, so that `refuse_unread_cache_keys` can refuse a configuration with a key that shapes the cache and that no
rule has looked at: a wrong size looks like a right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.text import one_line

#: Keys under which multimodal configurations keep their language model, in the order of looking.
TEXT_PARTS: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
    "text_model_config",
)
_MAX_NESTING: Final = 4
_LAYER_KEYS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
_LAYER_KEYS_OF_DECODERS: Final = (*_LAYER_KEYS, "decoder_layers", "layers_block_type", "hybrid_override_pattern")

MAX_COUNT: Final = 2**31 - 1
#: Bounds of what a configuration may announce; the largest known models stay far below.
MAX_LAYERS: Final = 4096
MAX_HEADS: Final = 65_536
MAX_DIM: Final = 1_048_576

#: Parts of key names that mean an attention shape, a window, a state, a latent, a sharing rule or a second stack.
_SHAPING: Final = re.compile(
    r"attention|attn|window|swa|state|ssm|mamba|recurr|lightning|retention|delta|gdn|kda|wkv|latent|lora_rank"
    r"|shar(e|ed|ing)(_|$)|(^|_)cla(_|$)|chunk|compress|index|sparse|(^|_)linear|hybrid|conv(_|$)|(^|_)d_conv"
    r"|layer_?types?|per_layer_config|layers?_types?|block_?types?|block_config|layer_pattern|layers_pattern|(^|_)local|(^|_)global"
    r"|(^|_)cross|memory|(^|_)sinks?(_|$)|head_dim|head_size|heads?(_|$)|(^|_)kv(_|$)|kv_channels|nextn|mtp"
    r"|query_group|full_attn|no_rope_layers|key_length|value_length|(^|_)k_dim|(^|_)v_dim|(^|_)d_(k|v|kv|head)$",
    re.IGNORECASE,
)
#: Parts of key names that match above and do not change what is cached.
_HARMLESS: Final = re.compile(
    r"rope(?!_layers)|rotary|expert|moe_|_moe|router|dropout|pdrop|bias|norm(_|$|alization)|token_(id|index)|_token(_|$)"
    r"|vision|image|audio|video|initializer|(^|_)init(_|$)|loss|_implementation$|^output_(attentions|hidden_states)$"
    r"|quant|^compression_(config|ratio)$|embedding|logn_attn|flash_attention|softcap|softmax|multiplier|scalar|^use_cache$|^cache_implementation$|^attention_scaling|_scal(e|ing)$"
    r"|temperature|^attn_?_?factor|^attn_type$|_classifier|classifier_|^lm_head|head_bias|_heads_?to_?prune|pruned_heads"
    r"|^activation_|^decoder_sparse_step$|^mlp_|^use_flash|flash_attn|^fp32_|_in_fp32$|layer_scale|clip_qkv"
    r"|qkv_clip|clamp|alibi|parallel_attn|parallel_attention|^gradient|checkpoint|^attention_method$|upcast_attn"
    r"|reorder_and_upcast|layer_idx|attn_output_gate|scale_attn|attention_output_gate|^use_gated_attention|head_wise_attn_gate"
    r"|^is_causal$|^causal_attention$|bidirectional_attention|^chunk_size_feed_forward$|task_specific|problem_type"
    r"|tie_|^attn_logit|qk_head_norm|position_embedding|label|_attn_mlp|linear_bias|^add_|^n_inner",
    re.IGNORECASE,
)


class ConfigKeys:
    """The keys of one language model's configuration.

    Attributes:
        values: the text part. outer: the whole file (the same mapping where nothing is nested).
        where: dotted place of `values` in the file ("text_config"), "" at the top.
        model_types: `model_type` of the text part, then of the parts around it; the first is the best guess.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        outer: Mapping[str, object] | None = None,
        where: str = "",
        model_types: tuple[str, ...] = (),
    ) -> None:
        self.values, self.outer = values, values if outer is None else outer
        self.where, self.model_types = where, model_types
        self._read: set[str] = set()
        self._children: dict[str, ConfigKeys] = {}

    @classmethod
    def of(cls, config: Mapping[str, object]) -> ConfigKeys:
        """The language model's part of a whole configuration, wherever it is nested.

        Raises:
            UserError: no part of it announces layers.
        """
        parts = list(_text_parts(config))
        chosen = next((p for p in reversed(parts) if _has_layers(p[1])), None)
        if chosen is None:
            raise UserError(
                "the configuration announces no layers",
                allowed=_LAYER_KEYS,
                fix="give the config.json of a language model, with the sizes written out",
            )
        place, values = chosen
        types = [p.get("model_type") for _, p in reversed(parts)]
        own = values.get("model_type")
        words = [t for t in (own, *types) if isinstance(t, str) and t]
        return cls(values, outer=config, where=place, model_types=tuple(dict.fromkeys(words)))

    @property
    def model_type(self) -> str:
        """The text part's own `model_type`, else that of the part around it; "" where there is none."""
        return self.model_types[0] if self.model_types else ""

    @property
    def read(self) -> frozenset[str]:
        """Names that were asked for so far, absent ones too."""
        return frozenset(self._read)

    def names(self) -> tuple[str, ...]:
        """Names with a value; null is absent."""
        return tuple(k for k, v in self.values.items() if v is not None)

    def has(self, name: str) -> bool:
        """Whether the key has a value that is not null. Does not count as reading it."""
        return self.values.get(name) is not None

    def ignore(self, *names: str) -> None:
        """Mark keys as known to a family and without effect on the cache."""
        self._read.update(names)

    def filled(self, defaults: Mapping[str, int]) -> ConfigKeys:
        """The same keys with a value for absent ones; null stays null. What is read through it counts as read here."""
        return self._view({**defaults, **self.values})

    def without(self, *names: str) -> ConfigKeys:
        """The same keys as if `names` were absent; what is read through it counts as read here."""
        self._read.update(names)
        return self._view({k: v for k, v in self.values.items() if k not in names})

    def raw(self, name: str) -> object | None:
        """The value as JSON gave it, None where absent; for shapes that no getter knows."""
        self._read.add(name)
        return self.values.get(name)

    def maybe_int(self, *names: str, minimum: int = 0, maximum: int = MAX_COUNT) -> int | None:
        """The first of `names` that has a value, as a whole number; None where none has.

        Raises:
            UserError: the value is no whole number, or outside `minimum` to `maximum`.
        """
        self._read.update(names)
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self._checked(name, value, minimum, maximum)
        return None

    def integer(self, *names: str, minimum: int = 1, maximum: int = MAX_COUNT) -> int:
        """Like `maybe_int`, for a key that must be there.

        Raises:
            UserError: none of `names` has a value, or it is not a number in the range.
        """
        value = self.maybe_int(*names, minimum=minimum, maximum=maximum)
        if value is None:
            raise self.lacks(*names)
        return value

    def text(self, *names: str, default: str = "") -> str:
        """The first of `names` that has a value, as a word.

        Raises:
            UserError: the value is no text.
        """
        self._read.update(names)
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.bad(name, value, "a word")
            return value
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false.

        Raises:
            UserError: the value is neither.
        """
        self._read.add(name)
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "true or false")
        return value

    def ints(self, name: str, *, minimum: int = 0, maximum: int = MAX_COUNT) -> tuple[int, ...] | None:
        """A list of whole numbers; None where absent.

        Raises:
            UserError: no list, too long, or an entry that is no number in the range.
        """
        found = self._list(name)
        return None if found is None else tuple(self._checked(name, v, minimum, maximum) for v in found)

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of words (`layer_types`); None where absent.

        Raises:
            UserError: no list, too long, or an entry that is no text.
        """
        found = self._list(name)
        if found is None:
            return None
        for value in found:
            if not isinstance(value, str):
                raise self.bad(name, value, "a list of words")
        return tuple(str(v) for v in found)

    def mapping(self, name: str) -> ConfigKeys | None:
        """A nested object (`attn_config`, `linear_attn_config`) with its own getters; None where absent.

        Raises:
            UserError: the value is no object.
        """
        self._read.add(name)
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.bad(name, value, "an object")
        if name not in self._children:
            self._children[name] = ConfigKeys(
                value, outer=self.outer, where=self.label(name), model_types=self.model_types
            )
        return self._children[name]

    def children(self) -> tuple[ConfigKeys, ...]:
        """Nested objects that were opened with `mapping`."""
        return tuple(self._children.values())

    def label(self, name: str) -> str:
        """The key as a person finds it in the file."""
        return f"{self.where}.{name}" if self.where else name

    def bad(self, name: str, value: object, wanted: str) -> UserError:
        """The error for a value that is not `wanted`."""
        return UserError(f"{self.label(name)} is {one_line(repr(value), 60)}, not {wanted}")

    def lacks(self, *names: str) -> UserError:
        """The error for a missing key."""
        where = f" in {self.where}" if self.where else ""
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return UserError(
            f"the configuration lacks {names[0]}{others}{where}",
            fix="add the key, or give the config.json as the model's authors published it",
        )

    def _view(self, values: Mapping[str, object]) -> ConfigKeys:
        view = ConfigKeys(values, outer=self.outer, where=self.where, model_types=self.model_types)
        view._read, view._children = self._read, self._children
        return view

    def _list(self, name: str) -> list[object] | None:
        self._read.add(name)
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise self.bad(name, value, "a list")
        if len(value) > 2 * MAX_LAYERS:
            raise UserError(f"{self.label(name)} has {len(value)} entries; at most {2 * MAX_LAYERS} are read")
        return list(value)

    def _checked(self, name: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(name, value, "a whole number")
        if not minimum <= value <= maximum:
            shown = str(value) if abs(value) < 10**18 else f"a number of {value.bit_length()} bits"
            raise UserError(f"{self.label(name)} is {shown}", allowed=(f"{minimum} to {maximum}",))
        return value


def refuse_unread_cache_keys(keys: ConfigKeys) -> None:
    """Refuse a configuration with a key that shapes the cache and that no rule has read.

    Keys whose value is null, false, zero or empty switch nothing on and pass.

    Raises:
        UserError: names the key.
    """
    for name in unread_cache_keys(keys):
        kind = f" of {keys.model_type!r}" if keys.model_type else ""
        raise UserError(
            f"kvgate has no verified rule for the key {one_line(name, 80)!r}{kind}: it may change what is cached",
            fix="remove the key if you know that it does not, or give a GGUF file of the model",
        )


def unread_cache_keys(keys: ConfigKeys) -> tuple[str, ...]:
    """Dotted names that match the patterns of cache-shaping keys, are switched on and were not read, in file order."""
    own = tuple(
        keys.label(name)
        for name, value in keys.values.items()
        if value and name not in keys.read and _SHAPING.search(name) and not _HARMLESS.search(name)
    )
    return own + tuple(name for child in keys.children() for name in unread_cache_keys(child))


def _has_layers(values: Mapping[str, object]) -> bool:
    return any(values.get(k) is not None for k in _LAYER_KEYS_OF_DECODERS)


def _text_parts(config: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The configuration itself, then the text part inside it, and so on inwards."""
    place, values = "", config
    yield place, values
    for _ in range(_MAX_NESTING):
        inner = next((k for k in TEXT_PARTS if isinstance(values.get(k), Mapping)), None)
        if inner is None:
            return
        found = values[inner]
        if not isinstance(found, Mapping):
            return
        place, values = (f"{place}.{inner}" if place else inner), found
        yield place, values
