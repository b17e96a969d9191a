"""vLLM's groups, blocks and tokens against what vLLM 0.32.0's own functions answered on made-up models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.plan.engine_rules import _vllm_groups as groups_of
from kvgate.plan.engine_rules._vllm_groups import Load, Spec, blocks_per_request, bytes_per_block, group

CASES = json.loads((Path(__file__).parent / "data" / "vllm_groups.json").read_text())["cases"]
BYTES = {"bf16": 2, "fp8_e4m3": 1}


def _spec(row, case):
    kind, block = row["kind"], case["block"]
    if kind == "mamba":
        held = 2 if case["mamba_align"] else 1
        return Spec("mamba", block, row["padded"], (row["state"],), sharded=False, state_blocks=held)
    page = block * row["heads"] * (row["k"] + row.get("v", 0)) * BYTES[row["dtype"]]
    shape = (row["heads"], row["k"], row.get("v", 0), row["dtype"])
    if kind == "mla":
        return Spec("full", block, page, shape, latent=True)
    fixed = case["encoder_tokens"] if kind == "cross" else 0
    sharded = kind != "sliding" or case["dcp"] == 1
    return Spec(kind, block, page, shape, row.get("window", 0), fixed, sharded=sharded)


def _ours(case):
    """Our answer in the words of the recorded one."""
    rows = [row for n, row in case["layers"] for _ in range(n)]
    specs = {f"L{i}": _spec(row, case) for i, row in enumerate(rows)}
    made = group(specs, hybrid=case["hybrid"], packed=case["layout"].startswith("B"))
    at, sizes, blocks = 0, [], []
    for size, memory in zip(case["stages"], case["memory"], strict=True):
        held = {name: specs[name] for name in list(specs)[at : at + size]}
        at += size
        sizes.append(bytes_per_block(made, held))
        blocks.append(memory // sizes[-1])
    load = Load(case["context"], case["in_flight"], case["dcp"])
    concurrency = min(blocks) / sum(g.blocks(load) for g in made)
    return {
        "num_blocks": min(blocks),
        "groups": len(made),
        "bytes_per_block": sizes,
        "tokens": int(concurrency * case["context"]),
        "concurrency": concurrency,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["kind"])
def test_groups_and_tokens_are_those_of_the_engine(case):
    """Groups, bytes of a block, blocks, concurrency and tokens equal the engine's; what it refuses is refused."""
    if "refused" in case["answer"]:
        with pytest.raises(UserError):
            _ours(case)
        return

    assert _ours(case) == case["answer"]


def test_the_recorded_models_reach_every_rule():
    """Several groups, packed layouts, padding, stages, states, cross attention and refusals are all among them."""
    answers = [c["answer"] for c in CASES]

    assert {c["kind"] for c in CASES} >= {"swa", "hetero", "chunked", "hybrid", "cross", "mla", "mla_swa"}
    assert sum(a.get("groups", 0) > 1 for a in answers) > 50
    assert sum("refused" in a for a in answers) > 3
    assert any(len(c["stages"]) > 1 and c["answer"].get("groups", 0) > 1 for c in CASES)
    assert any(c["layout"].startswith("B") and c["answer"].get("groups", 0) > 1 for c in CASES)


def _wrong(monkeypatch, name, value):
    monkeypatch.setattr(groups_of, name, value)
    return [c for c in CASES if "refused" not in c["answer"] and _differs(c)]


def _differs(case):
    try:
        return _ours(case) != case["answer"]
    except UserError:
        return True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # Rounds down, forgets padding, pads too often, takes the pages as they are, never packs.
        ("_up", lambda tokens, block: max(1, tokens // block)),
        ("PADDING_RATIO", 1.0),
        ("PADDING_RATIO", 3.0),
        ("_equal_pages", lambda specs: specs),
        ("_packed", lambda specs: groups_of._uniform(groups_of._equal_pages(specs) or specs)),
        ("_one_type", lambda specs: False),
        ("_best_repeats", lambda counts, floor: max(counts)),
    ],
    ids=["round down", "never larger", "always larger", "unequal pages", "never packed", "never one type", "repeats"],
)
def test_a_wrong_rule_is_noticed(monkeypatch, name, value):
    """Each part of the arithmetic, broken, gives other answers than the engine's."""
    assert not [c for c in CASES if "refused" not in c["answer"] and _differs(c)]
    assert _wrong(monkeypatch, name, value)


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        # 32,768 tokens, 8,192 in flight, blocks of 16.
        (Spec("full", 16, 1), 2048),
        (Spec("sliding", 16, 1, window_tokens=128), 521),
        (Spec("chunked", 16, 1, window_tokens=8192), 1024),
        (Spec("cross", 16, 1, fixed_tokens=1500), 94),
        (Spec("mamba", 16, 1, state_blocks=2), 2),
        # A window longer than the context keeps the context, and may start inside a block.
        (Spec("sliding", 16, 1, window_tokens=100_000), 2049),
        (Spec("chunked", 16, 1, window_tokens=100_000), 2048),
    ],
)
def test_blocks_of_one_request(spec, blocks):
    """Each kind of cache holds what the rule says."""
    assert blocks_per_request(spec, Load(32_768, 8192)) == blocks


def test_no_layers_make_no_groups():
    """A model without caches has no groups and no block."""
    assert group({}) == ()
    assert bytes_per_block((), {}) == 0
