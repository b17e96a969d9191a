"""KV sharing between layers: the last layers read the cache of earlier ones and own none."""

from __future__ import annotations

from dataclasses import replace

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys


def owning_layers(keys: ConfigKeys, stack: ConfigLayers, *, absent: int) -> ConfigLayers:
    """`stack` without the last `num_kv_shared_layers` layers; those before keep what their own word says.

    Args:
        absent: what the family's code takes where the file does not name the key.

    Raises:
        UserError: no layer would be left.
    """
    shared = keys.maybe_int("num_kv_shared_layers", maximum=MAX_LAYERS)
    if shared is None:
        shared = absent
        stack = replace(stack, notes=(*stack.notes, f"no num_kv_shared_layers: {absent}, as in the family's code"))
    if shared >= stack.layer_count:
        raise UserError(
            f"{keys.label('num_kv_shared_layers')} is {shared}, and the model has {stack.layer_count} layers",
            allowed=(f"0 to {stack.layer_count - 1}",),
        )
    if not shared:
        return stack
    owners = tuple(layer for layer in stack.layers if layer.index < stack.layer_count - shared)
    return replace(stack, layers=owners, notes=(*stack.notes, f"the last {shared} layers share the KV of earlier ones"))
