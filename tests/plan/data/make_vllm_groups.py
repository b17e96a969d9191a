"""Asks vLLM's own functions for groups and capacities of made-up models; writes vllm_groups.json beside this file.

    VLLM_ENV/bin/python tests/plan/data/make_vllm_groups.py

Needs vLLM 0.32.0 (the CPU wheel does). Nothing is started: `get_kv_cache_configs` gets layer specs and memory, and says
blocks, groups, concurrency and tokens. Models are drawn with a fixed seed; what vLLM refuses is kept as "refused".
"""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import vllm
from vllm.v1.core import kv_cache_utils as kv
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

DTYPES = {"bf16": torch.bfloat16, "fp8_e4m3": torch.uint8}


def config(case):
    cache = SimpleNamespace(
        mamba_cache_mode="align" if case["mamba_align"] else "none",
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=None,
        get_resolved_kv_cache_layout=lambda: KVCacheLayout[case["layout"]],
    )
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=case["context"], original_max_model_len=case["context"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=case["dcp"], tensor_parallel_size=case["dcp"]),
        cache_config=cache,
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=not case["hybrid"],
            max_num_encoder_input_tokens=case["encoder_tokens"],
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=case["in_flight"],
        num_prefill_lookahead_tokens=0,
    )


def spec(layer, case):
    block, dtype = case["block"], DTYPES[layer.get("dtype", "bf16")]
    common = {
        "block_size": block,
        "num_kv_heads": layer.get("heads", 1),
        "head_size": layer.get("k", 1),
        "dtype": dtype,
    }
    kind = layer["kind"]
    if kind == "full":
        return FullAttentionSpec(**common, head_size_v=layer["v"])
    if kind == "mla":
        return MLAAttentionSpec(**common)
    if kind == "sliding":
        sharded = {"dcp_sharded": False} if case["dcp"] > 1 else {}
        return SlidingWindowSpec(**common, head_size_v=layer["v"], sliding_window=layer["window"], **sharded)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(**common, head_size_v=layer["v"], attention_chunk_size=layer["window"])
    if kind == "cross":
        return CrossAttentionSpec(**common, head_size_v=layer["v"])
    padded = layer.get("padded")
    return MambaSpec(block_size=block, shapes=((layer["state"],),), dtypes=(torch.uint8,), page_size_padded=padded)


def answer(case):
    cfg = config(case)
    workers, at = [], 0
    for size in case["stages"]:
        rows = case["layers"][at : at + size]
        workers.append({f"L{at + i}": spec(row, case) for i, row in enumerate(rows)})
        at += size
    try:
        made = kv.get_kv_cache_configs(cfg, workers, list(case["memory"]))
        tokens, concurrency = kv.get_kv_cache_capacity(cfg, kv.generate_scheduler_kv_cache_config(made))
    except (ValueError, NotImplementedError, AssertionError) as e:
        return {"refused": type(e).__name__, "says": str(e)[:200]}
    groups = made[0].kv_cache_groups
    return {
        "num_blocks": made[0].num_blocks,
        "groups": len(groups),
        "bytes_per_block": [kv._pool_bytes_per_block(cfg, m.kv_cache_groups) for m in made],
        "tokens": tokens,
        "concurrency": concurrency,
    }


def draw(rng):
    """One made-up model; the shapes are those of model families, the numbers are not of any model."""
    kind = rng.choice(
        ["plain", "swa", "hetero", "hetero", "chunked", "hybrid", "hybrid_swa", "cross", "mla", "mla_swa", "indexed"]
    )
    n = rng.randint(2, 24)
    heads, dim, dtype = rng.choice([1, 2, 4, 8]), rng.choice([64, 96, 128, 256]), rng.choice(list(DTYPES))
    window = rng.choice([128, 512, 1024, 4096])
    full = {"kind": "full", "heads": heads, "k": dim, "v": rng.choice([dim, dim, 128]), "dtype": dtype}
    period = rng.randint(2, 6)
    layers = []
    for i in range(n):
        row = dict(full)
        if kind in ("swa", "chunked") and (i + 1) % period:
            row |= {"kind": "sliding" if kind == "swa" else "chunked", "window": window}
        elif kind == "hetero" and (i + 1) % period:
            row |= {"kind": "sliding", "window": window, "heads": heads * rng.choice([2, 4]) if i == 0 else None}
            row["heads"] = row["heads"] or layers[0].get("heads", heads)
        elif kind in ("hybrid", "hybrid_swa") and (i + 1) % period:
            row = {"kind": "mamba", "state": 0}
        elif kind == "hybrid_swa" and i % 2:
            row |= {"kind": "sliding", "window": window}
        elif kind == "cross" and i % 2:
            row |= {"kind": "cross"}
        elif kind == "indexed":
            # A layer and its indexer in turn, and windows of a third page size.
            row = {"kind": "mla", "heads": 1, "k": 132 if i % 2 else 576, "dtype": "fp8_e4m3"}
            if i % (2 * period) >= 2:
                row = {"kind": "sliding", "heads": 1, "k": 584, "v": 0, "window": window, "dtype": "fp8_e4m3"}
        elif kind in ("mla", "mla_swa"):
            row = {"kind": "mla", "heads": 1, "k": 576, "dtype": dtype}
            if kind == "mla_swa" and i == n - 1:
                row = {"kind": "sliding", "heads": 2, "k": 128, "v": 128, "window": window, "dtype": "bf16"}
        layers.append(row)
    block = rng.choice([16, 32, 64])
    page = block * heads * (full["k"] + full["v"]) * (1 if dtype == "fp8_e4m3" else 2)
    for row in layers:
        if row["kind"] == "mamba":
            row["state"] = page - rng.choice([0, 64, 1000])
            row["padded"] = page
    stages = [n] if rng.random() < 0.7 or kind in ("mla_swa", "indexed") else [n - n // 2, n // 2]
    return {
        "kind": kind,
        "layers": layers,
        "block": block,
        "context": rng.choice([1000, 4096, 32768, 131072]),
        "in_flight": rng.choice([2048, 8192, 16384]),
        "mamba_align": rng.random() < 0.5,
        "hybrid": rng.random() < 0.85,
        "layout": "BLHNC" if kind == "indexed" else rng.choice(["LBNHC", "LBHNC", "BLHNC"]),
        "dcp": rng.choice([1, 1, 1, 2]),
        "encoder_tokens": 1500,
        "stages": stages,
        "memory": [rng.randint(2 * 2**30, 60 * 2**30) for _ in stages],
    }


def runs(layers):
    """Equal layers in a row, with their count."""
    made = []
    for row in layers:
        if made and made[-1][1] == row:
            made[-1][0] += 1
        else:
            made.append([1, row])
    return made


def main():
    rng = random.Random(4)
    cases = []
    for _ in range(200):
        case = draw(rng)
        cases.append(case | {"layers": runs(case["layers"]), "answer": answer(case)})
    made = {
        "how_made": f"make_vllm_groups.py, seed 4, vLLM {vllm.__version__}: get_kv_cache_configs and capacity",
        "cases": cases,
    }
    path = Path(__file__).with_name("vllm_groups.json")
    path.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    refused = [c["answer"] for c in cases if "refused" in c["answer"]]
    print(len(cases), "cases,", len(refused), "refused", path.stat().st_size, "bytes", file=sys.stderr)
    for r in refused[:8]:
        print(r, file=sys.stderr)


main()
