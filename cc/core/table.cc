#include "cc/core/table.h"

#include <algorithm>
#include <string>

namespace tf_embed {

size_t KeyBatch::Places() const {
  if (positions == nullptr) return size;
  size_t places = 0;
  for (size_t i = 0; i < size; ++i) places = std::max<size_t>(places, size_t{positions[i]} + 1);
  return places;
}

Status CheckBatchSize(size_t size) {
  if (size <= kMaxBatchSize) return Status();
  return Status::InvalidArgument("A batch may have at most " + std::to_string(kMaxBatchSize) +
                                 " keys. Received: " + std::to_string(size) + ".");
}

void TableStats::Add(const TableStats& other) {
  rows += other.rows;
  payload_bytes += other.payload_bytes;
  index_bytes += other.index_bytes;
  slack_bytes += other.slack_bytes;
  index_places += other.index_places;
  probed_keys += other.probed_keys;
  probed_buckets += other.probed_buckets;
  admitted += other.admitted;
  held_back += other.held_back;
  refused += other.refused;
  evicted += other.evicted;
  expired += other.expired;
  hits += other.hits;
  misses += other.misses;
}

}  // namespace tf_embed
