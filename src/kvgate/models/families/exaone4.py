"""exaone4: `sliding_window_pattern` is a number (every n-th layer sees all tokens) or letters ("LLLG").

Source: transformers 5.19 configuration_exaone4.py.
"""

from kvgate.models.config_windows import Windowed, every_nth

CONFIG_FAMILY = Windowed(
    name="exaone4",
    model_types=("exaone4", "exaone_moe", "exaone4_5_text"),
    rule=every_nth(4),
    note="no layer_types: sliding_window_pattern says which layers see all tokens (every fourth where absent)",
)
