"""vLLM's KV cache groups: layers with equal caches share a block table, and all groups draw from one pool of blocks.

    one kind of layer       one group, a block holds a page of every layer
    several kinds           pages are made equal (a larger block, or padding); layers are bucketed by kind, and each
                            bucket is cut into groups of equal layer count: the smallest bucket's, or the largest's if
                            that is under 1.5 times the smallest; what is missing in the last group is padding
    block-outermost layout  pages of different sizes lie side by side in a block (`packed`)
    hybrid manager off      layers with a window get room for all tokens

Own arithmetic after v1/core/kv_cache_utils.py and v1/kv_cache_interface.py of vLLM 0.32.0; tests/plan/data holds what
those functions themselves answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvgate.core.errors import UserError

FULL, SLIDING, CHUNKED, MAMBA, CROSS = "full", "sliding", "chunked", "mamba", "cross"
#: Largest bucket under this many times the smallest: groups get the largest one's size.
PADDING_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Spec:
    """One cache of one layer on one rank.

    Attributes:
        kind: FULL, SLIDING, CHUNKED, MAMBA or CROSS.
        block_tokens: tokens of a block. page_bytes: bytes of this layer in one block, padding included.
        shape: what else must be equal for two layers to be of one kind (heads, dimensions, types, role).
        window_tokens: window or chunk; 0 elsewhere. fixed_tokens: source tokens of cross attention.
        latent: MLA, whose pages cannot be padded to an arbitrary size.
        sharded: its positions are spread over the ranks of decode context parallelism.
        state_blocks: blocks of a state per request.
    """

    kind: str
    block_tokens: int
    page_bytes: int
    shape: tuple[object, ...] = ()
    window_tokens: int = 0
    fixed_tokens: int = 0
    latent: bool = False
    sharded: bool = True
    state_blocks: int = 1

    @property
    def sort(self) -> tuple[object, ...]:
        """Layers with equal values here go into one bucket; a window on a full cache does not count."""
        window = 0 if self.kind == FULL else self.window_tokens
        return (self.kind, self.latent, self.block_tokens, self.page_bytes, self.shape, window, self.sharded)


@dataclass(frozen=True, slots=True)
class Load:
    """What one request may hold: length, tokens scheduled but not settled, ranks its positions are spread over."""

    context_tokens: int
    in_flight_tokens: int
    dcp: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table. `mixed`: pages of different sizes side by side, one block holds all of them."""

    layers: tuple[str, ...]
    specs: tuple[Spec, ...]
    mixed: bool = False

    def blocks(self, load: Load) -> int:
        """Blocks of one request."""
        return max(blocks_per_request(spec, load) for spec in self.specs)


def blocks_per_request(spec: Spec, load: Load) -> int:
    """Blocks that one request may hold in one layer.

    A sliding window keeps the last `window - 1` tokens and what is in flight, never more than the context, and may
    start inside a block.
    """
    if spec.kind == MAMBA:
        return spec.state_blocks
    if spec.kind == CROSS:
        return _up(spec.fixed_tokens, spec.block_tokens)
    if spec.kind == SLIDING:
        held = min(spec.window_tokens - 1 + load.in_flight_tokens, load.context_tokens)
        return _up(held, spec.block_tokens) + 1
    if spec.kind == CHUNKED:
        return _up(min(spec.window_tokens + load.in_flight_tokens, load.context_tokens), spec.block_tokens)
    tokens = _up(load.context_tokens, load.dcp) if spec.sharded and load.dcp > 1 else load.context_tokens
    return _up(tokens, spec.block_tokens)


def group(specs: Mapping[str, Spec], *, hybrid: bool = True, packed: bool = False) -> tuple[Group, ...]:
    """Cut layers into groups.

    Args:
        specs: caches by layer name, in model order.
        hybrid: the hybrid KV cache manager is on.
        packed: the layout has the block outermost.

    Raises:
        UserError: pages that vLLM cannot make equal.
    """
    if not specs:
        return ()
    if not hybrid:
        specs = _one_kind(specs)
    if len({spec.sort for spec in specs.values()}) == 1:
        return (Group(tuple(specs), (next(iter(specs.values())),)),)
    if _one_type(specs.values()):
        return (_mixed(specs),)
    if packed and len({spec.page_bytes for spec in specs.values()}) > 1:
        return _packed(specs)
    equal = _equal_pages(specs)
    if equal is None:
        return (_mixed(_fallback(specs)),)
    return _uniform(equal)


def bytes_per_block(groups: Iterable[Group], held: Mapping[str, Spec]) -> int:
    """Bytes of one block of the pool on a rank that holds the layers `held`.

    Pages come from the groups, where blocks may have grown; a rank without a group's layers adds nothing for it.
    """
    most = 0
    for one in groups:
        if one.mixed:
            pages = sum(s.page_bytes for name, s in zip(one.layers, one.specs, strict=True) if name in held)
        else:
            pages = one.specs[0].page_bytes * sum(name in held for name in one.layers)
        most = max(most, pages)
    return most


