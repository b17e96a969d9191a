"""What every storage method's file fills in: parameters, sizes, a coder. `SideStream`s come from `WindowStream`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._parameters import Parameter, read_parameters
from kvgate.methods._storage import TokenStorage
from kvgate.methods.residual_window import WindowStream
from kvgate.methods.spec import BoundTransform, Coder, Role, Window


class StorageMethod(ABC):
    """One way to store K and V.

    Attributes:
        name, description, source: as in `Method`.
        parameters: what a recipe may say behind the name.
        examples: parameter sets that the conformance check runs.
        same_bytes: numpy and torch store the same bytes (no matrix product in floating point on the way).
        idempotent: storing what was read back stores the same bytes (a cache that is moved, or quantized anew, drifts
            where this is False).
        across_heads: one head's bytes depend on the others of the same token.
        calibrated: `open` needs tables.
        basis: "post_rope" or "pre_rope": what K the method wants, and gives back.
        own_raw: attention of freshly appended tokens sees these tokens as they came, not as stored. An int n: only for
            chunks of more than n tokens, or before anything is stored (vLLM's TurboQuant continues small chunks on its
            stored tokens).
    """

    role: ClassVar[Role] = "storage"
    name: str
    description: str
    source: Source
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({},)
    same_bytes: ClassVar[bool] = True
    across_heads: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True
    calibrated: ClassVar[bool] = False
    basis: ClassVar[str] = "post_rope"
    own_raw: ClassVar[bool | int] = False

    def storage(self, side: KVSide, params: Mapping[str, str]) -> TokenStorage:
        """Sizes for one side under these parameters."""
        return self.sized(side, self.read(params))

    def read(self, params: Mapping[str, str]) -> dict[str, int]:
        """The parameters as numbers, defaults filled in; UserError where they do not fit."""
        return read_parameters(self.name, self.parameters, params)

    @abstractmethod
    def sized(self, side: KVSide, values: Mapping[str, int]) -> TokenStorage:
        """The storage under these values."""

    @abstractmethod
    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> Coder:
        """The arithmetic under these values."""

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float | None:
        """SQNR that independent N(0, 1) elements come back with, by the quantizer's own theory; None: not known.

        The conformance check holds every head to it within a decibel, from both sides.
        """
        return None

    def example_tables(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, sample: Any) -> Any:
        """Tables for the conformance check, where the method needs some, fitted to a sample of what it will store."""
        return None

    def open(
        self,
        kv: KVSide,
        params: Mapping[str, str],
        layer: LayerGeometry,
        *,
        window: Window | None = None,
        native: str | None = None,
        tables: Any = None,
        transforms: tuple[BoundTransform, ...] = (),
    ) -> WindowStream:
        """An empty stream; see `StorageArithmetic.open`."""
        values = self.read(params)
        storage = self.sized(kv, values)
        if window is not None:
            storage = storage.windowed(window)
        if not storage.dim(layer):
            raise UserError(f"{self.name}: layer {layer.index} keeps no {kv}")
        coder = self.coder(kv, values, layer, tables)
        return WindowStream(storage, coder, layer, native=native, transforms=transforms)

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        """Layers that the method leaves native by itself."""
        return ()


def boundary_layers(layer_count: int, *, hybrid: bool, each: int = 2) -> tuple[int, ...]:
    """First and last `each` layers, at most half of all on either side; none in a hybrid model.

    Source: vLLM 0.32.0, turboquant/config.py, get_boundary_skip_layers; the last pair overlaps the first in models of
    fewer than four layers.
    """
    if hybrid:
        return ()
    n = min(each, layer_count // 2)
    return tuple(sorted({*range(n), *range(layer_count - n, layer_count)}))


class GroupCoder(ABC):
    """A coder without warm-up."""

    group_tokens: int = 1
    warmup_tokens: int = 0
    finite_only: bool = True

    def prepare(self, x: Any) -> Mapping[str, Any]:
        return {}

    @abstractmethod
    def encode(self, x: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]: ...

    @abstractmethod
    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any: ...
