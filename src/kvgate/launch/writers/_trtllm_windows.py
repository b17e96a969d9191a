"""TensorRT-LLM's max_attention_window: the window of each layer, as the shortest list that repeats to it."""

from __future__ import annotations

from typing import Any

from kvgate.launch.commands import Ask


def windows(ask: Ask, notes: list[str]) -> dict[str, Any]:
    """The key, where the model has sliding windows and every layer's is known; else nothing, with a note.

    The list is repeated over the layers (llmapi/llm_args.py, 1.4.0rc4); a layer without a window gets the context.
    """
    layers = sorted((y for y in ask.geometry.layers), key=lambda y: y.index)
    if not any(y.window_tokens and not y.chunked for y in layers):
        return {}
    context = ask.context_tokens or ask.geometry.context_tokens
    one_each = [y.index for y in layers] == list(range(ask.geometry.layer_count or len(layers)))
    if not context or not one_each or any(y.state or y.chunked for y in layers):
        notes.append(
            "max_attention_window is left to TensorRT-LLM: what it is for layers that share or keep no KV was not read"
        )
        return {}
    each = [min(y.window_tokens or context, context) for y in layers]
    found = next(n for n in range(1, len(each) + 1) if all(each[i] == each[i % n] for i in range(len(each))))
    notes.append("max_attention_window is written out for both arms; version 2 of the cache manager derives it too")
    return {"max_attention_window": each[:found]}
