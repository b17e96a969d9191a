"""Lines that people pasted into public reports are read, of whatever version and whatever stands around them."""

from __future__ import annotations

import pytest
from public_lines import BLOCKS, PUBLIC

from kvgate.plan.logs import read_log


@pytest.mark.parametrize("name", PUBLIC)
def test_lines_of_a_public_report_are_read(name: str) -> None:
    """Engine, tokens and bytes are those of the report, whatever stands around the lines."""
    text, engine, tokens, kv_bytes = PUBLIC[name]
    log = read_log(text)
    assert (log.engine, log.tokens, log.kv_bytes) == (engine, tokens, kv_bytes)
    assert not [c for c in log.contradictions if c.severity == "error" and c.id != "no-room"]


def test_an_engine_that_did_not_start_for_want_of_room_says_so() -> None:
    """vLLM's older words for a sequence that does not fit are an error too, with the length that would."""
    log = read_log(PUBLIC["vllm-v0-too-small"][0])
    assert [c.id for c in log.contradictions] == ["no-room"]
    assert log.whole("fits_tokens") == 47_328


def test_blocks_alone_are_no_tokens() -> None:
    """Without the block or the concurrency, or where its digits leave the block open, tokens stay unknown."""
    assert read_log("# GPU blocks: 1381, # CPU blocks: 512\n").tokens is None
    # 0.01 of 131,072 tokens over 300 blocks is 4 tokens a block.
    assert read_log(BLOCKS.format(300, 131072, "0.04")).tokens is None


def test_the_latent_cache_of_ik_llama_has_one_type() -> None:
    """Its line names one type, which K and V share."""
    log = read_log(PUBLIC["ik_llama-latent"][0])
    assert (log.stored.k, log.stored.v) == ("q8_0", "q8_0")


def test_an_older_wording_of_the_type_is_read() -> None:
    """vLLM of 2024 goes on with "But it may cause" where later versions say "Meanwhile"."""
    said = "It reduces the GPU memory footprint and boosts the performance."
    log = read_log(f"INFO config.py:385] Using fp8_e5m2 data type to store kv cache. {said} But it may cause slight\n")

    assert (log.stored.k, log.stored.how) == ("fp8_e5m2", "printed")
