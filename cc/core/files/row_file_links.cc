// SPDX-License-Identifier: Apache-2.0
// Rows of a file that lie in other files. The bytes are in row_file.cc.
#include <cstring>

#include "cc/core/files/row_file.h"

namespace tf_embed {

Status RowFileReader::CheckLinks(const RowBlock& block) const {
  const RowBlock::Links& links = block.links_;
  if (links_ == nullptr || links.file >= links_->size()) {
    return Damaged("it has rows of a file that is not there");
  }
  const RowFileReader& other = *(*links_)[links.file];
  const RowFileHeader& header = other.header_;
  if (!header.padded || header.meta.value_type != header_.meta.value_type ||
      header.meta.dim != header_.meta.dim || header.slot_bytes() != header_.slot_bytes()) {
    return Damaged("'" + other.source_->name() + "' has other rows than it says");
  }
  const size_t rows = PaddedBlocks::Of(header).rows;
  for (size_t i = 1; i < block.size; ++i) {
    if (links.places[i - 1] >= links.places[i]) return Damaged("its links do not rise");
  }
  if (links.block + uint64_t{links.places[block.size - 1]} / rows >= other.num_blocks()) {
    return Damaged("it has rows that '" + other.source_->name() + "' does not have");
  }
  return Status();
}

Status RowFileReader::ReadLinked(const RowBlock& links, RowBlock* block) const {
  const RowFileReader& other = *(*links_)[links.links_.file];
  const size_t rows = PaddedBlocks::Of(other.header_).rows;
  const size_t weight_bytes = header_.weight_bytes(), slot_bytes = header_.slot_bytes();
  // Each section is aligned, because no section has wider numbers than the sections before it.
  const size_t statistics_at = links.size * sizeof(int64_t);
  const size_t statistics_bytes = links.size * header_.statistics_bytes();
  const size_t slots_at = statistics_at + statistics_bytes;
  const size_t weights_at = slots_at + links.size * slot_bytes;
  TF_EMBED_RETURN_IF_ERROR(block->bytes_.Resize(weights_at + links.size * weight_bytes));
  char* const bytes = block->bytes_.data();
  RowBlock part(allocator_);
  size_t number = 0;  // of `part`
  for (size_t i = 0; i < links.size; ++i) {
    const size_t place = links.links_.places[i] % rows;
    const size_t wanted = links.links_.block + links.links_.places[i] / rows;
    if (i == 0 || wanted != number) {
      number = wanted;
      TF_EMBED_RETURN_IF_ERROR(other.ReadBlock(number, &part));
    }
    if (place >= part.size) {
      return Damaged("it has a row that '" + other.source_->name() + "' does not have");
    }
    std::memcpy(bytes + i * sizeof(int64_t), part.keys + place, sizeof(int64_t));
    std::memcpy(bytes + weights_at + i * weight_bytes, part.weights + place * weight_bytes,
                weight_bytes);
    if (slot_bytes == 0) continue;
    std::memcpy(bytes + slots_at + i * slot_bytes, part.slots + place * slot_bytes, slot_bytes);
  }
  if (statistics_bytes > 0) std::memcpy(bytes + statistics_at, links.statistics, statistics_bytes);
  block->size = links.size;
  block->keys = reinterpret_cast<const int64_t*>(bytes);
  block->weights = bytes + weights_at;
  block->slots = bytes + slots_at;
  block->statistics = reinterpret_cast<const uint64_t*>(bytes + statistics_at);
  return Status();
}

}  // namespace tf_embed
