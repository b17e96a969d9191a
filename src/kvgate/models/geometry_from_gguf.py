"""From GGUF metadata to what a model caches, and the digests that identify its tokenizer and chat template."""

from __future__ import annotations

import hashlib
from typing import cast

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.ggml_types import FILE_TYPES
from kvgate.models.layers import Family
from kvgate.models.read_gguf import GgufHeader, SkippedArray

TEMPLATE_KEY = "tokenizer.chat_template"
_TOKENS_KEY = "tokenizer.ggml.tokens"
#: Set by llama.cpp on a file type that it guessed.
_GUESSED = 1024
_DEFAULT_FAMILY = "dense"


def geometry_from_gguf(header: GgufHeader, *, whole: bool = False) -> ModelGeometry:
    """Layers, context and vocabulary of a model.

    Args:
        whole: all parts of a split file are known to be there, and `header` is of the first.

    Raises:
        UserError: not a model, one part of several, or an architecture or key without a rule; says which.
    """
    architecture = _text(header, "general.architecture")
    if not architecture:
        raise UserError(f"{header.path} names no general.architecture", fix="give the GGUF file of a language model")
    if _text(header, "general.type") not in ("", "model"):
        raise UserError(f"{header.path} holds a {_text(header, 'general.type')!r}, not a model")
    parts = header.meta.get("split.count", 0)
    if isinstance(parts, int) and parts > 1 and not whole:
        raise UserError(f"{header.path} is one of {parts} parts", fix="join them: llama-gguf-split --merge")
    keys = ArchKeys(architecture, header.meta)
    family = family_of(architecture)
    layers = family.layers(keys)
    if not layers:
        raise UserError(f"{header.path} ({architecture}) has no layer with a KV cache")
    return ModelGeometry(
        name=_text(header, "general.name") or header.path.stem,
        architecture=architecture,
        layers=layers,
        context_tokens=keys.integer("context_length"),
        vocab_size=_vocab_size(header, keys),
        source=Source("file", str(header.path), f"GGUF v{header.version}"),
        layer_count=keys.integer("block_count") - (keys.maybe_int("nextn_predict_layers") or 0),
        family=family.name,
    )


def family_of(architecture: str) -> Family:
    """The family that claims an architecture, else the dense one (which refuses what it cannot size)."""
    found = registry.discover("family")
    for family in found.values():
        if architecture in family.architectures:
            return cast(Family, family)
    return cast(Family, found[_DEFAULT_FAMILY])


def weights_dtype(header: GgufHeader) -> str:
    """The file's own word for its weights ("Q4_1", "Q4_K_M"); the commonest tensor type where it has none."""
    kind = header.meta.get("general.file_type")
    if isinstance(kind, int) and kind & ~_GUESSED in FILE_TYPES:
        return FILE_TYPES[kind & ~_GUESSED]
    return header.main_tensor_type


def tokenizer_digest(header: GgufHeader) -> str | None:
    """sha256 over all "tokenizer." values but the chat template; None without a tokenizer."""
    parts = sorted((k, d) for k, d in header.value_digests.items() if not k.startswith(TEMPLATE_KEY))
    if not parts:
        return None
    return hashlib.sha256("".join(f"{key}\0{digest}\n" for key, digest in parts).encode()).hexdigest()


def template_digest(header: GgufHeader) -> str | None:
    """sha256 of the chat template's text; None without one."""
    template = header.meta.get(TEMPLATE_KEY)
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None


def _text(header: GgufHeader, key: str) -> str:
    value = header.meta.get(key)
    return value if isinstance(value, str) else ""


def _vocab_size(header: GgufHeader, keys: ArchKeys) -> int:
    tokens = header.meta.get(_TOKENS_KEY)
    if isinstance(tokens, SkippedArray):
        return tokens.count
    if isinstance(tokens, tuple):
        return len(tokens)
    return keys.integer("vocab_size")
