"""What SGLang stops at, or turns into something else without stopping. Source: 0.5.23, files named at each."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.launch.commands import Ask

#: The option's words for 16 bits.
NATIVE_WORDS = ("bf16", "bfloat16", "auto")
_FP4 = ("nvfp4", "fp4_mx_block16")


def refuse_unserved(ask: Ask, word: str) -> None:
    """Types that this device or model cannot have.

    Raises:
        UserError: the type, why, and the nearest that works.
    """
    layers = [y for y in ask.geometry.layers if y.kv_heads]
    latent = any(y.is_latent for y in layers)
    major = ask.capability.split(".")[0] if ask.vendor == "nvidia" else ""
    for wrong, why in (
        # mem_cache/kv_cache_dtype.py
        (word == "fp8_e5m2" and ask.vendor == "amd", "AMD's build stores E4M3 under this word"),
        (word == "fp8_e5m2" and ask.vendor == "cpu", "the CPU build knows E4M3 only"),
        # arg_groups/kv_cache_hook.py
        (word == "mxfp8" and ask.vendor not in ("", "nvidia"), "it is read by FlashAttention 4, on NVIDIA alone"),
        (word == "mxfp8" and major not in ("", "10"), "its kernels need compute capability 10.x"),
        (word == "mxfp8" and latent, "what FlashAttention 4 does with MLA in it was not read"),
        (word == "mxfp8" and any(d % 32 for y in layers for d in (y.k_dim, y.v_dim)), "heads come in blocks of 32"),
        (word in _FP4 and ask.vendor not in ("", "nvidia"), "only CUDA has the kernels"),
        (word == "nvfp4" and major not in ("", "10", "12"), "its kernels need compute capability 10.x or 12.x"),
        (word == "nvfp4" and latent, "it is decoded by trtllm_mha, which is no MLA backend"),
        (word == "nvfp4" and any(y.k_dim != y.v_dim for y in layers), "trtllm_mha needs K and V of one size"),
        (
            word == "nvfp4" and major == "12" and ask.sinks,
            "its prefill runs on flashinfer, which has no attention sinks",
        ),
    ):
        if wrong:
            raise UserError(f"{word} on SGLang, {ask.where}: {why}", fix="write fp8_e4m3")
    _refuse_sparse(ask, word)


def _refuse_sparse(ask: Ask, word: str) -> None:
    """overrides._dsa_kv_cache_dtype_default, _deepseek_v4_kv_cache_dtype."""
    if word in (*NATIVE_WORDS, "fp8_e4m3"):
        sinks = bool(ask.text_config.get("learnable_sink") or ask.config.get("learnable_sink"))
        if word == "fp8_e4m3" and sinks and any(y.kind == "sparse_mla" for y in ask.geometry.layers):
            raise UserError("sparse attention with learned sinks needs a 16-bit cache in SGLang", fix="write native")
        return
    if ask.model_type.startswith("deepseek_v4"):
        raise UserError(f"SGLang stops at {word} for DeepSeek-V4", allowed=("fp8_e4m3",))
    if any(y.kind == "sparse_mla" for y in ask.geometry.layers):
        raise UserError(f"SGLang stops at {word} for sparse MLA", allowed=("native", "fp8_e4m3"))
