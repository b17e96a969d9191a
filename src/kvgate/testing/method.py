"""Conformance of a method: `check_method` holds its sizes and its arithmetic to what `methods/spec.py` promises.

For a storage method: the bytes held never depend on how tokens were cut nor on later tokens; another group's or head's
values change nothing here; tokens inside the window come back untouched; sizes equal the bytes; what is read back has
the error that the method's own theory gives, per head, from both sides; numpy and torch store the same bytes.
For a transform: it undoes itself, and attention scores stay to 1e-6 in float64.
Heads and sequences of the data have different magnitudes, so that a neighbour's scale cannot pass for the right one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import StorageMethod
from kvgate.methods.residual_window import WindowStream
from kvgate.methods.spec import Method, Transform, Unfitted, Window
from kvgate.testing._need import need

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

#: Heads of a model with grouped queries, and of one with a single latent vector.
GQA = LayerGeometry(0, "full_attention", 3, 64, 64)
WIDE = LayerGeometry(1, "full_attention", 2, 128, 128)
MLA = LayerGeometry(2, "mla", 1, 576, 0, rope_dim=64)
_SIDES: tuple[KVSide, KVSide] = ("k", "v")
_TRANSFORMED: tuple[tuple[KVSide, int], ...] = (("k", 64), ("v", 128), ("k", 192), ("k", 576), ("v", 80))
_BATCH, _TOKENS = 2, 300
#: dB between what theory gives and what some 10,000 elements per head show. The mean square of n errors has a relative
#: spread of about sqrt(2 / n), and errors of one group go together: 0.5 dB (12 %) is over five times that.
_SLACK_DB = 0.5
#: Relative: scores of a rotated query with a rotated key, in float64.
_SCORE_ERROR = 1e-6


@dataclass
class MethodReport:
    """What was seen, for a plug-in's own tests.

    Attributes:
        db: SQNR by case, the worst head.
    """

    checks: list[str] = field(default_factory=list)
    db: dict[str, float] = field(default_factory=dict)


def check_method(method: Method, *, seed: int = 0) -> MethodReport:
    """Hold `method` to its contract.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    report = MethodReport()
    _check_statics(method, report)
    if method.role == "transform":
        _check_transform(cast(Transform, method), report, seed)
    elif isinstance(method, StorageMethod):
        _check_parameters(method, report)
        for case in _cases(method, seed):
            case.run(report)
    return report


def _check_statics(method: Method, report: MethodReport) -> None:
    name = method.name
    need(name and name.replace("_", "").isalnum() and name == name.lower(), f"method name {name!r} is not lower_case")
    need(method.role in ("storage", "transform"), f"{name}: role {method.role!r} is neither storage nor transform")
    need(method.description and "\n" not in method.description, f"{name}: description is not one line")
    need(isinstance(method.source, Source), f"{name}: no source")
    for count in (1, 3, 32):
        kept = method.native_layers(count, hybrid=False)
        need(all(0 <= i < count for i in kept), f"{name}: native_layers({count}) names layers that are not there")
    report.checks.append("statics")


def _check_parameters(method: StorageMethod, report: MethodReport) -> None:
    _refused(method, {"no_such_parameter": "1"}, "an unknown parameter")
    for parameter in method.parameters:
        for wrong in ("", "-1", "x", "1.5", "1000000000"):
            _refused(method, {parameter.name: wrong}, f"{parameter.name}={wrong}")
    report.checks.append("wrong parameters are refused")


def _refused(method: StorageMethod, params: Mapping[str, str], what: str) -> None:
    try:
        method.storage("k", params)
    except UserError as e:
        need(
            "\n" not in str(e) and method.name in str(e),
            f"{method.name}: the refusal of {what} is no line that names it",
        )
        return
    need(False, f"{method.name}: {what} is accepted")


def _check_transform(method: Transform, report: MethodReport, seed: int) -> None:
    rng = _rng(seed)
    for kv, dim in _TRANSFORMED:
        _check_bound(method, kv, dim, rng)
    for codec in ("f32", "f16", "bf16"):
        need(method.bind("k", 128, codec).why_not, f"{method.name}: applies to {codec}, which is not quantized")
    report.checks.append("transform")


