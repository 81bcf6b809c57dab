# SPDX-License-Identifier: Apache-2.0
"""Train here, serve there: a training process publishes, a serving process follows."""

from tf_embed.serving.follower import Follower
from tf_embed.serving.publication import Publication
from tf_embed.serving.publisher import Publisher

__all__ = ["Follower", "Publication", "Publisher"]
