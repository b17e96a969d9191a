"""A Request for the fake engine: a made-up model that needs no file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgate.core.engine import Request, Settings
from kvgate.core.geometry import LayerGeometry, ModelFiles, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.engines._fake_script import SCRIPT_VARIABLE

#: A model's trained context; longer than any test asks for.
_TRAINED_TOKENS = 131072


def fake_request(
    recipe: str = "native",
    *,
    script: Mapping[str, Any] | None = None,
    context_tokens: int = 4096,
    **settings: Any,
) -> Request:
    """A request of `recipe` on a two-layer model that exists only as numbers.

    Args:
        script: fields of `FakeScript`, put into the settings' environment.
        settings: other fields of `core.engine.Settings`.
    """
    layers = tuple(LayerGeometry(i, "full_attention", kv_heads=2, k_dim=64, v_dim=64) for i in range(2))
    geometry = ModelGeometry("fake-model", "fake", layers, _TRAINED_TOKENS, 512, Source("assumed", "kvgate.testing"))
    model = ModelFiles(
        name="fake-model",
        path=Path("fake-model"),
        geometry=geometry,
        digest="0" * 64,
        tokenizer_digest=None,
        template_digest=None,
        weights_dtype="none",
        size_bytes=0,
    )
    env = {SCRIPT_VARIABLE: json.dumps(dict(script))} if script else {}
    made = Settings(context_tokens=context_tokens, env=env, **settings)
    return Request(model, parse(recipe), made, spelling=recipe)
