# SPDX-License-Identifier: Apache-2.0
"""TFRA's switch between training graphs and serving graphs. Here it has no effect.

TFRA reads it when a graph is built, because its training lookups write to variables and can't be
served. Lookups of tf_embed write nothing, so one graph does both.
"""

from __future__ import annotations

__all__ = ["ModelMode", "enable_inference_mode", "enable_train_mode", "get_model_mode"]


class ModelMode:
    """The mode, which is kept and has no effect.

    Attributes:
        TRAIN: "train".
        INFERENCE: "inference".
        CURRENT_SETTING: The current mode.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.ModelMode.TRAIN
        'train'
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Sets the mode to "train", which has no effect.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.enable_train_mode()
        >>> tf_embed.tfra.get_model_mode()
        'train'
    """
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Sets the mode to "inference", which has no effect: an exported graph serves as it is.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.enable_inference_mode()
        >>> tf_embed.tfra.get_model_mode()
        'inference'
        >>> tf_embed.tfra.enable_train_mode()
    """
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE


def get_model_mode() -> str:
    """The mode, "train" or "inference".

    Returns:
        The mode, a str.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.get_model_mode()
        'train'
    """
    return ModelMode.CURRENT_SETTING
