"""The attention backends that both arms of SGLang are pinned to, or why none are.

Rows of `sglang.toml`: what each backend reads and where, and the order for a family of models; the first of an order is
what SGLang takes by itself. Prefill and decode are pinned apart where one backend cannot do both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.enginefacts.facts import BackendRow, EngineFacts, SelectionRow
from kvgate.launch.commands import Ask
from kvgate.launch.model_default import default_of
from kvgate.launch.writers._sglang_limits import NATIVE_WORDS

NVFP4 = "nvfp4"
_ATTENTION, _PREFILL, _DECODE = "--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"
_DSA = (("dsa_prefill_backend", "--dsa-prefill-backend"), ("dsa_decode_backend", "--dsa-decode-backend"))
#: Triton's E4M3, as with vLLM (vllm issue 26431); not verified for SGLang, so not written.
_BEFORE_E4M3 = ("7.5", "8.0", "8.6", "8.7")
#: Layers beside attention whose kernels and pages SGLang settles by rules that were not read in full.
_UNREAD = ("kda", "lightning_attention", "cross_attention")


@dataclass(frozen=True, slots=True)
class Pins:
    """Options of each arm; names: for a person, by arm. loud: what differs beside the type. notes: the rest."""

    candidate: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    loud: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def pin(ask: Ask, facts: EngineFacts, word: str) -> Pins:
    """One backend, or one pair, for both arms where that serves both; else each its own, loudly.

    Raises:
        UserError: no backend is known to read the type here.
    """
    layers = [y for y in ask.geometry.layers if y.kv_heads or y.is_latent]
    if ask.device is None:
        return Pins(loud=("the attention backend is not pinned: name --device to have it chosen",))
    if ask.model_type.startswith("deepseek_v4"):
        return Pins(("--attention-backend", "dsv4"), (), {"candidate": "dsv4"})
    if any(y.kind == "sparse_mla" for y in layers):
        return _pin_dsa(ask, facts, word)
    if ask.vendor not in ("nvidia", "amd"):
        return Pins(loud=(f"the attention backend is not pinned: what reads {word} on {ask.where} was not read",))
    if any(y.kind in _UNREAD for y in ask.geometry.layers) or _is_unread_hybrid(ask, facts):
        if word not in (*NATIVE_WORDS, "fp8_e4m3"):
            raise UserError(f"what SGLang does with {word} for {ask.model_type} was not read", fix="write fp8_e4m3")
        return Pins(loud=("the attention backend is not pinned: SGLang's choice for this family was not read in full",))
    if word == NVFP4:
        return _pin_nvfp4(ask)
    return _pin_one(ask, facts, word, layers)


def _pin_one(ask: Ask, facts: EngineFacts, word: str, layers: Sequence[LayerGeometry]) -> Pins:
    attention = "mla" if any(y.is_latent for y in layers) else "full"
    order = _order(ask, facts, attention)
    rows = {b.name: b for b in facts.backend if b.attention == attention}
    new = [n for n in order if _reads(rows[n], ask, word, layers)]
    old = [n for n in order if _reads(rows[n], ask, "bf16", layers)]
    if not new:
        # Not in the order, though it can be named: mxfp8 on fa4, 4 bits on triton.
        new = [n for n, row in rows.items() if not row.opt_in and _reads(row, ask, word, layers)]
    if not new:
        raise UserError(f"no attention backend of SGLang is known to read {word} for this model on {ask.where}")
    both = [n for n in new if n in old or _reads(rows[n], ask, "bf16", layers)]
    usual = old[0] if old else ""
    if not both:
        said = f"THE KERNEL CHANGES TOO: the candidate runs on {new[0]}, the baseline on {usual}"
        return Pins((_ATTENTION, new[0]), (_ATTENTION, usual), {"candidate": new[0], "baseline": usual}, (said,))
    name = both[0]
    option = (_ATTENTION, name)
    names = {"candidate": name, "baseline": name}
    if name == usual:
        return Pins(option, option, names)
    said = (
        f"THE KERNEL CHANGES WITH THE TYPE: by itself SGLang serves 16 bits with {usual or 'another backend'} on "
        f"{ask.where}; both arms are pinned to {name}, so compare with what serves today as well"
    )
    return Pins(option, option, names, (said,), _caution(rows[name], word))


def _caution(row: BackendRow, word: str) -> tuple[str, ...]:
    """The row's own note where it is why a person should look twice."""
    return (f"{row.name}: {row.note}",) if row.note and word in row.dtypes else ()


