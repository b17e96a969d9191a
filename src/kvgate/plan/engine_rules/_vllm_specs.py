"""A rank's priced layers as vLLM's cache specs: block sizes, page sizes, states padded to attention's page.

    attention    page = bytes of a row x block; a sparse indexer is a cache of its own beside its layer
    states       page = bytes of all states of a layer; attention's block grows until its page is at least that
                 (platforms/interface.py _align_hybrid_block_size), then states are padded to that page
    kept layers  with layers left native beside quantized ones the block grows until a quantized page covers the
                 smallest native one (_align_heterogeneous_kv_block_size); kept windows are padded to it
Source: vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts
from kvgate.plan.engine_rules._vllm_groups import CHUNKED, CROSS, FULL, MAMBA, SLIDING, Spec
from kvgate.plan.terms import LayerPrice, Price, Serving

#: MLA's manager blocks are multiples of this in hybrids, for TRT-LLM's decode kernels.
MLA_HYBRID_BLOCK_TOKENS = 128
#: Bytes that DeepSeek-V4's pages are rounded up to.
COMPRESSED_PAGE_BYTES = 576
#: States that can be saved inside a prefill take one block more: Mamba-2 (it has groups) and Kimi Delta Attention.
GROUPS_PART, DELTA_KIND = "conv_groups", "kda"
#: Codecs of layers that a recipe leaves native.
PLAIN = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block sizes of one start: tokens of attention's block, the states' page and what was said on the way."""

    tokens: int
    kernel_tokens: int
    state_page_bytes: int | None
    kept_page_bytes: int | None
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def on_cpu(options: Options) -> bool:
    """Whether this is vLLM's CPU build: option device=cpu, or its own memory setting."""
    return options.text("device") == "cpu" or options.text("VLLM_CPU_KVCACHE_SPACE") is not None


def block_sizes(price: Price, recipe: Recipe, serving: Serving, facts: Facts, options: Options) -> Blocks:
    """Block of the attention layers after all alignments.

    Raises:
        UserError: a block size that is not positive.
    """
    rows = [p for p in price.layers if p.k_row_bytes and not (p.layer.fixed_tokens and p.layer.window_tokens is None)]
    tokens, kernel, notes = _start(rows, serving, facts, options)
    steps: list[str] = []
    state = max((p.state_bytes for p in price.layers), default=0)
    primary = _primary_bytes(rows, recipe)
    page = None
    if state and primary:
        align = max(kernel, tokens, MLA_HYBRID_BLOCK_TOKENS if any(p.layer.is_latent for p in rows) else 0)
        tokens = max(tokens, align * _up(state, align * primary))
        page = tokens * primary
        steps.append(f"block {tokens} tokens, so that attention's page ({page:,} B) holds a state ({state:,} B)")
    native = [p for p in rows if _is_kept(p, recipe)]
    kept = None
    largest = max((p.row_bytes for p in native), default=0)
    if native and largest > primary:
        align = max(kernel, tokens)
        need = max(largest * kernel, page or 0)
        tokens = max(tokens, align * _up(need, align * primary))
        kept = tokens * primary
        page = kept if page is not None else None
        steps.append(f"block {tokens} tokens, so that a quantized page ({kept:,} B) covers a native one")
    return Blocks(tokens, kernel, page, kept, tuple(steps), notes)


