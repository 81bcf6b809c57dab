// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_resource.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <utility>

#include "cc/core/files/row_manifest.h"
#include "cc/core/files/table_meta.h"
#include "cc/core/index/striped_index.h"
#include "cc/stores/new_store.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/storage_settings.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {

namespace tf = ::tensorflow;

DataType CoreType(tf::DataType type) {
  switch (type) {
    case tf::DT_HALF:
      return DataType::kHalf;
    case tf::DT_BFLOAT16:
      return DataType::kBFloat16;
    case tf::DT_DOUBLE:
      return DataType::kDouble;
    case tf::DT_INT8:
      return DataType::kInt8;
    case tf::DT_INT32:
      return DataType::kInt32;
    case tf::DT_INT64:
    case tf::DT_STRING:  // its dictionary number
      return DataType::kInt64;
    case tf::DT_BOOL:
      return DataType::kBool;
    default:
      return DataType::kFloat;
  }
}

tf::DataType TensorFlowType(DataType type) {
  for (const tf::DataType one : {tf::DT_HALF, tf::DT_BFLOAT16, tf::DT_DOUBLE, tf::DT_INT8,
                                 tf::DT_INT32, tf::DT_INT64, tf::DT_BOOL}) {
    if (CoreType(one) == type) return one;
  }
  return tf::DT_FLOAT;
}

absl::Status ReadNumbers(const std::string& text, const char* attribute,
                         std::vector<double>* numbers) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (*at == ' ') {
      ++at;
      continue;
    }
    double number;
    const std::from_chars_result result = std::from_chars(at, end, number);
    if (result.ec != std::errc()) {
      return InvalidArgumentError("`", attribute, "` must be decimal numbers. Received: ", text);
    }
    numbers->push_back(number);
    at = result.ptr;
  }
  return absl::OkStatus();
}

absl::Status NewInitializer(const std::string& kind, std::vector<double> numbers, int64_t dim,
                            int64_t seed, int64_t table_id, RowInitializer* initializer) {
  const size_t wanted = kind == "constant" ? 1 : kind == "row" ? static_cast<size_t>(dim) : 2;
  if (numbers.size() != wanted) {
    return InvalidArgumentError("`initializer_values` must be ", wanted,
                                " numbers for initializer '", kind, "'. Received: ", numbers.size(),
                                ".");
  }
  initializer->seed = static_cast<uint64_t>(seed);
  initializer->table_id = static_cast<uint64_t>(table_id);
  if (kind == "row") {
    initializer->kind = InitializerKind::kRow;
    initializer->row = std::move(numbers);
    return absl::OkStatus();
  }
  initializer->kind = kind == "constant"  ? InitializerKind::kConstant
                      : kind == "uniform" ? InitializerKind::kUniform
                      : kind == "normal"  ? InitializerKind::kNormal
                                          : InitializerKind::kTruncatedNormal;
  initializer->a = numbers[0];
  if (wanted == 2) initializer->b = numbers[1];
  return absl::OkStatus();
}

absl::Status ToTensorFlow(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return InvalidArgumentError(status.message());
    case StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(status.message());
    case StatusCode::kResourceExhausted:
      return ResourceExhaustedError(status.message());
    case StatusCode::kDataLoss:
      return absl::DataLossError(status.message());
    case StatusCode::kUnavailable:
      return absl::UnavailableError(status.message());
    case StatusCode::kAborted:
      // Inside a function, TensorFlow would report an unavailable server as an internal error.
      return absl::AbortedError(status.message());
  }
  return absl::OkStatus();
}

std::string TableResource::Signature::DebugString() const {
  return absl::StrCat("a table of ", tf::DataTypeString(key_dtype), " keys, ",
                      tf::DataTypeString(value_dtype), " values, dim ", dim, ", in ", num_shards,
                      num_shards == 1 ? " shard" : " shards",
                      policy == PolicySettings() ? "" : ", ",
                      policy == PolicySettings() ? "" : policy.DebugString());
}

bool TableResource::Signature::operator==(const Signature& other) const {
  return key_dtype == other.key_dtype && value_dtype == other.value_dtype && dim == other.dim &&
         num_shards == other.num_shards && policy == other.policy;
}

