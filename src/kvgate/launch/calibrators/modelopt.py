"""ModelOpt's hf_ptq.py, with the KV format written out: its default fp8_cast calibrates nothing.

Source: Model-Optimizer examples/hf_ptq/hf_ptq.py, 0.47.0dev: `*_cast` pins amax to 448, so that each exported scale is
1.0. A checkpoint that quantizes the cache alone has quant_algo null, which vLLM's modelopt reader refuses: the weights
become FP8 too, and so the baseline is served from the same checkpoint.
"""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.launch.calibration import CalibrateAsk, Calibrator, Steps
from kvgate.launch.commands import Serve

_FORMATS = {"fp8_e4m3": "fp8", "nvfp4": "nvfp4"}
_SAMPLES = 512


def steps(ask: CalibrateAsk) -> Steps:
    """One command of a checkout of ModelOpt.

    Raises:
        UserError: scales for each head, which it does not write, or a checkpoint that is quantized already.
    """
    if ask.per_head:
        raise UserError("ModelOpt writes one scale for K and one for V of a layer", fix="--calibrate llm-compressor")
    if ask.checkpoint.method:
        raise UserError(
            f"ModelOpt starts from a 16-bit checkpoint, and {ask.checkpoint.method} has quantized this one",
            fix="give its original",
        )
    word = _FORMATS[ask.codec]
    argv = ["python", "examples/hf_ptq/hf_ptq.py", "--pyt_ckpt_path", ask.model, "--qformat", "fp8"]
    argv += ["--kv_cache_qformat", word, "--calib_size", str(_SAMPLES), "--export_path", ask.into]
    loud = (
        f"THE WEIGHTS CHANGE TOO: {ask.into} has FP8 weights: this command quantizes them with the cache (vLLM loads "
        "no ModelOpt checkpoint of the KV cache alone); compare its own baseline with the model of today as well",
    )
    notes = (
        f"--kv_cache_qformat {word} is written out: the default fp8_cast calibrates nothing and makes every scale 1.0",
        "scales are named k_proj.k_scale and v_proj.v_scale, amax / 448, for NVFP4 too; look at any above 0.5",
        "run it in a checkout of Model-Optimizer, 0.47 or near; later releases may want --recipe instead; not run here",
    )
    return Steps((Serve(tuple(argv)),), {}, loud, notes)


CALIBRATOR = Calibrator(
    "modelopt", "ModelOpt", tuple(_FORMATS), ("vllm", "sglang", "trtllm"), steps, ("model-optimizer",)
)