def _up(tokens: int, block: int) -> int:
    return -(-tokens // block)


def _mixed(specs: Mapping[str, Spec]) -> Group:
    return Group(tuple(specs), tuple(specs.values()), mixed=True)


def _one_type(specs: Iterable[Spec]) -> bool:
    """Whether all layers always need the same number of blocks."""
    found = list(specs)
    first = found[0]
    if len({s.block_tokens for s in found}) > 1 or len({(s.kind, s.sharded) for s in found}) > 1:
        return False
    if first.kind in (SLIDING, CHUNKED):
        return len({(s.window_tokens, s.latent) for s in found}) == 1
    if first.kind == MAMBA:
        return len({(s.page_bytes, s.state_blocks) for s in found}) == 1
    return True


def _one_kind(specs: Mapping[str, Spec]) -> Mapping[str, Spec]:
    """Without the hybrid manager: caches that are spread over ranks and those that are not are promoted apart."""
    whole = {name for name, spec in specs.items() if spec.kind != MAMBA and not spec.sharded}
    made = dict(specs)
    for side in (whole, set(specs) - whole):
        made |= _promoted({name: spec for name, spec in specs.items() if name in side})
    return made


def _promoted(specs: Mapping[str, Spec]) -> Mapping[str, Spec]:
    """Layers with a window as full ones, where there are full ones; all must then be of one type."""
    if not specs or _one_type(specs.values()):
        return specs
    blocks = {s.block_tokens for s in specs.values() if s.kind == FULL}
    made = {}
    for name, spec in specs.items():
        if blocks and spec.kind in (SLIDING, CHUNKED):
            block = next(iter(blocks)) if len(blocks) == 1 else spec.block_tokens
            page = spec.page_bytes * block // spec.block_tokens
            spec = replace(spec, kind=FULL, block_tokens=block, page_bytes=page)
        made[name] = spec
    if not _one_type(made.values()):
        raise UserError(
            "vLLM cannot treat this model's layers as one kind without its hybrid KV cache manager",
            fix="leave --disable-hybrid-kv-cache-manager away",
        )
    return made


def _equal_pages(specs: Mapping[str, Spec]) -> Mapping[str, Spec] | None:
    """All pages as large as the largest: by a larger block where it divides, else padded. None where MLA forbids it."""
    most = max(spec.page_bytes for spec in specs.values())
    made = {}
    for name, spec in specs.items():
        if spec.page_bytes != most and spec.kind != MAMBA and most % spec.page_bytes == 0:
            spec = replace(spec, block_tokens=spec.block_tokens * (most // spec.page_bytes))
        elif spec.page_bytes != most and spec.latent and spec.kind == FULL:
            return None
        made[name] = replace(spec, page_bytes=most)
    return made


def _fallback(specs: Mapping[str, Spec]) -> Mapping[str, Spec]:
    """MLA beside a window of another page size: everything gets room for all tokens."""
    if not any(s.kind == SLIDING and not s.latent for s in specs.values()) or any(
        s.kind == CHUNKED or (s.kind == SLIDING and s.latent) for s in specs.values()
    ):
        raise UserError("vLLM cannot make the pages of this model's layers equal", fix="change the block size")
    return _promoted(specs)


def _uniform(specs: Mapping[str, Spec]) -> tuple[Group, ...]:
    buckets: dict[tuple[object, ...], list[str]] = {}
    for name, spec in specs.items():
        buckets.setdefault(spec.sort, []).append(name)
    sizes = [len(names) for names in buckets.values()]
    size = max(sizes) if max(sizes) < min(sizes) * PADDING_RATIO else min(sizes)
    groups = []
    for names in buckets.values():
        count = _up(len(names), size)
        # Every count-th layer: with pipeline parallelism each stage then has its share of every group.
        groups += [Group(tuple(names[i::count]), (specs[names[0]],)) for i in range(count)]
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one type. `by_page`: names by page size; `balanced`: as many layers of each page size."""

    specs: Mapping[str, Spec]
    by_page: Mapping[int, Sequence[str]]

    @property
    def balanced(self) -> bool:
        return len({len(names) for names in self.by_page.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(Counter(s.page_bytes for s in self.specs.values()).values())

    @property
    def first(self) -> Spec:
        return next(iter(self.specs.values()))

    def widest(self, groups: int) -> int:
        """Page bytes of the largest of `groups` groups."""
        return sum(_up(len(names), groups) * page for page, names in self.by_page.items())


def _packed(specs: Mapping[str, Spec]) -> tuple[Group, ...]:
    buckets = _type_buckets(specs)
    floor = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = _best_repeats([b.repeats for b in buckets if b.balanced], floor) if floor else None

    def count(bucket: _Bucket) -> int:
        return _up(bucket.repeats, repeats) if bucket.balanced and repeats is not None else 1

    def state(bucket: _Bucket) -> bool:
        return bucket.first.kind == MAMBA or (repeats is None and bucket.first.kind == SLIDING)

    anchor = max(b.widest(len(b.specs) if state(b) else count(b)) for b in buckets)
    groups: list[Group] = []
    for bucket in buckets:
        number = count(bucket)
        if anchor and state(bucket):
            number = max(number, _up(len(bucket.specs), max(anchor // bucket.first.page_bytes, 1)))
        if number == 1:
            groups.append(_mixed(bucket.specs))
            continue
        rows = list(zip(*bucket.by_page.values(), strict=False))
        for i in range(number):
            names = [name for row in rows[i::number] for name in row]
            groups.append(_mixed({name: bucket.specs[name] for name in names}))
    return tuple(groups)


def _type_buckets(specs: Mapping[str, Spec]) -> list[_Bucket]:
    found: list[dict[str, Spec]] = []
    for name, spec in specs.items():
        for bucket in found:
            if _one_type([*bucket.values(), spec]):
                bucket[name] = spec
                break
        else:
            found.append({name: spec})
    made = []
    for bucket in found:
        by_page: dict[int, list[str]] = {}
        for name, spec in bucket.items():
            by_page.setdefault(spec.page_bytes, []).append(name)
        made.append(_Bucket(bucket, by_page))
    return made


def _best_repeats(counts: Sequence[int], floor: int) -> int:
    """Repeats of a layer pattern per group with the least padding; of equal ones the largest."""
    tried = range(max(1, floor), max(max(counts), floor) + 1)
    return max(tried, key=lambda d: (-sum(-count % d for count in counts), d))
