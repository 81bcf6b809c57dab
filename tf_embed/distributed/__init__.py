# SPDX-License-Identifier: Apache-2.0
"""Tables and models on several workers."""

from tf_embed.distributed.worker_sharding import WorkerSharding

__all__ = ["WorkerSharding"]
