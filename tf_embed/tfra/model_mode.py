# SPDX-License-Identifier: Apache-2.0
"""TFRA's switch between graphs that train and graphs that serve. Here it switches nothing.

TFRA reads it when a graph is built, because its training lookups write to variables and can't be
served. Lookups of tf_embed write to nothing: one graph does both.
"""

from __future__ import annotations

__all__ = ["ModelMode", "enable_inference_mode", "enable_train_mode", "get_model_mode"]


class ModelMode:
    """The mode, which is kept and has no effect.

    Attributes:
        TRAIN: "train".
        INFERENCE: "inference".
        CURRENT_SETTING: One of the two.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Sets the mode to "train", which has no effect."""
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Sets the mode to "inference", which has no effect: an exported graph serves as it is."""
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE


def get_model_mode() -> str:
    """The mode, "train" or "inference"."""
    return ModelMode.CURRENT_SETTING
