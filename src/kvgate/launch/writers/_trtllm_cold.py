"""Cold pages of TensorRT-LLM: KV pages that leave the GPU are stored in NVFP4, and come back in the hot type.

Source: docs/source/features/kv-cache-compression.md and examples/kv_cache_compression/nvfp4_cold_page.md, 1.4.0rc4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.launch.commands import Ask

_ON = ("10.0", "10.3")


class Cold(NamedTuple):
    """Keys of kv_cache_config, on both arms; and kv_cache_compression_config, on the candidate."""

    cache: dict[str, Any]
    compression: dict[str, Any]


def cold_pages(ask: Ask, word: str) -> Cold:
    """The configuration; empty where cold pages are not asked for.

    Raises:
        UserError: a format, device, model, hot type or parallelism that they do not go with.
    """
    if not ask.cold_pages:
        if ask.host_cache_bytes or ask.helix:
            raise UserError("--host-cache and --helix say something of cold pages", fix="add --cold-pages nvfp4")
        return Cold({}, {})
    if ask.cold_pages != "nvfp4":
        raise UserError(f"cold pages have no format {one_line(ask.cold_pages, 30)!r}", allowed=("nvfp4",))
    for wrong, why, fix in (
        (word == "nvfp4", "the hot cache is NVFP4 already", "write native or fp8_e4m3"),
        (
            ask.model_type.startswith("deepseek_v4"),
            "DeepSeek-V4's own cache does not enter the codec",
            "leave them out",
        ),
        (ask.helix, "HELIX context parallelism is rejected with them", "leave one of them out"),
        (ask.device is not None and ask.capability not in _ON, f"they need one of {', '.join(_ON)}", "leave them out"),
    ):
        if wrong:
            raise UserError(f"cold pages on {ask.where}: {why}", fix=fix)
    if not ask.host_cache_bytes:
        raise UserError(
            "cold pages need somewhere to go: no page is cold without a host cache", fix="add --host-cache 64GiB"
        )
    cache = {"use_kv_cache_manager_v2": True, "host_cache_size": ask.host_cache_bytes}
    return Cold(cache, {"algorithm": "quantization_for_cold_page", "quant": ask.cold_pages})


def cold_notes(ask: Ask) -> tuple[str, ...]:
    """What the configuration does not prove, and what it forbids."""
    if not ask.cold_pages:
        return ()
    found = [
        "cold pages ran only if trtllm_kv_cache_offload_bytes_total and _onboard_bytes_total are above zero (/metrics)",
        "not with TLLM_KV_CACHE_MANAGER_V2_BACKEND=python, nor with HELIX; speculation: one-model MTP-EAGLE or EAGLE3",
        "a page has an E4M3 scale for 16 values and a global one of 1; scale_checkpoint_path may name a ModelOpt one",
        "host_cache_size is for each rank; the baseline keeps host cache and manager, and stores its pages unquantized",
    ]
    if ask.device is None:
        found.append("no --device: cold pages need compute capability 10.0 or 10.3")
    if any(y.state for y in ask.geometry.layers):
        found.append(
            "states of recurrent layers stay as they are; on Linux 6.11 to 6.13 such mixed models are rejected"
        )
    return tuple(found)
