# SPDX-License-Identifier: Apache-2.0
"""Online serving: a training process publishes a model, and serving processes follow it."""

from tf_embed.serving.follower import Follower
from tf_embed.serving.publication import Publication
from tf_embed.serving.publisher import Publisher

__all__ = ["Follower", "Publication", "Publisher"]