def _pin_nvfp4(ask: Ask) -> Pins:
    """Decoded by trtllm_mha; filled by it on 10.x, by flashinfer elsewhere. kv_cache_hook.py, 0.5.23."""
    if ask.capability.split(".")[0] == "10":
        option: tuple[str, ...] = (_ATTENTION, "trtllm_mha")
        return Pins(option, option, {"candidate": "trtllm_mha", "baseline": "trtllm_mha"})
    option = (_PREFILL, "flashinfer", _DECODE, "trtllm_mha")
    name = "flashinfer (prefill), trtllm_mha (decode)"
    said = (
        f"THE KERNEL CHANGES WITH THE TYPE: by itself SGLang serves 16 bits with flashinfer on {ask.where}; both arms "
        f"are pinned to {name}"
    )
    return Pins(option, option, {"candidate": name, "baseline": name}, (said,))


def _pin_dsa(ask: Ask, facts: EngineFacts, word: str) -> Pins:
    """Sparse MLA has kernels of its own, which depend on the type (overrides._dsa_split_backend_resolution)."""
    arms = {}
    for arm, codec in (("candidate", "bf16" if word in NATIVE_WORDS else word), ("baseline", "bf16")):
        words = (f"{ask.model_type}:{codec}", f"*:{codec}")
        found = [default_of(facts, key, ask, words) for key, _ in _DSA]
        if any(row is None for row in found):
            said = f"the attention backend is not pinned: SGLang's kernels for sparse MLA on {ask.where} were not read"
            return Pins(loud=(said,))
        arms[arm] = [row for row in found if row is not None]
    options = {
        arm: (_ATTENTION, "dsa", *(w for (_, option), r in zip(_DSA, rows, strict=True) for w in (option, r.value)))
        for arm, rows in arms.items()
    }
    names = {arm: f"dsa ({rows[0].value} prefill, {rows[1].value} decode)" for arm, rows in arms.items()}
    notes = tuple(dict.fromkeys(r.note for r in arms["candidate"] if r.note and ask.capability.split(".")[0] != "10"))
    loud: tuple[str, ...] = ()
    if names["candidate"] != names["baseline"]:
        loud = (f"THE KERNEL CHANGES TOO: candidate {names['candidate']}, baseline {names['baseline']}",)
    return Pins(options["candidate"], options["baseline"], names, loud, notes)


def _is_unread_hybrid(ask: Ask, facts: EngineFacts) -> bool:
    """Recurrent layers beside attention on 10.x, of a family without a row: page rules there depend on the family."""
    row = _row(ask, facts, "full")
    hybrid = any(y.state for y in ask.geometry.layers) and ask.vendor == "nvidia"
    return hybrid and _within(ask.capability, ("10",)) and (row is None or not row.models)


def _order(ask: Ask, facts: EngineFacts, attention: str) -> tuple[str, ...]:
    """Backends in the order of the model's family, else of the platform."""
    row = _row(ask, facts, attention)
    return row.order if row is not None else ()


def _row(ask: Ask, facts: EngineFacts, attention: str) -> SelectionRow | None:
    for row in facts.selection:
        ours = not row.models or any(fnmatchcase(ask.model_type, m) for m in row.models)
        if ours and row.attention == attention and row.vendor == ask.vendor and _is_on(ask, row):
            return row
    return None


def _is_on(ask: Ask, row: SelectionRow) -> bool:
    return ask.vendor != "nvidia" or _within(ask.capability, row.capabilities)


def _within(capability: str, wanted: Sequence[str]) -> bool:
    return any(capability == w or capability.split(".")[0] == w for w in wanted)


def _reads(row: BackendRow, ask: Ask, word: str, layers: Sequence[LayerGeometry]) -> bool:
    """Whether a backend serves these layers with this word here."""
    quantized = word not in NATIVE_WORDS
    if row.vendor not in ("any", ask.vendor) or (quantized and word not in row.dtypes):
        return False
    if ask.vendor == "nvidia":
        if row.capabilities and not _within(ask.capability, row.capabilities):
            return False
        if quantized and row.dtype_capabilities and not _within(ask.capability, row.dtype_capabilities):
            return False
    if (ask.sinks and not row.sinks) or (not row.windows and any(y.window_tokens for y in layers)):
        return False
    return not _exception(row.name, ask, word, layers)


def _exception(name: str, ask: Ask, word: str, layers: Sequence[LayerGeometry]) -> bool:
    """What a row cannot say."""
    uneven = any(y.k_dim != y.v_dim for y in layers if not y.is_latent)
    major = ask.capability.split(".")[0]
    if name == "trtllm_mha" and (uneven or (major == "12" and word == "fp8_e4m3")):
        return True
    if name == "trtllm_mha" and word == "fp4_mx_block16" and major != "10":
        return True
    if name == "trtllm_mla" and word in ("mxfp8", "fp8_e5m2", "fp4_mx_block16"):
        return True
    return name == "triton" and word == "fp8_e4m3" and ask.vendor == "nvidia" and ask.capability in _BEFORE_E4M3
