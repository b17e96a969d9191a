"""Makes a Hugging Face folder of SmolLM2-135M in bfloat16 from the demo model's GGUF file: for engines without GGUF.

    VLLM_ENV/bin/python scripts/smollm2_folder.py smollm2.gguf FOLDER

Run it with an interpreter that has torch, transformers, accelerate and gguf (the one that `scripts/vllm-env.sh` makes
has them). The weights are the Q4_1 values written out in bfloat16: a real model for tests, not the original checkpoint.
A folder that is already whole is left alone. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

#: Written last; a folder without it is made again.
_DONE = "made-from.txt"


def make_folder(gguf: Path, folder: Path) -> None:
    """Write model and tokenizer of `gguf` to `folder`.

    Raises:
        SystemExit: the file is missing, or an import fails; one line with the fix.
    """
    if not gguf.is_file():
        sys.exit(f"smollm2_folder: {gguf} is not a file; get it with `kvgate models get smollm2`")
    mark = f"{gguf.name} {gguf.stat().st_size} bytes, bfloat16\n"
    if (folder / _DONE).is_file() and (folder / _DONE).read_text() == mark:
        return
    if folder.exists() and any(folder.iterdir()) and not (folder / _DONE).exists():
        sys.exit(f"smollm2_folder: {folder} is not empty and was not made by this script; name another folder")
    model, tokenizer = _load(gguf)
    # A name of its own for each run: two tests that start together must not write into one folder.
    part = folder.parent / f".{folder.name}.part{os.getpid()}"
    part.mkdir(parents=True)
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        (part / _DONE).write_text(mark)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load(gguf: Path):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import transformers
    except ImportError as e:
        sys.exit(f"smollm2_folder: {e}; run it with the interpreter of `make vllm-env`")
    torch.set_num_threads(2)
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # Newer versions can keep GGUF blocks packed; a folder needs plain numbers.
    plain = {"quantization_config": transformers.GgufConfig(dequantize=True)} if _can_stay_packed(transformers) else {}
    packed = transformers.AutoModelForCausalLM.from_pretrained(**where, **plain, dtype=torch.bfloat16)
    # A model made anew from the configuration remembers nothing of GGUF, so that it can be saved; a weight that is
    # still packed has another shape and fails here.
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(packed.state_dict(), strict=True)
    return model, transformers.AutoTokenizer.from_pretrained(**where)


def _can_stay_packed(transformers) -> bool:
    return hasattr(transformers, "GgufConfig")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: smollm2_folder.py SMOLLM2.gguf FOLDER")
    make_folder(Path(sys.argv[1]), Path(sys.argv[2]))
