"""llm-compressor: one script and one recipe. The weights stay as they are, so that both arms have the same.

Source: llm-compressor examples/quantization_kv_cache and compressed_tensors modeling/kvcache.py, 2026-08-22: K and V
are observed behind the rotary embedding; `type` is int where it is left out, which vLLM refuses, so every field is
written. Calibration data is the one of its own examples, and not like anybody's prompts.
"""

from __future__ import annotations

import json

from kvgate.core.errors import UserError
from kvgate.launch.calibration import CalibrateAsk, Calibrator, Steps
from kvgate.launch.commands import Serve
from kvgate.launch.yaml_file import yaml_text

_RECIPE, _SCRIPT = "kv-recipe.yaml", "calibrate.py"
_SAMPLES, _TOKENS = 512, 2048
_TEMPLATE = '''\
"""Puts KV cache scales into a copy of the model; run once, where llm-compressor is installed."""

from llmcompressor import oneshot

oneshot(
    model={model},
    recipe={recipe},
    dataset="ultrachat_200k",
    splits={{"calibration": "train_sft[:{samples}]"}},
    num_calibration_samples={samples},
    max_seq_length={tokens},
    pad_to_max_length=False,
    output_dir={into},
)
'''


def steps(ask: CalibrateAsk) -> Steps:
    """The script, its recipe, and the command.

    Raises:
        UserError: the checkpoint is quantized by another method, which llm-compressor refuses, or is MLA.
    """
    if ask.checkpoint.method not in ("", "compressed-tensors"):
        raise UserError(
            f"llm-compressor refuses a checkpoint that {ask.checkpoint.method} quantized",
            fix="give its 16-bit original",
        )
    if ask.latent:
        raise UserError(
            "what llm-compressor writes for MLA's latents was not read", fix="write @unit, and check at your lengths"
        )
    strategy = "attn_head" if ask.per_head else "tensor"
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False, "symmetric": True}
    modifier = {"ignore": ["lm_head"], "kv_cache_scheme": scheme}
    recipe = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}
    script = _TEMPLATE.format(
        model=_literal(ask.model), recipe=_literal(_RECIPE), into=_literal(ask.into), samples=_SAMPLES, tokens=_TOKENS
    )
    notes = [
        f"{ask.into} then holds self_attn.k_scale and v_scale; vLLM maps these names by itself",
        f"{_SAMPLES} chats of ultrachat_200k calibrate the scales: put your own prompts into {_SCRIPT}",
        "not run here: llm-compressor's script and recipe follow its examples of 2026-08-22",
    ]
    if ask.per_head:
        notes.append("scales for each head are read by FlashAttention 3 and 4 only, on compute capability 9.0 and 10.x")
    return Steps((Serve(("python", _SCRIPT)),), {_RECIPE: yaml_text(recipe), _SCRIPT: script}, (), tuple(notes))


def _literal(text: str) -> str:
    """A Python literal; JSON's is one, for text."""
    return json.dumps(text)


CALIBRATOR = Calibrator(
    "llm-compressor", "llm-compressor", ("fp8_e4m3",), ("vllm", "sglang"), steps, ("llm_compressor", "llmcompressor")
)
