// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/rocksdb_store.h"

#include <rocksdb/c.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/index/striped_index.h"

namespace tf_embed {
namespace {

constexpr size_t kReadThreads = 32;
constexpr size_t kKeysAtOnce = 64;  // of one MultiGet
constexpr uint32_t kStored = 1;     // row ids of the index
constexpr uint32_t kShared = 2;

// Takes a message of RocksDB's.
Status StatusOf(const std::string& name, char* error) {
  if (error == nullptr) return Status();
  Status status = Status::Unavailable("RocksDB in " + name + ": " + error);
  std::free(error);
  return status;
}

class RocksdbStore final : public LowerTier {
 public:
  RocksdbStore(const std::string& path, size_t dim)
      : path_(path), name_("the folder '" + path + "'"), weight_bytes_(dim * sizeof(float)) {}

  ~RocksdbStore() override {
    if (family_ != nullptr) rocksdb_column_family_handle_destroy(family_);
    if (db_ != nullptr) rocksdb_close(db_);
    Destroy();
    rocksdb_readoptions_destroy(read_options_);
    rocksdb_writeoptions_destroy(write_options_);
    rocksdb_options_destroy(options_);
  }

  Status Open() {
    rocksdb_options_set_create_if_missing(options_, 1);
    rocksdb_options_set_compression(options_, rocksdb_no_compression);
    rocksdb_options_set_use_direct_reads(options_, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(options_, 1);
    rocksdb_options_increase_parallelism(
        options_, std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
    rocksdb_options_set_write_buffer_size(options_, size_t{16} << 20);
    rocksdb_options_set_max_write_buffer_number(options_, 3);
    rocksdb_options_set_memtable_prefix_bloom_size_ratio(options_, 0.02);
    rocksdb_options_set_memtable_whole_key_filtering(options_, 1);
    rocksdb_options_set_compaction_style(options_, rocksdb_universal_compaction);
    rocksdb_universal_compaction_options_t* const universal =
        rocksdb_universal_compaction_options_create();
    rocksdb_options_set_universal_compaction_options(options_, universal);
    rocksdb_universal_compaction_options_destroy(universal);

    rocksdb_block_based_table_options_t* const blocks = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_size(blocks, 4096);
    rocksdb_block_based_options_set_no_block_cache(blocks, 1);
    rocksdb_block_based_options_set_filter_policy(blocks,
                                                  rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_block_based_options_set_whole_key_filtering(blocks, 1);
    rocksdb_block_based_options_set_format_version(blocks, 5);
    rocksdb_block_based_options_set_data_block_index_type(
        blocks, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
    rocksdb_block_based_options_set_data_block_hash_ratio(blocks, 0.75);
    rocksdb_options_set_block_based_table_factory(options_, blocks);
    rocksdb_block_based_options_destroy(blocks);

    rocksdb_writeoptions_disable_WAL(write_options_, 1);
    Destroy();
    const char* const family = "default";
    const rocksdb_options_t* const of_family = options_;
    char* error = nullptr;
    db_ = rocksdb_open_column_families(options_, path_.c_str(), 1, &family, &of_family, &family_,
                                       &error);
    return StatusOf(name_, error);
  }

  size_t size() const override { return index_.size(); }
  size_t shared() const override { return shared_.load(std::memory_order_relaxed); }

  void Contains(const int64_t* keys, size_t count, bool* exists) const override {
    for (size_t i = 0; i < count; ++i) {
      PrefetchIndex(keys, i, count);
      const uint64_t hash = HashKey(keys[i]);
      std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
      exists[i] = index_.Find(keys[i], hash).found();
    }
  }

  Status Get(const ExecContext&, const int64_t* keys, size_t count, After after,
             WholeRows* rows) override {
    rows->size = 0;
    TF_EMBED_RETURN_IF_ERROR(rows->Resize(count, weight_bytes_, slot_bytes_, 0));
    for (size_t i = 0; i < count; ++i) {
      PrefetchIndex(keys, i, count);
      const uint64_t hash = HashKey(keys[i]);
      std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
      if (index_.Find(keys[i], hash).found()) rows->keys[rows->size++] = keys[i];
    }
    // In the order of RocksDB's keys, which are the bytes of a key from the lowest on.
    std::sort(rows->keys.data(), rows->keys.data() + rows->size, [](int64_t one, int64_t other) {
      return __builtin_bswap64(static_cast<uint64_t>(one)) <
             __builtin_bswap64(static_cast<uint64_t>(other));
    });
    TF_EMBED_RETURN_IF_ERROR(ReadAll(rows));
    rows_read_ += rows->size;
    if (after == After::kShared) {
      for (size_t i = 0; i < rows->size; ++i) Mark(rows->keys[i], kShared);
    }
    return Status();
  }

  using LowerTier::Put;
  Status Put(const ExecContext& context, const WholeRows& rows, After after) override {
    const uint32_t what = after == After::kShared ? kShared : kStored;
    std::mutex mutex;
    Status status;
    context.parallel_for(rows.size, 1000, [&](size_t begin, size_t end) {
      Status written = Write(rows, begin, end);
      const std::lock_guard<std::mutex> lock(mutex);
      if (!written.ok()) status = std::move(written);
    });
    TF_EMBED_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < rows.size; ++i) {
      const int64_t key = rows.keys[i];
      if (Mark(key, what)) continue;
      const uint64_t hash = HashKey(key);
      std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
      TF_EMBED_RETURN_IF_ERROR(index_.Insert(key, hash, what));
      shared_ += what == kShared ? 1 : 0;
    }
    if (index_.has_retired()) index_.DropRetired();
    rows_written_ += rows.size;
    return Status();
  }

  void Unshare(const int64_t* keys, size_t count, const uint64_t*) override {
    for (size_t i = 0; i < count; ++i) {
      PrefetchIndex(keys, i, count);
      Mark(keys[i], kStored);
    }
  }

  void Erase(const int64_t* keys, size_t count) override {
    for (size_t i = 0; i < count; ++i) {
      PrefetchIndex(keys, i, count);
      const uint64_t hash = HashKey(keys[i]);
      std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
      if (index_.Erase(keys[i], hash) == kShared) --shared_;
    }
  }

  using LowerTier::Scan;
  Status Scan(size_t, const WantedRows&, ExportCursor*, WholeRows*) const override {
    return Status::FailedPrecondition("The benchmark's store of RocksDB has no Scan.");
  }
  // Rows have no statistics.
  bool FindStatistics(int64_t, uint64_t*) const override { return false; }
  bool AssignStatistics(int64_t, StatisticSet, const uint64_t*) override { return false; }
  bool NoteUse(int64_t, const Moment&) override { return false; }
  bool TakeForSnapshot(int64_t, const WantedRows&) override { return false; }
  Status CollectRanks(EvictionOrder, size_t, const Rank&, const Rank&, RankList*,
                      size_t*) const override {
    return Status();
  }
  Status FindExpired(const RowPolicy&, const Moment&, size_t, RankList*) override {
    return Status();
  }
  using LowerTier::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override {
    if (size() > 0) {
      return Status::FailedPrecondition("The benchmark's store of RocksDB has rows of a rule.");
    }
    TF_EMBED_RETURN_IF_ERROR(change_cache());
    slot_bytes_ = rule.slots_per_row() * sizeof(float);
    return Status();
  }
  Status Clear() override {
    return Status::FailedPrecondition("The benchmark's store of RocksDB has no Clear.");
  }
  Status Compact(const ExecContext&) override { return Status(); }

  LowerTierStats Stats() const override {
    LowerTierStats stats;
    stats.rows = size();
    stats.shared_rows = shared();
    stats.index_bytes = index_.bytes();
    stats.live_bytes = stats.rows * (sizeof(int64_t) + weight_bytes_ + slot_bytes_);
    rocksdb_property_int(db_, "rocksdb.total-sst-files-size", &stats.disk_bytes);
    rocksdb_property_int(db_, "rocksdb.size-all-mem-tables", &stats.buffer_bytes);
    stats.rows_read = rows_read_;
    stats.rows_written = rows_written_;
    return stats;
  }
  const std::string& name() const override { return name_; }

 private:
  void Destroy() {
    char* error = nullptr;
    rocksdb_destroy_db(options_, path_.c_str(), &error);
    std::free(error);
  }

  // The cache lines of the index some keys ahead.
  void PrefetchIndex(const int64_t* keys, size_t i, size_t count) const {
    if (i + 8 < count) __builtin_prefetch(index_.HomeOf(HashKey(keys[i + 8])));
  }

  // Gives a key another row id. False if it is not in the index.
  bool Mark(int64_t key, uint32_t row_id) {
    const uint64_t hash = HashKey(key);
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
    const StripedIndex::Entry entry = index_.Find(key, hash);
    if (!entry.found()) return false;
    if (entry.row_id == row_id) return true;
    index_.Replace(entry, key, row_id);
    shared_ += row_id == kShared ? 1 : -1;
    return true;
  }

  // Reads the rows of rows->keys, by many threads.
  Status ReadAll(WholeRows* rows) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    Status status;
    const auto read = [&] {
      for (size_t begin; (begin = next.fetch_add(kKeysAtOnce)) < rows->size;) {
        Status done = Read(rows, begin, std::min(rows->size, begin + kKeysAtOnce));
        if (done.ok()) continue;
        const std::lock_guard<std::mutex> lock(mutex);
        status = std::move(done);
      }
    };
    const size_t threads = std::min(kReadThreads, (rows->size + kKeysAtOnce - 1) / kKeysAtOnce);
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(read);
    read();
    for (std::thread& other : others) other.join();
    return status;
  }

  Status Read(WholeRows* rows, size_t begin, size_t end) {
    const char* keys[kKeysAtOnce] = {};
    size_t sizes[kKeysAtOnce] = {};
    rocksdb_pinnableslice_t* values[kKeysAtOnce] = {};
    char* errors[kKeysAtOnce] = {};
    const size_t count = end - begin;
    for (size_t i = 0; i < count; ++i) {
      keys[i] = reinterpret_cast<const char*>(&rows->keys[begin + i]);
      sizes[i] = sizeof(int64_t);
    }
    rocksdb_batched_multi_get_cf(db_, read_options_, family_, count, keys, sizes, values, errors,
                                 /*sorted_input=*/true);
    Status status;
    for (size_t i = 0; i < count; ++i) {
      if (errors[i] != nullptr) status = StatusOf(name_, errors[i]);
      size_t bytes = 0;
      const char* const value =
          values[i] == nullptr ? nullptr : rocksdb_pinnableslice_value(values[i], &bytes);
      if (bytes == weight_bytes_ + slot_bytes_) {
        std::memcpy(rows->weights.data() + (begin + i) * weight_bytes_, value, weight_bytes_);
        std::memcpy(rows->slots.data() + (begin + i) * slot_bytes_, value + weight_bytes_,
                    slot_bytes_);
      } else if (status.ok()) {
        status = Status::DataLoss("RocksDB in " + name_ + " has lost a row.");
      }
      if (values[i] != nullptr) rocksdb_pinnableslice_destroy(values[i]);
    }
    return status;
  }

  Status Write(const WholeRows& rows, size_t begin, size_t end) {
    rocksdb_writebatch_t* const batch = rocksdb_writebatch_create();
    for (size_t i = begin; i < end; ++i) {
      const char* const key = reinterpret_cast<const char*>(&rows.keys[i]);
      const size_t key_size = sizeof(int64_t);
      const char* const parts[] = {rows.weights.data() + i * weight_bytes_,
                                   rows.slots.data() + i * slot_bytes_};
      const size_t sizes[] = {weight_bytes_, slot_bytes_};
      rocksdb_writebatch_putv(batch, 1, &key, &key_size, slot_bytes_ == 0 ? 1 : 2, parts, sizes);
    }
    char* error = nullptr;
    rocksdb_write(db_, write_options_, batch, &error);
    rocksdb_writebatch_destroy(batch);
    return StatusOf(name_, error);
  }

  const std::string path_, name_;
  const size_t weight_bytes_;
  size_t slot_bytes_ = 0;
  rocksdb_options_t* const options_ = rocksdb_options_create();
  rocksdb_readoptions_t* const read_options_ = rocksdb_readoptions_create();
  rocksdb_writeoptions_t* const write_options_ = rocksdb_writeoptions_create();
  rocksdb_t* db_ = nullptr;
  rocksdb_column_family_handle_t* family_ = nullptr;
  StripedIndex index_{HostAllocator(), 0};
  std::atomic<size_t> shared_{0};
  std::atomic<uint64_t> rows_read_{0}, rows_written_{0};
};

}  // namespace

Status NewRocksdbStore(const std::string& path, size_t dim, std::unique_ptr<LowerTier>* store) {
  auto made = std::make_unique<RocksdbStore>(path, dim);
  TF_EMBED_RETURN_IF_ERROR(made->Open());
  *store = std::move(made);
  return Status();
}

}  // namespace tf_embed