absl::Status TableResource::ReadSignature(tf::OpKernelConstruction* construction,
                                          Signature* signature) {
  TF_RETURN_IF_ERROR(construction->GetAttr("key_dtype", &signature->key_dtype));
  TF_RETURN_IF_ERROR(construction->GetAttr("value_dtype", &signature->value_dtype));
  TF_RETURN_IF_ERROR(construction->GetAttr("dim", &signature->dim));
  return ReadNumber(construction, "num_shards", 1, static_cast<int64_t>(RowManifest::kMaxFiles),
                    &signature->num_shards);
}

absl::Status TableResource::NewOptions(const Signature& signature, std::string name,
                                       int64_t init_size, StoreOptions* options) {
  options->name = std::move(name);
  if (signature.dim > TableMeta::kMaxDim) {
    return InvalidArgumentError("`dim` of table '", options->name, "' must be at most ",
                                TableMeta::kMaxDim, ". Received: dim=", signature.dim, ".");
  }
  options->value_type = CoreType(signature.value_dtype);
  options->dim = static_cast<size_t>(signature.dim);
  options->init_size = static_cast<size_t>(init_size);
  return absl::OkStatus();
}

absl::Status TableResource::Create(const Signature& signature, const StoreOptions& options,
                                   const StorageSettings& storage, int gpu,
                                   TableResource** resource) {
  const bool has_strings =
      signature.key_dtype == tf::DT_STRING || signature.value_dtype == tf::DT_STRING;
  const StatisticSet statistics =
      StatisticSet::OfBits(static_cast<uint8_t>(signature.policy.statistics));
  if (statistics.Has(Statistic::kChange) && (gpu >= 0 || has_strings)) {
    return InvalidArgumentError("`track_changes` of table '", options.name,
                                "' must be False: tables on a GPU, and tables with string keys or "
                                "values, do not keep track of changes.");
  }
  const double index_bytes = static_cast<double>(options.init_size) *
                             static_cast<double>(signature.num_shards) * StripedIndex::kBytesPerKey;
  // In floating point, because the product may exceed 64 bits. Linux would grant the memory and end
  // the process when it is touched.
  if (index_bytes > static_cast<double>(PhysicalMemoryBytes())) {
    return ResourceExhaustedError("`init_size` of table '", options.name, "' asks for ",
                                  index_bytes, " bytes of index, more than this machine has, ",
                                  PhysicalMemoryBytes(),
                                  ". Received: init_size=", options.init_size, " in each of ",
                                  signature.num_shards, " shards.");
  }
  if (!storage.redis.host.empty() && has_strings) {
    return InvalidArgumentError("Table '", options.name,
                                "' is in Redis, and can't have string keys or values: their "
                                "dictionary is in one process. Hash string keys to integers.");
  }
  tf::core::RefCountPtr<TableResource> created(new TableResource(signature, gpu));
  const PolicySettings& policy = signature.policy;
  std::shared_ptr<Admission> admission;
  TF_RETURN_IF_ERROR(policy.NewAdmission(options.allocator, &admission));
  if (policy.log_evicted || signature.key_dtype == tf::DT_STRING) {
    created->evicted_ = std::make_unique<EvictionLog>(created.get(), options, policy.log_evicted);
  }
  for (int64_t shard = 0; shard < signature.num_shards; ++shard) {
    StoreOptions shard_options = options;
    shard_options.policy =
        policy.ForShard(shard, signature.num_shards, admission, created->evicted_.get());
    if (gpu >= 0 && !storage.HasTiers(gpu) && storage.evict_by_bytes &&
        shard_options.policy.max_rows == 0) {
      // Never reached: eviction begins when the bytes are used up.
      shard_options.policy.max_rows = SIZE_MAX;
    }
    MadeStore made;
    StorageOptions shard_storage;
    TF_RETURN_IF_ERROR(
        storage.ForShard(options.name, shard, signature.num_shards, gpu, &shard_storage));
    const absl::Status status = ToTensorFlow(NewStore(shard_options, shard_storage, &made));
    if (gpu >= 0) {
      TF_RETURN_IF_ERROR(WithMemoryAdvice(status));
      created->device_shards_.push_back(made.on_device);
      created->own_device_shards_.push_back(std::move(made.own_on_device));
    } else if (absl::IsResourceExhausted(status) && storage.path.empty() &&
               storage.redis.host.empty()) {
      return ResourceExhaustedError("No memory for an empty table '", options.name, "'.");
    }
    TF_RETURN_IF_ERROR(status);
    created->shards_.push_back(std::move(made.store));
  }
  const auto make = [&](tf::DataType type, std::unique_ptr<StringKeys>* dictionary) {
    if (type != tf::DT_STRING) return true;
    *dictionary = StringKeys::Create(options.allocator);
    return *dictionary != nullptr;
  };
  if (!make(signature.key_dtype, &created->key_strings_) ||
      !make(signature.value_dtype, &created->value_strings_)) {
    return ResourceExhaustedError("No memory for an empty table '", options.name, "'.");
  }
  *resource = created.release();
  return absl::OkStatus();
}

