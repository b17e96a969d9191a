"""Copies a Hugging Face folder and adds KV scales with a compressed-tensors KV scheme. Runs in vLLM's environment.

    python kv_scheme_checkpoint.py FOLDER NEW_FOLDER

The scales differ from layer to layer, so that a test can tell them apart.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main(folder: Path, new: Path) -> None:
    shutil.copytree(folder, new)
    config = json.loads((new / "config.json").read_text())
    tensors = load_file(new / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn"
        tensors[f"{name}.k_scale"] = torch.tensor([0.02 + layer / 1000], dtype=torch.bfloat16)
        tensors[f"{name}.v_scale"] = torch.tensor([0.01], dtype=torch.bfloat16)
    save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
    }
    (new / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
