"""Whether the model's heads divide by the tensor-parallel ranks that are asked for."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.launch.commands import Ask

_OFFERED = (1, 2, 4, 8, 16, 32)


def check_tp(ask: Ask) -> tuple[str, ...]:
    """Notes on the ranks; KV heads fewer than ranks are replicated, one on each.

    Raises:
        UserError: heads that do not divide; with the numbers that do.
    """
    if ask.tp < 2:
        return ()
    kv = sorted({y.kv_heads for y in ask.geometry.layers if y.kv_heads and not y.is_latent})
    given = ask.text_config.get("num_attention_heads")
    queries = [given] if isinstance(given, int) and given > 0 else []
    if not _fits(ask.tp, kv, queries):
        wrong = next((n for n in kv if not _fits(ask.tp, [n], [])), None)
        said = f"{wrong} KV heads" if wrong is not None else f"{queries[0]} attention heads"
        fits = [str(n) for n in _OFFERED if _fits(n, kv, queries)]
        raise UserError(f"{said} do not divide by --tp {ask.tp}", allowed=fits)
    if kv and kv[0] < ask.tp:
        return (
            f"{kv[0]} KV heads on {ask.tp} ranks: each rank keeps one, so the cache is {ask.tp // kv[0]} times as big",
        )
    if not kv and any(y.is_latent for y in ask.geometry.layers):
        return (f"MLA's latents are kept whole by each of the {ask.tp} ranks",)
    return ()


def _fits(tp: int, kv: list[int], queries: list[int]) -> bool:
    return all(n % tp == 0 or tp % n == 0 for n in kv) and all(n % tp == 0 for n in queries)
