// SPDX-License-Identifier: Apache-2.0
// RedisStore's metadata, and its operations on its whole content. Verbs on rows: redis_store.cc.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/core/files/row_file.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/redis/redis_store.h"
#include "cc/stores/redis/redis_store_inl.h"

namespace tf_embed {
namespace {

std::string KindOf(const RedisMeta& meta) {
  return std::string(NameOf(static_cast<StoredType>(meta.value_type))) + " values, dim " +
         std::to_string(meta.dim) + ", in " + std::to_string(meta.slices) +
         (meta.slices == 1 ? " slice" : " slices") + (meta.expires ? ", with" : ", without") +
         " expiry";
}

}  // namespace

Status CheckRedisStore(const StoreOptions& options, const RedisOptions& redis) {
  const auto refused = [&](const char* what, const char* reason) {
    return Status::InvalidArgument("Table '" + options.name + "' is in Redis, and can't have " +
                                   what + ": " + reason);
  };
  const RowPolicy& policy = options.policy;
  if (policy.max_rows > 0) {
    return refused("`max_rows`", "no process sees all rows. Use `ttl_seconds`.");
  }
  if (policy.admission != nullptr) {
    return refused("`admission`", "each process would count keys for itself.");
  }
  if (policy.statistics.Has(Statistic::kChange)) {
    return refused("`track_changes`", "other processes change rows too. Save whole tables.");
  }
  if (policy.statistics.size() > 0) {
    return refused("statistics of rows", "each lookup would be a write. Use `ttl_seconds`.");
  }
  if (policy.sink != nullptr) return refused("a log of evicted rows", "the server drops rows.");
  const auto invalid = [&](const char* name, const std::string& wanted, const std::string& given) {
    return Status::InvalidArgument("`" + std::string(name) + "` of table '" + options.name +
                                   "' in Redis must be " + wanted + ". Received: " + name + "=" +
                                   given + ".");
  };
  const auto in_range = [&](const char* name, int64_t number, int64_t least, int64_t most) {
    if (number >= least && number <= most) return Status();
    return invalid(name, "from " + std::to_string(least) + " to " + std::to_string(most),
                   std::to_string(number));
  };
  TF_EMBED_RETURN_IF_ERROR(in_range("port", redis.port, 1, 65535));
  TF_EMBED_RETURN_IF_ERROR(in_range("database", redis.database, 0, INT32_MAX));
  TF_EMBED_RETURN_IF_ERROR(in_range("connect_timeout_ms", redis.connect_timeout_ms, 1, INT32_MAX));
  TF_EMBED_RETURN_IF_ERROR(in_range("timeout_ms", redis.timeout_ms, 1, INT32_MAX));
  TF_EMBED_RETURN_IF_ERROR(in_range("max_connections", redis.max_connections, 1, 4096));
  TF_EMBED_RETURN_IF_ERROR(in_range("slices", redis.slices, 1, RedisOptions::kMaxSlices));
  TF_EMBED_RETURN_IF_ERROR(in_range("keys_per_command", redis.keys_per_command, 1, 1 << 16));
  if (redis.is_cluster && redis.database != 0) {
    return invalid("database", "0 in a cluster", std::to_string(redis.database));
  }
  if (redis.prefix.empty() || redis.prefix.find_first_of("{}") != std::string::npos) {
    return invalid("prefix", "a name without braces", "'" + redis.prefix + "'");
  }
  return Status();
}

Status RedisStore::Open(const StoreOptions& options, RedisOptions redis,
                        std::unique_ptr<RedisStore>* store) {
  return WithMemory(options.name, [&]() -> Status {
    redis.ttl_milliseconds = options.policy.ttl_milliseconds;
    TF_EMBED_RETURN_IF_ERROR(CheckRedisStore(options, redis));
    std::unique_ptr<RedisRows> rows;
    TF_EMBED_RETURN_IF_ERROR(RedisRows::Open(options.name, redis, &rows));
    std::unique_ptr<RedisStore> made(new RedisStore(options, std::move(rows)));
    RedisMeta meta;
    meta.value_type = options.value_type;
    meta.dim = options.dim;
    meta.slices = redis.slices;
    meta.expires = redis.ttl_milliseconds > 0;
    meta.generation = NextGeneration(0);
    TF_EMBED_RETURN_IF_ERROR(made->MakeMeta(meta));
    *store = std::move(made);
    return Status();
  });
}

Status RedisStore::MakeMeta(const RedisMeta& meta) const {
  std::string bytes;
  TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
  while (bytes.empty()) {
    bool done = false;
    const std::string wanted = meta.Encode();
    TF_EMBED_RETURN_IF_ERROR(rows_->SetMeta("", wanted, &done));
    if (done) {
      bytes = wanted;
    } else {
      TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (known_ == nullptr) {
      auto first = std::make_shared<KnownMeta>();
      static_cast<RedisMeta&>(*first) = meta;
      known_ = std::move(first);
    }
  }
  return Learn(bytes);
}

Status RedisStore::Learn(const std::string& bytes) const {
  const std::shared_ptr<const KnownMeta> known = Known();
  if (bytes == known->bytes || bytes.empty()) return Status();
  auto learned = std::make_shared<KnownMeta>();
  learned->bytes = bytes;
  const std::string place =
      "' in Redis at " + rows_->address() + " has the name '" + rows_->options().prefix + "'";
  if (Status status = RedisMeta::Decode(bytes, learned.get()); !status.ok()) {
    return Status::DataLoss("Table '" + options_.name + place +
                            ", and what is there is no table. " + status.message());
  }
  if (learned->value_type != known->value_type || learned->dim != known->dim ||
      learned->slices != known->slices || learned->expires != known->expires) {
    return Status::InvalidArgument("Table '" + options_.name + place +
                                   ", and must be what the table of that name is: " +
                                   KindOf(*learned) + ". Received: " + KindOf(*known) + ".");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  known_ = std::move(learned);
  return Status();
}

Status RedisStore::ChangeRule(const RuleSlots& rule) const {
  for (;;) {
    const std::shared_ptr<const KnownMeta> known = Known();
    if (SameRuleAndInitialValues(known->rule, rule)) return Status();
    const std::string wanted = known->With(rule).Encode();
    bool done = false;
    TF_EMBED_RETURN_IF_ERROR(rows_->SetMeta(known->bytes, wanted, &done));
    if (done) return Learn(wanted);
    std::string bytes;
    TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
    if (bytes.empty()) {
      TF_EMBED_RETURN_IF_ERROR(MakeMeta(*known));
    } else {
      TF_EMBED_RETURN_IF_ERROR(Learn(bytes));
    }
  }
}

Status RedisStore::SetRule(const ExecContext& context, const RuleSlots& rule) {
  return WithMemory(options_.name, [&] {
    const ReplaceLocks replacing(locks_, context);
    return ChangeRule(rule);
  });
}

void RedisStore::SetInitializer(const RowInitializer& initializer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  initializer_ = initializer;
}

size_t RedisStore::size() const {
  size_t count;
  const Status counted = Count(&count);
  if (counted.ok()) last_size_.store(count, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  counted_ = counted;
  return last_size_.load(std::memory_order_relaxed);
}

Status RedisStore::CheckReachable() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // While slots move, counts fail but lookups work.
    if (!counted_.ok() && counted_.code() != StatusCode::kAborted) return counted_;
  }
  return rows_->CheckReachable();
}

Status RedisStore::Clear(const ExecContext& context) {
  return WithMemory(options_.name, [&] {
    const ReplaceLocks replacing(locks_, context);
    return rows_->Clear();
  });
}

Status RedisStore::CheckGeneration(const KnownMeta& meta) const {
  std::string bytes;
  RedisMeta now;
  TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
  if (bytes == meta.bytes || bytes.empty()) return Status();
  TF_EMBED_RETURN_IF_ERROR(Learn(bytes));
  TF_EMBED_RETURN_IF_ERROR(RedisMeta::Decode(bytes, &now));
  if (now.generation == meta.generation) return Status();
  return Status::FailedPrecondition("While all rows of table '" + options_.name + "' in Redis at " +
                                    rows_->address() +
                                    " were read, its optimizer was changed. Try again.");
}

Status RedisStore::ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const {
  return WithMemory(options_.name, [&]() -> Status {
    if (cursor->kept == nullptr) {
      auto begun = std::make_shared<Export>();
      std::string bytes;
      TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
      TF_EMBED_RETURN_IF_ERROR(Learn(bytes));
      begun->meta = Known();
      cursor->kept = std::move(begun);
    }
    Export& state = *static_cast<Export*>(cursor->kept.get());
    const RowLayout layout = LayoutOf(state.meta->rule);
    std::vector<int64_t> keys;
    std::vector<char> weights;
    std::vector<char> slots;
    const auto take = [&](int64_t key, std::string_view value) -> Status {
      TF_EMBED_RETURN_IF_ERROR(CheckWeights(key, value));
      const char* const row = value.data() + sizeof(RedisRowHeader);
      keys.push_back(key);
      weights.insert(weights.end(), row, row + layout.weight_bytes);
      slots.resize(slots.size() + layout.wide_slot_bytes);
      return ReadSlots(*state.meta, key, value,
                       slots.data() + slots.size() - layout.wide_slot_bytes);
    };
    while (!state.scan.done && (keys.empty() || keys.size() < max_rows)) {
      TF_EMBED_RETURN_IF_ERROR(rows_->ScanSome(max_rows - keys.size(), &state.scan, take));
    }
    TF_EMBED_RETURN_IF_ERROR(
        rows->Resize(keys.size(), layout.weight_bytes, layout.wide_slot_bytes, 0));
    rows->size = keys.size();
    ++cursor->next;
    cursor->done = keys.empty();
    if (cursor->done) return CheckGeneration(*state.meta);
    std::copy(keys.begin(), keys.end(), rows->keys.data());
    std::copy(weights.begin(), weights.end(), rows->weights.data());
    std::copy(slots.begin(), slots.end(), rows->slots.data());
    return Status();
  });
}

Status RedisStore::LargestSlot(const ExecContext&, const RuleSlots& rule, size_t slot,
                               double* largest) const {
  *largest = 0.0;
  if (slot >= rule.slots_per_row()) return Status();
  constexpr size_t kRows = 4096;
  WholeRows rows(options_.allocator);
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(ExportBatch(kRows, &cursor, &rows));
    if (!SameRule(static_cast<const Export*>(cursor.kept.get())->meta->rule, rule)) return Status();
    DispatchSlots(options_.value_type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      const T* const slots = reinterpret_cast<const T*>(rows.slots.data());
      for (size_t i = 0; i < rows.size; ++i) {
        *largest = std::max<double>(*largest, slots[i * rule.slots_per_row() + slot]);
      }
    });
  }
  return Status();
}

