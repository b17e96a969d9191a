"""Memory that is left for the cache, term by term, without any engine's rounding.

    budget = floor(device memory x fraction) - weights - overhead [- draft model]

The fraction is vLLM's `gpu_memory_utilization` unless the caller gives another. Engines that divide memory in another
way (SGLang's static fraction, TensorRT-LLM's share of what is free, llama.cpp's none) have their own `budget` in
`plan/engine_rules/`. Knows nothing about layers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.units import gb_text
from kvgate.plan.terms import Budget, Rank, Term

#: vLLM's default since 0.21 (0.90 before; the engine rules know both): config/cache.py, gpu_memory_utilization.
DEFAULT_FRACTION = 0.92
FRACTION_SOURCE = Source("spec", "vLLM config/cache.py, gpu_memory_utilization", "0.32.0")
#: Activations, CUDA graphs and what the driver takes. vLLM logs on H100 show 4.8 to 7.5 GiB for dense and MoE models.
DEFAULT_OVERHEAD_BYTES = 6_000_000_000
OVERHEAD_SOURCE = Source(
    "assumed", "6 GB for activations, graphs and runtime; read the real figure in the engine's start log (--from-log)"
)
GIVEN = Source("spec", "given on the command line")


def check_fraction(fraction: float) -> float:
    """`fraction` if it is a share of memory.

    Raises:
        UserError: NaN, zero, negative or over 1.
    """
    if not (math.isfinite(fraction) and 0 < fraction <= 1):
        raise UserError(f"memory fraction {fraction} is not a share of memory", fix="give a number such as 0.92")
    return fraction


def plain_budget(
    rank: Rank,
    *,
    device_bytes: int,
    device_source: Source,
    fraction: float | None = None,
    overhead_bytes: int | None = None,
) -> Budget:
    """Memory for the cache on one rank.

    Args:
        device_bytes: all memory of the device. fraction: share of it that may be used; None is vLLM's 0.92.
        overhead_bytes: what is neither weights nor cache; None assumes 6 GB.

    Raises:
        UserError: a fraction that is none, no memory, or weights that nobody has said.
    """
    if device_bytes <= 0:
        raise UserError(f"a device with {device_bytes} bytes cannot be planned", fix="give --device-memory 24GB")
    if rank.weights_bytes is None:
        raise UserError(
            f"the weights of {rank.name} are not known", fix="give --weights 65.52GB, or a folder with them"
        )
    share = check_fraction(DEFAULT_FRACTION if fraction is None else fraction)
    # As decimals: 0.92 is meant, not the binary number beside it.
    usable = math.floor(Fraction(str(share)) * device_bytes)
    overhead = DEFAULT_OVERHEAD_BYTES if overhead_bytes is None else overhead_bytes
    return Budget(
        rank.name,
        (
            Term("device memory", device_bytes, "all of it", device_source),
            Term(
                "left unused",
                usable - device_bytes,
                f"{device_bytes:,} x (1 - {share:g})",
                FRACTION_SOURCE if fraction is None else GIVEN,
            ),
            Term("weights", -rank.weights_bytes, "all tensors of this rank", Source("arithmetic", "bytes of tensors")),
            Term(
                "overhead",
                -overhead,
                "activations, graphs, runtime",
                OVERHEAD_SOURCE if overhead_bytes is None else GIVEN,
                assumed=overhead_bytes is None,
            ),
        ),
    )


def less(budget: Budget, term: Term) -> Budget:
    """The budget with one more term; a term that costs memory has negative bytes."""
    return replace(budget, terms=(*budget.terms, term))


def shortfall(budget: Budget) -> int:
    """Bytes by which the terms exceed the memory; 0 where something is left."""
    return max(0, -sum(t.bytes for t in budget.terms))


def shortfall_text(budget: Budget) -> str:
    """What to say of a budget without room; "" where there is room."""
    over = shortfall(budget)
    return "" if over == 0 else f"weights and overhead are {gb_text(over)} more than {budget.rank} may use"
