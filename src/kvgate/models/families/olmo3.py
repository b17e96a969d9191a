"""olmo3: three layers with a window, then one that sees all tokens.

Source: transformers 5.19 configuration_olmo3.py.
"""

from kvgate.models.config_windows import Windowed, every_nth

CONFIG_FAMILY = Windowed(
    name="olmo3",
    model_types=("olmo3",),
    rule=every_nth(4),
    note="no layer_types: every fourth layer sees all tokens, as in the family's code",
)