std::unique_ptr<Store> RedisStore::NewEmpty(size_t init_size,
                                            const RowInitializer& initializer) const {
  StoreOptions options = options_;
  options.init_size = init_size;
  options.initializer = initializer;
  options.policy = RowPolicy();
  return HostStore::Create(options);
}

Status RedisStore::TakeContent(const ExecContext& context, Store* other) {
  return WithMemory(options_.name, [&]() -> Status {
    const ReplaceLocks replacing(locks_, context);
    SetInitializer(other->initializer());
    TF_EMBED_RETURN_IF_ERROR(rows_->Clear());
    TF_EMBED_RETURN_IF_ERROR(ChangeRule(other->rule()));
    const std::shared_ptr<const KnownMeta> meta = Known();
    const RowLayout layout = LayoutOf(other->rule());
    // Another process may have changed the rule meanwhile.
    if (!SameRule(meta->rule, other->rule())) return RuleWasChanged(options_.name);
    const size_t value_bytes =
        sizeof(RedisRowHeader) + layout.weight_bytes + layout.wide_slot_bytes;
    constexpr size_t kRows = size_t{1} << 16;
    WholeRows rows(options_.allocator);
    for (ExportCursor cursor; !cursor.done;) {
      TF_EMBED_RETURN_IF_ERROR(other->maintenance()->ExportBatch(kRows, &cursor, &rows));
      std::vector<char> values(rows.size * value_bytes);
      std::vector<RedisRows::Change> changes(rows.size);
      for (size_t i = 0; i < rows.size; ++i) {
        char* const value = values.data() + i * value_bytes;
        WriteValue({rows_->NewStamp(), meta->generation, 0},
                   rows.weights.data() + i * layout.weight_bytes, layout.weight_bytes,
                   rows.slots.data() + i * layout.wide_slot_bytes, layout.wide_slot_bytes, value);
        changes[i] = {rows.keys[i], 0, {value, value_bytes}};
      }
      TF_EMBED_RETURN_IF_ERROR(rows_->Put(changes));
    }
    return Status();
  });
}

StoreStats RedisStore::Stats() const {
  const RowLayout layout = LayoutOf(Known()->rule);
  StoreStats stats;
  stats.rows = size();
  stats.payload_bytes = stats.rows * (layout.weight_bytes + layout.wide_slot_bytes);
  stats.index_bytes = stats.rows * (sizeof(RedisRowHeader) + sizeof(int64_t));
  stats.hits = hits_.load(std::memory_order_relaxed);
  stats.misses = misses_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace tf_embed
