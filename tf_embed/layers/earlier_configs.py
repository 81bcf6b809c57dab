# SPDX-License-Identifier: Apache-2.0
"""Configs of `DynamicEmbedding` that were saved when it had TFRA's arguments."""

from __future__ import annotations

from typing import Any

import keras

from tf_embed import validation
from tf_embed.layers.table_layer import deserialized
from tf_embed.table.policies import TablePolicy


def with_present_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """A config with the present arguments in place of TFRA's.

    Args:
        config: The config of a layer. It does not change.

    Raises:
        ValueError: If the layer had a restrict policy that no `TablePolicy` replaces.
    """
    config = {**config}
    config.pop("bp_v2", None)  # without effect
    creator = deserialized(config.pop("kv_creator", None), "kv_creator")
    if creator is not None:
        for argument in ("policy", "storage"):
            if config.get(argument) is None:
                config[argument] = getattr(creator, argument)
        if creator.init_size is not None:
            config["init_size"] = creator.init_size
    name = config.pop("restrict_policy", None)
    if name is not None:
        order = getattr(keras.saving.get_registered_object(name), "order", None)
        if not order or config.get("policy") is not None:
            raise ValueError(
                "`restrict_policy` of a saved layer must be a TimestampRestrictPolicy or a "
                "FrequencyRestrictPolicy, without a `policy`; for any other use "
                "tf_embed.tfra.keras.layers.Embedding. Received: restrict_policy="
                f"{validation.shown(name)}, policy={validation.shown(config.get('policy'))}"
            )
        config["policy"] = TablePolicy(eviction=order)
    return config