def _check_bound(method: Transform, kv: KVSide, dim: int, rng: np.random.Generator) -> None:
    """One binding: undone by its inverse, scores kept, the same twice and from torch."""
    import numpy as np

    q, k = rng.standard_normal((2, 1, 3, 7, dim)) * np.exp(rng.standard_normal(dim)) + rng.standard_normal(dim)
    bound, again = (method.bind(kv, dim, "q8_0") for _ in range(2))
    if bound.why_not:
        need(np.array_equal(bound.forward(k), k), f"{method.name}: does not apply at {dim}, and yet changes values")
        return
    shifts = isinstance(bound, Unfitted)
    if isinstance(bound, Unfitted) and isinstance(again, Unfitted):
        (bound, _), (again, _) = (b.fit(k.astype(np.float32)) for b in (bound, again))
    stored = bound.forward(k)
    norm = np.linalg.norm(k, axis=-1, keepdims=True)
    need(np.all(np.abs(bound.inverse(stored) - k) <= 1e-12 * norm), f"{method.name}: inverse(forward(x)) is not x")
    off = bound.query(q) @ stored.swapaxes(-1, -2) - q @ k.swapaxes(-1, -2)
    if shifts:  # softmax does not see a constant a query
        off = off - off[..., :1]
    limit = _SCORE_ERROR * np.linalg.norm(q, axis=-1, keepdims=True) * norm.swapaxes(-1, -2)
    need(np.all(np.abs(off) <= limit), f"{method.name}: scores change with the transform at {dim}")
    need(np.array_equal(stored, again.forward(k)), f"{method.name}: two bindings differ")
    torch = sys.modules.get("torch")
    if torch is not None:
        narrow = k.astype(np.float32)
        other = method.bind(kv, dim, "q8_0")
        if isinstance(other, Unfitted):
            other, _ = other.fit(torch.from_numpy(narrow))
        theirs = other.forward(torch.from_numpy(narrow)).numpy()
        need(np.array_equal(theirs, bound.forward(narrow)), f"{method.name}: numpy and torch differ")


def _rng(seed: int) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng(seed)


def _cases(method: StorageMethod, seed: int) -> Iterator[_Case]:
    for i, params in enumerate(method.examples):
        for kv in _SIDES:
            for layer in (GQA, WIDE) if i == 0 else (GQA,):
                yield _Case(method, params, kv, layer, seed)
        if i == 0:
            yield _Case(method, params, "k", MLA, seed)


