"""Memory that vLLM leaves to the KV cache, term by term, and the batch that it takes by default.

    GPU   total x gpu_memory_utilization - weights - what the profiled forward pass took - CUDA-graph estimate
    --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE (GiB): that size, whatever the rest
Source: vLLM 0.32.0 v1/worker/gpu_worker.py determine_available_memory, v1/worker/utils.py request_memory,
v1/worker/cpu_worker.py, engine/arg_utils.py get_batch_defaults. request_memory rounds the product up; it is rounded
down here, one byte less, as in `plan/budget.py` and in published worked examples.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES
from kvgate.plan.budget import DEFAULT_OVERHEAD_BYTES, GIVEN, OVERHEAD_SOURCE, check_fraction
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts, facts
from kvgate.plan.engine_rules._vllm_specs import on_cpu
from kvgate.plan.terms import Budget, Rank, Serving, Term

_ASKED = Source("spec", "vllm v1/worker/gpu_worker.py, cpu_worker.py: an explicit size skips profiling", "0.32.0")
#: Name of the term that holds all memory of the device.
DEVICE = "device memory"


def budget(rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
    """KV memory of one rank.

    Raises:
        UserError: no weights, a memory that is not positive, or a fraction outside 0 to 1.
    """
    rows = facts("vllm", serving.version)
    options = Options("vllm", serving.options)
    asked = asked_bytes(options)
    if asked is not None:
        return Budget(rank.name, (Term("KV cache memory as asked for", asked, f"{asked:,} bytes", _ASKED),))
    if device_bytes <= 0:
        raise UserError(f"a device of {device_bytes} bytes has no room", fix="give --device or --device-memory")
    if rank.weights_bytes is None:
        raise UserError("the size of the weights is not known, so vLLM's budget is not", fix="give --weights SIZE")
    fraction, source = _fraction(serving, rows)
    usable = floor(Fraction(str(fraction)) * device_bytes)
    terms = [
        Term(DEVICE, device_bytes, "all of it", Source("spec", "the device's memory as it was given")),
        Term("left unused", usable - device_bytes, f"{device_bytes:,} x (1 - {fraction:g})", source),
        Term("weights", -rank.weights_bytes, "tensor bytes of this rank", Source("file", "the checkpoint's tensors")),
        _overhead(overhead_bytes),
    ]
    if (graphs := _graphs(rows, options)) is not None:
        terms.append(graphs)
    return Budget(rank.name, tuple(terms))


def asked_bytes(options: Options) -> int | None:
    """A KV cache size that the person set by hand."""
    exact = options.size_bytes("kv-cache-memory-bytes")
    # The older CPU setting overrides the flag: platforms/cpu.py check_and_update_config.
    space = options.gib("VLLM_CPU_KVCACHE_SPACE")
    return exact if space is None else space


def batched_tokens(serving: Serving, rows: Facts, options: Options, device_bytes: int | None) -> tuple[int, str]:
    """`max_num_batched_tokens` and where it is from.

    Raises:
        UserError: not positive.
    """
    if serving.batched_tokens is not None:
        if serving.batched_tokens < 1:
            raise UserError(f"vllm max_num_batched_tokens {serving.batched_tokens} is not a batch", fix="give 2048")
        return serving.batched_tokens, "as asked for"
    name, unless = "batched_tokens_small", ""
    if on_cpu(options):
        return rows[name].integer * serving.tp * serving.pp, "default of the CPU build"
    if device_bytes is not None and device_bytes >= 160 * GIB_BYTES:
        name = "batched_tokens_160gib"
    elif device_bytes is not None and device_bytes >= 70 * GIB_BYTES:
        a100 = "a100" in (options.text("device") or "").lower()
        name, unless = ("batched_tokens_small", "") if a100 else ("batched_tokens_70gib", ", unless it is an A100")
    size = "an unknown device" if device_bytes is None else f"{device_bytes / GIB_BYTES:.1f} GiB"
    return rows[name].integer, f"default of the server on {size}{unless}"


def in_flight_tokens(serving: Serving, rows: Facts, options: Options, batch_tokens: int) -> tuple[int, str]:
    """Tokens that may be scheduled and not settled: layers with a window keep them too."""
    given = options.integer("max-in-flight-tokens")
    if given is not None:
        return given, "as given"
    if not rows["in_flight_batches"].value:
        return batch_tokens, "one batch"
    batches = serving.pp
    if not on_cpu(options) and options.flag("async-scheduling", True):
        batches = serving.pp + 1
    return batches * batch_tokens, f"{batches} batches in flight x {batch_tokens:,}"


def _fraction(serving: Serving, rows: Facts) -> tuple[float, Source]:
    if serving.memory_fraction is None:
        return rows["memory_fraction"].number, rows["memory_fraction"].source
    return check_fraction(serving.memory_fraction), GIVEN


def _overhead(overhead_bytes: int | None) -> Term:
    if overhead_bytes is not None:
        return Term("activations and the rest", -overhead_bytes, f"{overhead_bytes:,} bytes", GIVEN)
    how = "typical of one profiled forward pass"
    return Term("activations and the rest", -DEFAULT_OVERHEAD_BYTES, how, OVERHEAD_SOURCE, assumed=True)


def _graphs(rows: Facts, options: Options) -> Term | None:
    """The CUDA-graph estimate, where this version takes it off: its size is only known from a log."""
    row = rows["cudagraph_estimate"]
    counted = options.flag("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", bool(row.value))
    if not counted or on_cpu(options) or options.flag("enforce-eager", False):
        return None
    known = options.size_bytes("cudagraph-bytes")
    how = "as given" if known is not None else "taken off by this version; its size is in the start log only"
    return Term("CUDA-graph estimate", -(known or 0), how, row.source, assumed=known is None)
