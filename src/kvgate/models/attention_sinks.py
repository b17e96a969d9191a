"""Whether a model's attention has learned sinks, which some kernels do not have. From a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

#: gpt-oss and MiMo-V2 carry them in their weights, without a key.
_FAMILIES = ("gpt_oss", "gpt-oss", "mimo_v2")
_KEYS = ("attention_sink_bias", "add_swa_attention_sink_bias", "add_full_attention_sink_bias", "attention_sinks")


def has_sinks(config: Mapping[str, object]) -> bool:
    """True for a model of a family with sinks, or with a key that says so; nested text configurations count."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    word = text.get("model_type") or config.get("model_type")
    by_family = isinstance(word, str) and word.lower().startswith(_FAMILIES)
    return by_family or any(text.get(key) for key in _KEYS)
