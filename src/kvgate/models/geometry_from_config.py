"""From a `config.json` to what a model caches: layers, dtype, context, and what the checkpoint asks of its cache.

What is missing or unknown is refused; nothing is priced as plain attention because no rule was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.models.config_abridged import written_out
from kvgate.models.config_family import DEFAULT_FAMILY, ConfigFamily, config_family_of
from kvgate.models.config_keys import ConfigKeys, refuse_unread_cache_keys
from kvgate.models.read_config import QUANT_KEY

_DTYPES: Final = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "float": "f32",
    "float8_e4m3fn": "fp8_e4m3",
}
#: In vLLM's order; `model_max_length` wins where it is there (Command R).
_CONTEXT: Final = (
    "model_max_length",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "max_context_length",
    "seq_len",
    "n_ctx",
)
_VOCABULARY: Final = ("vocab_size", "padded_vocab_size", "n_vocab")
#: Endings of architecture names that do not generate text.
_OTHER_TASKS: Final = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_MAX_NAME_CHARS: Final = 200


def geometry_from_config(config: Mapping[str, object], name: str, source: Source) -> ModelGeometry:
    """Layers and sizes of the language model that a configuration describes.

    Args:
        config: a whole `config.json`, nested or not. name: what reports call the model.

    Raises:
        UserError: a key is missing or senseless, a layer word or a key has no rule, or the model has no KV cache.
    """
    config, abridged = written_out(config)
    keys = ConfigKeys.of(config)
    family = config_family_of(keys)
    _refuse_other_tasks(config, keys, family)
    found = family.layers(keys)
    refuse_unread_cache_keys(keys)
    if not found.layers:
        raise UserError(f"{one_line(name, 80)} has no layer with a cache or a state")
    native, dtype_notes = _native_dtype(keys)
    scheme, scheme_notes = kv_scheme(keys)
    return ModelGeometry(
        name=one_line(name, _MAX_NAME_CHARS),
        architecture=one_line(keys.model_type, 80) or "unknown",
        layers=found.layers,
        context_tokens=keys.maybe_int(*_CONTEXT) or 0,
        vocab_size=_vocabulary(keys),
        source=source,
        layer_count=found.layer_count,
        mtp_layers=found.mtp_layers,
        native_dtype=native,
        kv_scheme=scheme,
        family=family.name,
        notes=(*abridged, *found.notes, *dtype_notes, *scheme_notes),
    )


def _refuse_other_tasks(config: Mapping[str, object], keys: ConfigKeys, family: ConfigFamily) -> None:
    """Refuse what the default rule would take for a decoder: encoders, and encoder-decoders that nobody claims."""
    if family.name != DEFAULT_FAMILY:
        return
    if config.get("is_encoder_decoder"):
        raise UserError(
            f"kvgate has no rule for the encoder-decoder {one_line(keys.model_type, 60)!r}", allowed=("whisper",)
        )
    listed = config.get("architectures")
    words = [w for w in listed if isinstance(w, str)] if isinstance(listed, (list, tuple)) else []
    if words and all(w.endswith(_OTHER_TASKS) for w in words):
        raise UserError(f"{one_line(words[0], 60)} has no KV cache", fix="give a text-generating model")


def kv_scheme(keys: ConfigKeys) -> tuple[str, tuple[str, ...]]:
    """The codec that the checkpoint's quantization asks of the cache, "" for none, with notes.

    compressed-tensors writes `kv_cache_scheme` (type and bits), ModelOpt `kv_cache_quant_algo` or the same scheme; both
    at the top or in the text part, under `quantization_config`, `compression_config` or in ModelOpt's own file.
    """
    for place in (keys.outer, keys.values):
        for part in ("quantization_config", "compression_config", QUANT_KEY):
            quantization = place.get(part)
            if isinstance(quantization, Mapping):
                found = _scheme_of(quantization)
                if found is not None:
                    return found
    return "", ()


def _scheme_of(quantization: Mapping[str, object]) -> tuple[str, tuple[str, ...]] | None:
    """What one quantization object says of the cache; None where it says nothing."""
    inner = quantization.get("quantization")
    algorithm = quantization.get("kv_cache_quant_algo")
    if algorithm is None and isinstance(inner, Mapping):
        algorithm = inner.get("kv_cache_quant_algo")
    if isinstance(algorithm, str) and algorithm:
        return _named(algorithm)
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, str) and scheme:
        return _named(scheme)
    if isinstance(scheme, Mapping):
        kind, bits = scheme.get("type"), scheme.get("num_bits")
        if (kind, bits) == ("float", 8):
            return "fp8_e4m3", ()
        if (kind, bits) == ("float", 4):
            return "nvfp4", ()
        return "", (_unknown_scheme(f"{kind} with {bits} bits"),)
    return None


def _named(algorithm: str) -> tuple[str, tuple[str, ...]]:
    codec = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(algorithm.upper())
    return (codec, ()) if codec else ("", (_unknown_scheme(algorithm),))


def _unknown_scheme(words: str) -> str:
    return (
        f"the checkpoint asks for a KV cache in {one_line(words, 60)!r}, which kvgate does not know: native is assumed"
    )


def _native_dtype(keys: ConfigKeys) -> tuple[str, tuple[str, ...]]:
    """Codec id of the compute dtype; "" with a note where the file does not say or says something unknown."""
    for place in (keys.values, keys.outer):
        for name in ("dtype", "torch_dtype"):
            word = place.get(name)
            if isinstance(word, str) and word:
                codec = _DTYPES.get(word.removeprefix("torch."))
                return (codec, ()) if codec else ("", (f"{name} {one_line(word, 40)!r} is not known: bf16 is assumed",))
    return "", ("the configuration names no dtype: bf16 is assumed",)


def _vocabulary(keys: ConfigKeys) -> int:
    size = keys.maybe_int(*_VOCABULARY)
    if size is not None:
        return size
    outer = keys.outer.get(_VOCABULARY[0])
    return outer if isinstance(outer, int) and not isinstance(outer, bool) and outer > 0 else 0