absl::Status TableResource::CheckMaintenance() const {
  StoreMaintenance* maintenance;
  return ToTensorFlow(shards_.front()->GetMaintenance(&maintenance));
}

absl::Status TableResource::CheckEviction() const {
  StoreEviction* eviction;
  return ToTensorFlow(shards_.front()->GetEviction(&eviction));
}

size_t TableResource::size() const {
  size_t sum = 0;
  for (const auto& shard : shards_) sum += shard->size();
  return sum;
}

void TableResource::DropStringsOfEvicted() {
  if (key_strings_ == nullptr || evicted_ == nullptr) return;
  evicted_->TakeStringKeys(
      [&](const int64_t* keys, size_t count) { DropStringsWithoutRows(keys, count); });
}

void TableResource::DropStringsWithoutRows(const int64_t* keys, size_t count) {
  constexpr size_t kChunk = 1024;
  bool is_in_shard[kChunk];
  bool has_row[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const KeyBatch batch{keys + begin, std::min(kChunk, count - begin), nullptr};
    std::fill(has_row, has_row + batch.size, false);
    for (const auto& shard : shards_) {
      // If a shard can't answer, all strings stay. A string too many costs memory; a row without
      // its string would be lost.
      if (!shard->Contains(ExecContext::Serial(), batch, is_in_shard).ok()) return;
      for (size_t i = 0; i < batch.size; ++i) has_row[i] = has_row[i] || is_in_shard[i];
    }
    for (size_t i = 0; i < batch.size; ++i) {
      if (!has_row[i]) key_strings_->Remove(&batch.keys[i], 1);
    }
  }
}

Status TableResource::CollectValues(Buffer<int64_t>* values) const {
  constexpr size_t kRows = size_t{1} << 14;
  TF_EMBED_RETURN_IF_ERROR(values->Resize(size() * dim()));
  WholeRows rows(allocator());
  size_t count = 0;
  for (const auto& shard : shards_) {
    StoreMaintenance* maintenance;
    TF_EMBED_RETURN_IF_ERROR(shard->GetMaintenance(&maintenance));
    for (ExportCursor cursor; !cursor.done; count += rows.size * dim()) {
      TF_EMBED_RETURN_IF_ERROR(maintenance->ExportBatch(kRows, &cursor, &rows));
      std::memcpy(values->data() + count, rows.weights.data(), rows.size * row_bytes());
    }
  }
  return Status();
}

void TableResource::DropUnusedValueStrings() {
  if (value_strings_ == nullptr || value_strings_->size() <= value_strings_limit_) return;
  const size_t num_strings = value_strings_->size();
  const size_t num_values = size() * dim();
  Buffer<int64_t> used(allocator());
  Buffer<int64_t> numbers(allocator());
  // Without memory to look, unused strings simply stay until the next time.
  if (!CollectValues(&used).ok() || !numbers.Resize(num_strings).ok()) return;
  std::sort(used.data(), used.data() + num_values);
  size_t unused = 0;
  value_strings_->ForEachKey([&](int64_t number) {
    if (!std::binary_search(used.data(), used.data() + num_values, number)) {
      numbers[unused++] = number;
    }
  });
  value_strings_->Remove(numbers.data(), unused);
  // The search passes over the whole table. Doubling the limit makes it a constant cost for each
  // added string.
  value_strings_limit_ = std::max(kFewStrings, 2 * value_strings_->size());
}

void TableResource::ReplaceStrings(std::unique_ptr<StringKeys>* key_strings,
                                   std::unique_ptr<StringKeys>* value_strings) {
  key_strings_.swap(*key_strings);
  value_strings_.swap(*value_strings);
  value_strings_limit_ =
      std::max(kFewStrings, value_strings_ == nullptr ? 0 : 2 * value_strings_->size());
}

std::vector<Store*> TableResource::shards() const {
  std::vector<Store*> shards;
  for (const auto& shard : shards_) shards.push_back(shard.get());
  return shards;
}

std::string TableResource::DebugString() const {
  return absl::StrCat("Table '", name(), "': ", signature_.DebugString(), ", ", size(), " keys");
}

}  // namespace tf_embed
