# SPDX-License-Identifier: Apache-2.0
"""A sharded table: options, policies, initializers, and the operations on all its shards."""
