// SPDX-License-Identifier: Apache-2.0
// RocksDB in the place of DiskTier, below the same cache: for comparison only. It is linked into
// the benchmark tiers_benchmark_rocksdb only.
//
// The comparison favours it:
//   - The index of keys is the StripedIndex that DiskTier has, in memory beside RocksDB. So no
//     absent key is looked up, and a row that changes in the cache costs RocksDB nothing: the key
//     leaves the index, and the next Put replaces the value. No tombstone is ever written.
//   - A row is one value, weights and slots, which are written without a copy.
//   - Direct I/O for reads, flushes and compaction. No compression, no write-ahead log: DiskTier
//     has neither.
//   - No block cache: the cache above has that memory. The index and the bloom filters (10 bits a
//     key) of all files are in memory, and blocks of 4 KiB have a hash index.
//   - Three memtables of 16 MiB, with a bloom filter. DiskTier has a buffer of 1 MiB.
//   - Universal compaction, as FBGEMM's SSD tables have it, with all cores.
//   - A batch is read by 32 threads, as FBGEMM has them. Each gets a range of the sorted keys and
//     asks for 64 of them at a time by the batched MultiGet.
//   - A batch is written by all threads of the caller, a WriteBatch each.
// A product would also need: checks of space, Scan, a change of rule with rows in it.
#ifndef TF_EMBED_BENCHMARKS_ROCKSDB_STORE_H_
#define TF_EMBED_BENCHMARKS_ROCKSDB_STORE_H_

#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/core/store/lower_tier.h"

namespace tf_embed {

// Rows of float weights. `path` is a folder that RocksDB makes; its content is destroyed, and it is
// removed with the store.
Status NewRocksdbStore(const std::string& path, size_t dim, std::unique_ptr<LowerTier>* store);

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_ROCKSDB_STORE_H_
