"""Every registered method is held to the contract; and methods with one planted mistake are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.methods import spec
from kvgate.methods._method import GroupCoder
from kvgate.methods.hadamard import Hadamard, Rotation, fast_hadamard
from kvgate.methods.kivi import Kivi
from kvgate.methods.spec import Coder
from kvgate.methods.turboquant_vllm import TurboQuantPreset
from kvgate.testing.method import check_method


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """check_method compares with torch where it is loaded; its threads would only wait for each other here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", spec.methods(), ids=lambda m: m.name)
def test_a_registered_method_keeps_its_contract(method: spec.Method) -> None:
    """What `check_method` promises holds for every registered method."""
    report = check_method(method)

    assert report.checks
    if method.role == "storage":
        assert report.db


class Wrapped(GroupCoder):
    """Another coder, to be broken in one place."""

    def __init__(self, inner: Coder) -> None:
        self.inner, self.group_tokens = inner, inner.group_tokens

    def encode(self, x: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.inner.encode(x, tables)

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.inner.decode(packed, tables)


class Unrotated(Wrapped):
    """Gives the stored basis back as if it were the model's."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        x = self.inner.decode(packed, tables)
        return fast_hadamard(x, x.shape[-1])


class SwappedNibbles(Wrapped):
    """Reads the high half of a byte first."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        codes = packed["codes"]
        return self.inner.decode({**packed, "codes": codes << 4 | codes >> 4}, tables)


class ShiftedScale(Wrapped):
    """Takes the scale of the token or group before."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.inner.decode({**packed, "scale": np.roll(packed["scale"], 1, axis=2)}, tables)


class WrongHead(Wrapped):
    """Takes the scale of the head before."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.inner.decode({**packed, "scale": np.roll(packed["scale"], 1, axis=1)}, tables)


class LookAhead(Wrapped):
    """Subtracts the mean of everything that comes in one call."""

    def encode(self, x: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.inner.encode(x - x.mean(2, keepdims=True), tables)


class BiggerStep(Wrapped):
    """Reads 3 % too much: a scale that was rounded up."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.inner.decode(packed, tables) * np.float32(1.03)


class Fat(Wrapped):
    """Holds a byte a token that the sizes do not know."""

    def encode(self, x: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]:
        held = dict(self.inner.encode(x, tables))
        return {**held, "more": held["codes"][..., :1]}


class Sloppy(Wrapped):
    """Keeps the raw values: better than two bits can be."""

    def encode(self, x: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]:
        self.kept = x
        return self.inner.encode(x, tables)

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.kept if self.kept.shape[2] == packed["codes"].shape[2] else self.inner.decode(packed, tables)


def broken_kivi(mutation: type[Wrapped], side: str) -> Kivi:
    class Broken(Kivi):
        examples = ({"bits": "4"},)

        def coder(self, kv: Any, values: Any, layer: LayerGeometry, tables: Any) -> Any:
            right = super().coder(kv, values, layer, tables)
            return mutation(right) if kv == side else right

    return Broken()


def broken_turboquant(mutation: type[Wrapped]) -> TurboQuantPreset:
    class Broken(TurboQuantPreset):
        def coder(self, kv: Any, values: Any, layer: LayerGeometry, tables: Any) -> Any:
            right = super().coder(kv, values, layer, tables)
            return mutation(right) if kv == "k" else right

    return Broken("4bit_nc", 4, 4)


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize(
    "mutation", [SwappedNibbles, ShiftedScale, WrongHead, LookAhead, Fat], ids=lambda m: m.__name__
)
def test_a_broken_kivi_is_found(mutation: type[Wrapped], side: str) -> None:
    """A swapped nibble, a neighbour's scale, a look at later tokens and uncounted bytes fail the check."""
    with pytest.raises(AssertionError):
        check_method(broken_kivi(mutation, side))


@pytest.mark.parametrize("mutation", [Unrotated, SwappedNibbles, BiggerStep, LookAhead], ids=lambda m: m.__name__)
def test_a_broken_turboquant_is_found(mutation: type[Wrapped]) -> None:
    """An output left in the rotated basis and a read-back 3 % too large fail the check."""
    with pytest.raises(AssertionError):
        check_method(broken_turboquant(mutation))


class Shrinking(Wrapped):
    """Reads half a percent too little: too small for the error to show, but it adds up when a cache is moved."""

    def decode(self, packed: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
        return self.inner.decode(packed, tables) * np.float32(0.995)


def test_a_drift_under_cycles_is_found() -> None:
    """A method that says it is idempotent must store the same bytes again."""
    with pytest.raises(AssertionError, match="storing what was read stores other bytes"):
        check_method(broken_kivi(Shrinking, "v"))


def test_values_better_than_the_bits_allow_are_found() -> None:
    """A coder that hands back what it was given fails: theory is held from both sides."""
    with pytest.raises(AssertionError, match=r"theory gives|differently|depends"):
        check_method(broken_kivi(Sloppy, "v"))


class HalfRotation(Hadamard):
    """Forgets to rotate back."""

    def bind(self, kv: Any, dim: int, codec: str) -> Any:
        class OneWay(Rotation):
            def inverse(self, x: Any) -> Any:
                return x

        right = super().bind(kv, dim, codec)
        return right if right.why_not else OneWay(right.size)


class Stretched(Hadamard):
    """Undoes itself, but is not orthogonal: scores grow by 1e-5."""

    def bind(self, kv: Any, dim: int, codec: str) -> Any:
        class Scaled(Rotation):
            def forward(self, x: Any) -> Any:
                return super().forward(x) * (1 + 5e-6)

            def inverse(self, x: Any) -> Any:
                return super().inverse(x) / (1 + 5e-6)

        right = super().bind(kv, dim, codec)
        return right if right.why_not else Scaled(right.size)


@pytest.mark.parametrize("broken", [HalfRotation(), Stretched()], ids=lambda m: type(m).__name__)
def test_a_broken_transform_is_found(broken: Hadamard) -> None:
    """A rotation that is not undone, or that changes scores by 1e-5, fails the check."""
    with pytest.raises(AssertionError, match=r"inverse|scores"):
        check_method(broken)


class Shouting(Kivi):
    name = "KIVI"


class Sourceless(Kivi):
    source = "somewhere"  # type: ignore[assignment]


class Swallowing(Kivi):
    def read(self, params: Any) -> Any:
        return super().read({k: v for k, v in params.items() if k in ("bits", "group")})


@pytest.mark.parametrize("broken", [Shouting(), Sourceless(), Swallowing()], ids=lambda m: type(m).__name__)
def test_a_method_that_lies_about_itself_is_found(broken: Kivi) -> None:
    """A name in capitals, no source, a parameter that is silently dropped."""
    with pytest.raises(AssertionError):
        check_method(broken)


def test_the_mutants_are_right_but_for_their_mistake() -> None:
    """The wrapper itself breaks nothing, so that the mutants fail for what they do."""
    check_method(broken_kivi(Wrapped, "k"))
    check_method(broken_turboquant(Wrapped))
    assert isinstance(Kivi().source, Source)
