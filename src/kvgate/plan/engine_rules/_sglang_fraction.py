"""SGLang's static memory fraction where nobody sets it: what is kept back for activations and graphs, in MiB.

    reserved = 512 + 1.5 x max(chunked prefill, 2048) + 2 x largest decode graph + tp x pp / 8 x 1024
               (+ data-parallel attention's buffers); at least 10 GiB on devices over 60 GiB
    fraction = round((memory - reserved) / memory, 3), memory as nvidia-smi says it
Source: SGLang 0.5.23 server_args.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.units import MIB_BYTES
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts
from kvgate.plan.terms import Serving

#: Device memory under this many MiB, chunked prefill, largest decode graph with under and from four ranks.
_CLASSES = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16384, 512, 512)


@dataclass(frozen=True, slots=True)
class Fraction:
    """The fraction and how it came about."""

    value: float
    how: str


def static_fraction(serving: Serving, device_bytes: int, rows: Facts, options: Options) -> Fraction:
    """`mem_fraction_static` as SGLang sets it by itself."""
    memory_mib = device_bytes / MIB_BYTES
    ranks_mib = serving.tp * serving.pp / 8 * rows["mib_per_eight_ranks"].number
    if options.flag("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", False):
        reserved = rows["post_capture_mib"].number + ranks_mib
        return _made(memory_mib, reserved, "sized after the graphs are captured")
    chunk, graph = defaults(serving, memory_mib, options)
    reserved = rows["constant_mib"].number + ranks_mib
    reserved += rows["mib_per_prefill_token"].number * max(chunk, rows["least_prefill_tokens"].integer)
    reserved += rows["mib_per_graph_batch"].number * graph
    if options.flag("enable-dp-attention", False):
        reserved += graph * serving.dp * (4.5 if graph > 300 else 3)
    if memory_mib > rows["large_device_mib"].number:
        reserved = max(reserved, rows["large_device_least_mib"].number)
    return _made(memory_mib, reserved, f"chunked prefill {chunk:,}, graphs up to {graph}")


def defaults(serving: Serving, memory_mib: float, options: Options) -> tuple[int, int]:
    """Chunked prefill size and largest decode graph, as set or by the device's memory."""
    chunk, few, many = _LARGEST
    for limit_mib, chunk_tokens, small, large in _CLASSES:
        if memory_mib < limit_mib:
            chunk, few, many = chunk_tokens, small, large
            break
    graph = options.integer("cuda-graph-max-bs")
    asked = options.integer("chunked-prefill-size") if serving.batched_tokens is None else serving.batched_tokens
    return chunk if asked is None else asked, (few if serving.tp < 4 else many) if graph is None else graph


def _made(memory_mib: float, reserved_mib: float, how: str) -> Fraction:
    value = round((memory_mib - reserved_mib) / memory_mib, 3)
    return Fraction(max(0.0, value), f"{reserved_mib:,.0f} MiB kept back of {memory_mib:,.0f}: {how}")
