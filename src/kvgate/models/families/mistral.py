"""mistral: where the file names a window, every layer has it (Mistral 7B v0.1); later models name none.

Source: transformers 5.19 configuration_mistral.py, configuration_mixtral.py, configuration_ministral.py and
configuration_starcoder2.py; vLLM 0.32 engine/arg_utils.py (one window for all layers where none are listed). llama.cpp
treats Mistral 7B as full attention.
"""

from kvgate.models.config_windows import Windowed, all_windowed

CONFIG_FAMILY = Windowed(
    name="mistral",
    model_types=("mistral", "mixtral", "ministral", "ministral3", "mistral3", "starcoder2"),
    rule=all_windowed,
    note="the window holds on all layers; llama.cpp keeps all tokens for this family",
)
