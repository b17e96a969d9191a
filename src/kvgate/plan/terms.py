"""The values that pass between the planner's parts: a layer's price, a budget's terms, what an engine would reserve.

Pure values. Bytes are integers; what is amortised over several tokens (compressed rows, grouped scales) is a Fraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source


@dataclass(frozen=True, slots=True)
class LayerPrice:
    """What one cache of one layer costs on one rank.

    Attributes:
        layer: the layer as this rank holds it (its share of the heads).
        k, v: what is stored, in recipe words ("bf16", "q8_0+hadamard"); the native dtype where the layer is kept.
        k_row_bytes, v_row_bytes: bytes of one stored row over all heads of the rank.
        index_row_bytes: the indexer's own row.
        state_bytes: states per sequence. fixed_bytes: further bytes per sequence (residual windows, cross attention).
        short_row_bytes: bytes of a row while a sequence is still held native (`residual=`, `sink=`, unfinished groups);
            a sequence in this layer never takes more than that. 0 where nothing is held native.
    """

    layer: LayerGeometry
    k: str
    v: str
    k_row_bytes: int
    v_row_bytes: int
    index_row_bytes: int = 0
    state_bytes: int = 0
    fixed_bytes: int = 0
    short_row_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        return self.k_row_bytes + self.v_row_bytes + self.index_row_bytes

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of a token inside the window; 0 for a cache that does not grow."""
        if self.layer.fixed_tokens is not None:
            return Fraction(0)
        return Fraction(self.row_bytes, self.layer.tokens_per_row)


@dataclass(frozen=True, slots=True)
class Price:
    """One recipe on one model and one rank.

    Attributes:
        recipe: as reports write it. layers: one entry a cache, in model order.
        bytes_per_token: a token inside all windows. growth_bytes_per_token: what each token past them costs.
        fixed_bytes_per_sequence: states, cross attention, residual windows.
    """

    recipe: str
    layers: tuple[LayerPrice, ...]

    @property
    def bytes_per_token(self) -> Fraction:
        return sum((p.bytes_per_token for p in self.layers), Fraction(0))

    @property
    def growth_bytes_per_token(self) -> Fraction:
        return sum((p.bytes_per_token for p in self.layers if p.layer.grows), Fraction(0))

    @property
    def fixed_bytes_per_sequence(self) -> int:
        return sum(p.state_bytes + p.fixed_bytes for p in self.layers)


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a budget.

    Attributes:
        name: "device memory", "weights", ... bytes: signed; the budget is the sum.
        how: the arithmetic in words ("0.92 x 150,754,820,096"). assumed: nobody measured it for this case.
    """

    name: str
    bytes: int
    how: str
    source: Source
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """KV memory of one rank, term by term."""

    rank: str
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        return max(0, sum(t.bytes for t in self.terms))


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model will be served; None is the engine's own default.

    Attributes:
        engine: canonical id ("vllm", "sglang", "trtllm", "llama_cpp"). version: "0.32.0"; empty is the newest known.
        context_tokens: one sequence's cap (`max_model_len`, `n_ctx` per slot).
        tp, pp, dp, dcp: parallel sizes.
        slots: sequences at once. batched_tokens: tokens of one forward pass (`max_num_batched_tokens`, `n_ubatch`).
        block_tokens: tokens of a page. memory_fraction: `gpu_memory_utilization`, `mem_fraction_static`, ...
        mtp: multi-token prediction is on. options: an engine's own further settings, by its own flag names.
    """

    engine: str
    context_tokens: int
    version: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    slots: int | None = None
    batched_tokens: int | None = None
    block_tokens: int | None = None
    memory_fraction: float | None = None
    mtp: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU's share of the model: its price list and its weights."""

    name: str
    price: Price
    weights_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the engine would set aside and print.

    Attributes:
        rule: id of the rule, with the version range ("vllm kv-groups, 0.21 and later"). source: where it was read.
        tokens: what the engine prints or holds as tokens; None where it prints none.
        sequences: whole sequences of `context_tokens` at once, over all data-parallel ranks; None where unknown.
        limiting_rank: name of the rank that decides.
        prints: the log line that the engine would write, word by word where it is known; else "".
        steps: the arithmetic, a line a step. notes: what a person must know of these numbers.
    """

    rule: str
    source: Source
    tokens: int | None
    sequences: int | None
    limiting_rank: str
    reserved_bytes: int | None = None
    prints: str = ""
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class EngineRule(Protocol):
    """One engine's way from memory to tokens: one file in `plan/engine_rules/`, attribute ENGINE_RULE."""

    @property
    def name(self) -> str:
        """Canonical engine id."""
        ...

    def budget(self, rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
        """KV memory of one rank. `overhead_bytes` None takes the engine's own estimate, marked as assumed."""
        ...

    def reserve(
        self,
        geometry: ModelGeometry,
        recipe: Recipe,
        ranks: tuple[Rank, ...],
        serving: Serving,
        budgets: tuple[Budget, ...],
    ) -> Reserved:
        """What is reserved and printed under these budgets, limiting rank first decided.

        Raises:
            UserError: this engine cannot serve this model or recipe; says why.
        """
        ...
