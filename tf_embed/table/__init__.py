"""A sharded table: options, policies, initializers, and the operations on all its shards."""
