// SPDX-License-Identifier: Apache-2.0
// Splits a batch of keys by the high bits of their hashes. Equal keys, and all keys of one stripe
// of a table, are in the same part, in the order of the batch. So each part can find its equal keys
// alone, many parts at once, and the result is the same for any number of threads.
#ifndef TF_EMBED_CC_CORE_BATCH_KEY_PARTITION_H_
#define TF_EMBED_CC_CORE_BATCH_KEY_PARTITION_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_batch.h"

namespace tf_embed {

struct KeyRecord {
  int64_t key;
  uint32_t position;  // KeyBatch::Position
};

struct KeyRange {
  const KeyRecord* begin;
  const KeyRecord* end;
  size_t size() const { return static_cast<size_t>(end - begin); }
};

class KeyPartition {
 public:
  static constexpr int kMaxPartBits = 6;  // at most as many parts as a table's stripes
  static constexpr size_t kMaxParts = size_t{1} << kMaxPartBits;

  explicit KeyPartition(Allocator* allocator) : records_(allocator), offsets_(allocator) {}

  // Splits the keys of `batch` for which `skip` [batch, by position] is false, or all if it is
  // null. Both outlive this.
  Status Build(const ExecContext& context, const KeyBatch& batch, const bool* skip);

  size_t parts() const { return size_t{1} << bits_; }
  size_t size() const { return offsets_[parts() * chunks_]; }
  KeyRange part(size_t number) const {
    return {records_.data() + offsets_[number * chunks_],
            records_.data() + offsets_[(number + 1) * chunks_]};
  }
  // Records are numbered consecutively, part after part.
  const KeyRecord& record(size_t number) const { return records_[number]; }
  size_t first_record(size_t part) const { return offsets_[part * chunks_]; }

  size_t PartOf(int64_t key) const { return bits_ == 0 ? 0 : HashKey(key) >> (64 - bits_); }

  // Goes through the batch in its own order, and returns the record of each key.
  class Walk {
   public:
    static constexpr uint32_t kSkipped = 0xffffffffu;

    // Starts at key `begin` of the batch.
    Walk(const KeyPartition& partition, size_t begin) : partition_(partition) {
      if (begin >= partition.batch_.size) return;
      const size_t chunk = begin / partition.chunk_size_;
      next_ = chunk * partition.chunk_size_;
      for (size_t part = 0; part < partition.parts(); ++part) {
        records_[part] = partition.offsets_[part * partition.chunks_ + chunk];
      }
      while (next_ < begin) Next();
    }

    // The number of the next key's record, kSkipped if it has none.
    uint32_t Next() {
      const KeyBatch& batch = partition_.batch_;
      const size_t i = next_++;
      if (partition_.skip_ != nullptr && partition_.skip_[batch.Position(i)]) return kSkipped;
      return records_[partition_.PartOf(batch.keys[i])]++;
    }

   private:
    const KeyPartition& partition_;
    size_t next_ = 0;
    uint32_t records_[kMaxParts];  // the next record of each part
  };

 private:
  // A counting sort: offsets_[part * chunks_ + chunk] is the start of a chunk's records in their
  // part. One more entry holds the number of records.
  KeyBatch batch_;
  const bool* skip_ = nullptr;
  int bits_ = 0;
  size_t chunk_size_ = 1;
  size_t chunks_ = 0;
  Buffer<KeyRecord> records_;
  Buffer<uint32_t> offsets_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_KEY_PARTITION_H_
