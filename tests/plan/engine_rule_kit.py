"""What the tests of the engine rules share: made-up models, ranks and budgets."""

from __future__ import annotations

import json
from pathlib import Path

from kvgate.core import registry
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.parallel import split
from kvgate.plan.price import price
from kvgate.plan.terms import Budget, Rank, Reserved, Serving, Term

DATA = json.loads((Path(__file__).parent / "data" / "engine_capacity.json").read_text())
SOURCE = Source("arithmetic", "made in the test")
GIB = 2**30


def model(*groups, context_tokens=131_072, layer_count=0, states=()):
    """Groups of (layers, heads, K dimension, V dimension, window), then `states` layers of parts."""
    layers = [
        LayerGeometry(0, "mla" if v == 0 else "sliding_window" if w else "full_attention", h, k, v, w)
        for n, h, k, v, w in groups
        for _ in range(n)
    ]
    layers += [
        LayerGeometry(0, "linear_attention", 0, 0, 0, state=parts) for count, parts in states for _ in range(count)
    ]
    made = []
    for index, x in enumerate(layers):
        made.append(LayerGeometry(index, x.kind, x.kv_heads, x.k_dim, x.v_dim, x.window_tokens, state=x.state))
    return ModelGeometry("m", "test", tuple(made), context_tokens, 0, SOURCE, layer_count or len(made), (), "bf16")


GPT_OSS_120B = model((18, 8, 64, 64, None), (18, 8, 64, 64, 128))
GPT_OSS_20B = model((12, 8, 64, 64, None), (12, 8, 64, 64, 128))
GEMMA3_27B = model((10, 16, 128, 128, None), (52, 16, 128, 128, 1024))
GEMMA4_31B = model((10, 4, 512, 512, None), (50, 16, 256, 256, 1024))
GEMMA3_270M = model((3, 1, 256, 256, None), (15, 1, 256, 256, 512), context_tokens=32_768)
SMOLLM2 = model((30, 3, 64, 64, None), context_tokens=8192)
QWEN3_32B = model((64, 8, 128, 128, None))
QWEN3_8B = model((36, 8, 128, 128, None))
DEEPSEEK_V3 = model((61, 1, 576, 0, None))
#: 48 layers of Gated DeltaNet: 16 K and 48 V heads of 128, a convolution of 4, the matrix in float32.
QWEN35_27B = model(
    (16, 4, 256, 256, None),
    states=[(48, (StatePart("conv", 10_240 * 3, "native", 16), StatePart("ssm", 48 * 128 * 128, "f32", 48)))],
)


def ranks_of(geometry, serving, recipe="native", *, engine, weights_bytes=0, partition=None):
    shares = split(
        geometry, tp=serving.tp, pp=serving.pp, dp=serving.dp, dcp=serving.dcp, engine=engine, partition=partition
    )
    return tuple(Rank(s.name, price(s.geometry, parse(recipe), engine=engine), weights_bytes) for s in shares)


def reserve(engine, geometry, recipe="native", *, budget, partition=None, **serving) -> Reserved:
    """The rule's answer under one budget in bytes for every rank, or one each."""
    rule = registry.get("engine_rule", engine)
    asked = Serving(engine, **serving)
    ranks = ranks_of(geometry, asked, recipe, engine=engine, partition=partition)
    each = budget if isinstance(budget, tuple) else (budget,) * len(ranks)
    budgets = tuple(Budget(r.name, (Term("given", b, "", SOURCE),)) for r, b in zip(ranks, each, strict=True))
    return rule.reserve(geometry, parse(recipe), ranks, asked, budgets)


def budget_of(engine, *, device_bytes, weights_bytes=0, overhead_bytes=None, **serving) -> Budget:
    """The rule's budget of one rank of a small model."""
    rule = registry.get("engine_rule", engine)
    asked = Serving(engine, **{"context_tokens": 4096, **serving})
    rank = Rank("gpu0", price(SMOLLM2, parse("native")), weights_bytes)
    return rule.budget(rank, asked, device_bytes=device_bytes, overhead_bytes=overhead_bytes)
