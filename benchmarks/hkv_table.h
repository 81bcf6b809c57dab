// SPDX-License-Identifier: Apache-2.0
// NVIDIA's HierarchicalKV, if its headers are at hand: device_store_benchmark.cu runs it beside
// DeviceStore on the same keys. Least recently used rows leave.
#ifndef TF_EMBED_BENCHMARKS_HKV_TABLE_H_
#define TF_EMBED_BENCHMARKS_HKV_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "benchmarks/device_machine.h"
#include "merlin_hashtable.cuh"

namespace tf_embed {

class HkvTable {
 public:
  HkvTable(size_t capacity, size_t dim, uint64_t max_row_bytes) {
    nv::merlin::HashTableOptions options;
    options.init_capacity = capacity;
    options.max_capacity = capacity;
    options.dim = dim;
    options.max_hbm_for_vectors = std::min<uint64_t>(capacity * dim * sizeof(float), max_row_bytes);
    options.max_load_factor = 1.0f;
    options.device_id = 0;
    table_.init(options);
  }

  void Contains(size_t n, const int64_t* keys, bool* exists) {
    table_.contains(n, Keys(keys), exists, Machine::Stream());
  }
  void Find(size_t n, const int64_t* keys, float* rows, bool* exists) {
    table_.find(n, Keys(keys), rows, exists, nullptr, Machine::Stream());
  }
  void FindPointers(size_t n, const int64_t* keys, float** rows, bool* exists) {
    table_.find(n, Keys(keys), rows, exists, nullptr, Machine::Stream());
  }
  void InsertOrAssign(size_t n, const int64_t* keys, const float* rows) {
    table_.insert_or_assign(n, Keys(keys), rows, nullptr, Machine::Stream());
  }
  void FindOrInsert(size_t n, const int64_t* keys, float* rows) {
    table_.find_or_insert(n, Keys(keys), rows, nullptr, Machine::Stream());
  }
  void InsertAndEvict(size_t n, const int64_t* keys, const float* rows, int64_t* evicted_keys,
                      float* evicted_rows, uint64_t* evicted_scores) {
    table_.insert_and_evict(n, Keys(keys), rows, nullptr, reinterpret_cast<uint64_t*>(evicted_keys),
                            evicted_rows, evicted_scores, Machine::Stream());
  }

 private:
  static const uint64_t* Keys(const int64_t* keys) {
    return reinterpret_cast<const uint64_t*>(keys);
  }

  nv::merlin::HashTable<uint64_t, float, uint64_t, nv::merlin::EvictStrategy::kLru> table_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_HKV_TABLE_H_