@dataclass
class _Case:
    """One method, parameter set, side and layer."""

    method: StorageMethod
    params: Mapping[str, str]
    kv: KVSide
    layer: LayerGeometry
    seed: int

    def run(self, report: MethodReport) -> None:
        if self.layer is MLA and not self._fits():
            report.checks.append(f"{self}: refuses MLA")
            return
        x = self.data()
        self.tables = self.method.example_tables(self.kv, self.method.read(self.params), self.layer, x)
        whole = self.open()
        whole.append(x)
        self.check_cuts(x, whole)
        self.check_window(x, whole)
        self.check_sizes(x)
        self.check_locality(x, whole)
        self.check_error(x, whole, report)
        self.check_again(whole)
        self.check_seeds(x, whole)
        self.check_torch(x, whole)
        self.check_refusals(x)
        report.checks.append(f"{self}")

    def __str__(self) -> str:
        given = "".join(f":{k}={v}" for k, v in self.params.items())
        return f"{self.method.name}{given} {self.kv} of {self.layer.kv_heads} x {self.dim}"

    @property
    def tokens(self) -> int:
        # Long rows are dear, and their cases add shapes only.
        return _TOKENS // 2 if self.layer is MLA else _TOKENS

    @property
    def dim(self) -> int:
        return self.layer.k_dim if self.kv == "k" else self.layer.v_dim

    def data(self) -> Floats:
        import numpy as np

        rng = np.random.default_rng([self.seed, self.layer.index, len(self.kv)])
        x = rng.standard_normal((_BATCH, self.layer.kv_heads, self.tokens, self.dim))
        heads = 4.0 ** (np.arange(self.layer.kv_heads) % 3 - 1)
        batch = np.array([1.0, 2.0])
        if self.method.across_heads:
            heads[:] = 1.0
        if self.method.calibrated:  # thresholds are one for all sequences
            batch[:] = 1.0
        scaled: Floats = (x * heads[:, None, None] * batch[:, None, None, None]).astype(np.float32)
        return scaled

    def open(self, window: Window | None = None, params: Mapping[str, str] | None = None) -> WindowStream:
        return self.method.open(
            self.kv, self.params if params is None else params, self.layer, window=window, tables=self.tables
        )

    def _fits(self) -> bool:
        try:
            self.method.storage(self.kv, self.params).row_bytes(self.dim)
        except UserError as e:
            need("\n" not in str(e), f"{self}: the refusal is not one line")
            return False
        return True

    def check_cuts(self, x: Floats, whole: WindowStream) -> None:
        """One by one, in uneven chunks and at once hold the same bytes and read the same."""
        import numpy as np

        uneven = tuple(n for n in (1, 2, 33, 34, 130, 131, 259) if n < self.tokens)
        # Every length up to past the largest window and group in use, then the rest at once.
        for cuts in (uneven,) if self.layer is MLA else (range(1, 140), uneven):
            stream = self.open()
            for part in np.split(x, list(cuts), axis=2):
                stream.append(part)
            need(stream.tokens == self.tokens, f"{self}: counts {stream.tokens} of {self.tokens} tokens")
            _same(stream.packed(), whole.packed(), f"{self}: tokens in chunks and at once are stored differently")
            need(np.array_equal(stream.read(), whole.read()), f"{self}: tokens in chunks read back differently")

    def check_window(self, x: Floats, whole: WindowStream) -> None:
        """What `encoded` leaves out is native; a window wider than the sequence stores nothing else."""
        import numpy as np

        span, read = whole.encoded(self.tokens), whole.read()
        outside = np.ones(self.tokens, bool)
        outside[span.start : span.stop] = False
        need(np.array_equal(read[:, :, outside], x[:, :, outside]), f"{self}: tokens outside `encoded` are not native")
        need(read.shape == x.shape and read.dtype == np.float32, f"{self}: reads back another shape or dtype")
        wide = self.open(Window(residual_tokens=512, sink_tokens=4))
        wide.append(x)
        need(np.array_equal(wide.read(), x), f"{self}: with a window over all tokens, they do not come back untouched")
        narrow = self.open(Window(residual_tokens=None, sink_tokens=5))
        narrow.append(x)
        need(np.array_equal(narrow.read()[:, :, :5], x[:, :, :5]), f"{self}: sinks are not native")

    def check_sizes(self, x: Floats) -> None:
        """Sizes are the bytes really held, and the planner's slope and fixed part are never too little."""
        storage = self.method.storage(self.kv, self.params).windowed(Window(native_bytes=4))
        stream, before = self.open(), 0
        lengths = {min(n, self.tokens) for n in (1, 5, 31, 32, 64, 127, 128, 129, 200, 256, 257, self.tokens)}
        for tokens in sorted(lengths):
            stream.append(x[:, :, before:tokens])
            before = tokens
            said = _BATCH * storage.sequence_bytes(self.layer, tokens)
            held = stream.stored_bytes()
            need(held == said, f"{self}: {tokens} tokens take {held:,} bytes, and the sizes say {said:,}")
            planned = tokens * storage.slot_bytes(self.layer, self.kv) + storage.fixed_bytes(self.layer)
            need(held <= _BATCH * planned, f"{self}: {tokens} tokens take more than the planner's {planned:,} bytes")

    def check_locality(self, x: Floats, whole: WindowStream) -> None:
        """Nothing stored depends on later tokens, on another group, on another head or on another sequence."""
        import numpy as np

        span, group = whole.encoded(self.tokens), whole.storage.group_tokens
        if len(span) < 2 * group:
            return
        t = span.start + (len(span) // group // 2) * group
        base = whole.read()
        for first, last, what in ((t, self.tokens, "later tokens"), (t, t + group, "another group of tokens")):
            if first < whole.coder.warmup_tokens:
                continue
            moved = x.copy()
            moved[:, :, first:last] = moved[:, :, first:last] * 3 + 1
            read = self._read(moved)
            rest = np.r_[0:first, last : self.tokens]
            need(np.array_equal(read[:, :, rest], base[:, :, rest]), f"{self}: what is stored depends on {what}")
        if self.layer.kv_heads > 1 and not self.method.across_heads:
            moved = x.copy()
            moved[:, 0] = moved[:, 0] * 3 + 1
            need(np.array_equal(self._read(moved)[:, 1:], base[:, 1:]), f"{self}: a head depends on another head")
        moved = x.copy()
        moved[0] = moved[0] * 3 + 1
        need(np.array_equal(self._read(moved)[1:], base[1:]), f"{self}: a sequence depends on another sequence")

    def _read(self, x: Floats) -> Floats:
        stream = self.open()
        stream.append(x)
        return cast("Floats", stream.read())

    def check_error(self, x: Floats, whole: WindowStream, report: MethodReport) -> None:
        """Every head of every sequence has the error that theory gives."""
        import numpy as np

        span = whole.encoded(self.tokens)
        if not len(span):
            return
        part = slice(span.start, span.stop)
        want = x[:, :, part].astype(np.float64)
        off = whole.read()[:, :, part] - want
        with np.errstate(divide="ignore"):
            found = 10 * np.log10((want**2).mean((2, 3)) / (off**2).mean((2, 3)))
        report.db[str(self)] = float(found.min())
        expected = self.method.expected_db(self.kv, self.method.read(self.params), self.layer)
        need(
            found.min() > 0, f"{self}: what is read back has nothing to do with what was stored ({found.min():.1f} dB)"
        )
        if expected is not None:
            need(
                np.all(np.abs(found - expected) <= _SLACK_DB),
                f"{self}: SQNR of heads is {found.min():.2f} to {found.max():.2f} dB, and theory gives {expected:.2f}",
            )

    def check_again(self, whole: WindowStream) -> None:
        """Where the method says so, storing what was read stores the same bytes."""
        import numpy as np

        again = self.open()
        again.append(whole.read())
        need(np.isfinite(again.read()).all(), f"{self}: storing what was read gives values that are not finite")
        if self.method.idempotent:
            _same(again.packed(), whole.packed(), f"{self}: storing what was read stores other bytes")

    def check_seeds(self, x: Floats, whole: WindowStream) -> None:
        again = self.open()
        again.append(x)
        _same(again.packed(), whole.packed(), f"{self}: two runs store different bytes")
        if self.kv == "k" and any(p.name == "seed" for p in self.method.parameters):
            other = self.open(params={**self.params, "seed": "7"})
            other.append(x)
            need(not _equal(other.packed(), whole.packed()), f"{self}: the seed changes nothing")

    def check_torch(self, x: Floats, whole: WindowStream) -> None:
        """The same bytes from torch; where a matrix product is on the way, nearly."""
        import numpy as np

        torch = sys.modules.get("torch")
        if torch is None:
            return
        stream = self.open()
        stream.append(torch.from_numpy(x.copy()))
        packed = {name: a.numpy() for name, a in stream.packed().items()}
        read = stream.read().numpy()
        if self.method.same_bytes:
            _same(packed, whole.packed(), f"{self}: numpy and torch store different bytes")
            need(np.array_equal(read, whole.read()), f"{self}: numpy and torch read different values")
            return
        need(packed.keys() == whole.packed().keys(), f"{self}: numpy and torch store different things")
        differ = sum(int((a != whole.packed()[n]).sum()) for n, a in packed.items())
        total = sum(a.size for a in packed.values())
        need(differ <= total / 1000, f"{self}: {differ} of {total} bytes differ between numpy and torch")

    def check_refusals(self, x: Floats) -> None:
        import numpy as np

        for wrong, what in (
            (x.astype(np.float64), "float64"),
            (x.astype(np.int32), "integers"),
            (x[..., :-1], "a shorter head"),
            (np.concatenate([x, x], 1), "more heads"),
            (x[0], "three dimensions"),
            (np.where(x == x.max(), np.nan, x), "a NaN"),
            (np.where(x == x.min(), -np.inf, x), "an infinity"),
        ):
            try:
                self.open().append(wrong)
            except UserError as e:
                need("\n" not in str(e), f"{self}: the refusal of {what} is not one line")
            else:
                need(False, f"{self}: {what} is accepted")


def _same(a: Mapping[str, Any], b: Mapping[str, Any], why: str) -> None:
    need(_equal(a, b), why)


def _equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    import numpy as np

    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)