def specs(
    price: Price, recipe: Recipe, blocks: Blocks, facts: Facts, options: Options, *, mtp: bool = False
) -> dict[str, Spec]:
    """All caches of one rank by name ("L3", "L3 indexer", "L3 state")."""
    align = options.text("mamba-cache-mode")
    if align not in (None, "none", "align"):
        raise UserError(f"vllm mamba-cache-mode {align!r} is unknown", allowed=("none", "align"))
    caching = options.flag("enable-prefix-caching", True)
    aligned = (bool(facts["mamba_align"].value) and caching) if align is None else align == "align" and caching
    speculative = options.integer("num-speculative-tokens")
    speculative = int(mtp) if speculative is None else speculative
    found: dict[str, Spec] = {}

    def add(name: str, spec: Spec) -> None:
        # A layer with two caches of one kind (a window and compressed rows) is there twice.
        while name in found:
            name += "'"
        found[name] = spec

    for p in price.layers:
        name = f"L{p.layer.index}"
        if p.k_row_bytes:
            add(name, _rows(p, recipe, blocks))
        if p.index_row_bytes:
            tokens = max(1, blocks.tokens // p.layer.tokens_per_row)
            own = ("indexer", p.index_row_bytes, p.layer.tokens_per_row)
            add(f"{name} indexer", Spec(FULL, blocks.tokens, p.index_row_bytes * tokens, own, latent=True))
        if p.state_bytes:
            page = max(p.state_bytes, blocks.state_page_bytes or 0)
            saved = p.layer.kind == DELTA_KIND or any(s.name == GROUPS_PART for s in p.layer.state)
            extra = 1 + int(saved) if aligned else 0
            parts = tuple((s.name, s.elements, s.dtype) for s in p.layer.state)
            held = 1 + extra + speculative
            add(f"{name} state", Spec(MAMBA, blocks.tokens, page, parts, sharded=False, state_blocks=held))
    return found


def _rows(p: LayerPrice, recipe: Recipe, blocks: Blocks) -> Spec:
    layer = p.layer
    tokens = blocks.tokens
    page = _page(p, tokens)
    family = layer.kind if layer.is_latent else "rows"
    shape = (family, layer.kv_heads, layer.k_dim, layer.v_dim, p.k, p.v, layer.tokens_per_row)
    latent = layer.v_dim == 0
    if layer.window_tokens is None and layer.fixed_tokens is not None:
        return Spec(CROSS, tokens, page, shape, fixed_tokens=layer.fixed_tokens)
    if layer.window_tokens is None:
        return Spec(FULL, tokens, page, shape, latent=latent)
    kind = CHUNKED if layer.chunked else SLIDING
    if kind == SLIDING and blocks.kept_page_bytes is not None and _is_kept(p, recipe):
        row = p.k_row_bytes + p.v_row_bytes
        tokens = max(blocks.kernel_tokens, blocks.kept_page_bytes // row // blocks.kernel_tokens * blocks.kernel_tokens)
        page = max(blocks.kept_page_bytes, row * tokens)
    return Spec(kind, tokens, page, shape, window_tokens=layer.window_tokens, latent=latent)


def _page(p: LayerPrice, tokens: int) -> int:
    rows = max(1, tokens // p.layer.tokens_per_row)
    page = (p.k_row_bytes + p.v_row_bytes) * rows
    if p.layer.tokens_per_row > 1 or (p.layer.window_tokens is not None and p.layer.fixed_tokens is not None):
        page = _up(page, COMPRESSED_PAGE_BYTES) * COMPRESSED_PAGE_BYTES
    return page


def _start(
    rows: list[LayerPrice], serving: Serving, facts: Facts, options: Options
) -> tuple[int, int, tuple[str, ...]]:
    """Block before alignment, the smallest block that the kernels take, notes."""
    cpu = on_cpu(options)
    latent = any(p.layer.is_latent for p in rows)
    compressed = any(p.layer.tokens_per_row > 1 for p in rows)
    kernel = facts["kernel_block_tokens_cpu" if cpu else "kernel_block_tokens"].integer
    name = "block_tokens_cpu" if cpu else "block_tokens"
    if compressed:
        name = "block_tokens_compressed"
    elif latent:
        name = "block_tokens_cpu_mla" if cpu else "block_tokens_mla"
        kernel = facts[name].integer
    asked = serving.block_tokens
    if asked is not None and asked < 1:
        raise UserError(f"vllm block size {asked} is not a size", fix="give 16, 32, 64 or 128")
    if asked is not None and not (compressed or (cpu and latent)):
        return asked, min(kernel, asked), ()
    if compressed:
        note = "compressed rows: blocks of 256 tokens, packed; the compressors' own states are not counted"
        return facts[name].integer, kernel, (note,)
    return facts[name].integer, kernel, (facts[name].note,) if facts[name].note else ()


def _primary_bytes(rows: list[LayerPrice], recipe: Recipe) -> int:
    """Bytes a token of the layers that the recipe is for (all of them without kept ones)."""
    main = [p for p in rows if not _is_kept(p, recipe)] or rows
    full = [p for p in main if p.layer.window_tokens is None] or main
    return max((p.k_row_bytes + p.v_row_bytes for p in full), default=0)


def _is_kept(p: LayerPrice, recipe: Recipe) -> bool:
    """Whether the recipe leaves this layer native: its stored words are another, lossless codec."""
    if recipe.k is None or recipe.v is None:
        return False
    return p.k in PLAIN and p.k != recipe.k.codec


def _up(value: int, step: int) -> int:
    return -(-value // step)


def merged(per_rank: Mapping[str, Mapping[str, Spec]]) -> dict[str, Spec]:
    """Caches of all ranks by name, in layer order: what the groups are made of."""
    found: dict[str, Spec] = {}
    for specs_of_rank in per_rank.values():
        for name, spec in specs_of_rank.items():
            found.setdefault(name, spec)
    return found
