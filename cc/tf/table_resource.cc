// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_resource.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "cc/core/files/row_manifest.h"
#include "cc/core/files/table_meta.h"
#include "cc/core/index/striped_index.h"
#include "cc/ops/key_types.h"
#include "cc/stores/new_store.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/storage_settings.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {

namespace tf = ::tensorflow;

namespace {

// The types of values, besides float.
constexpr std::pair<tf::DataType, DataType> kValueTypes[] = {
    {tf::DT_HALF, DataType::kHalf},     {tf::DT_BFLOAT16, DataType::kBFloat16},
    {tf::DT_DOUBLE, DataType::kDouble}, {tf::DT_INT8, DataType::kInt8},
    {tf::DT_INT32, DataType::kInt32},   {tf::DT_INT64, DataType::kInt64},
    {tf::DT_BOOL, DataType::kBool},     {tf::DT_STRING, DataType::kInt64},  // its dictionary number
};

}  // namespace

DataType CoreType(tf::DataType type) {
  for (const auto& [one, core] : kValueTypes) {
    if (one == type) return core;
  }
  return DataType::kFloat;
}

StoredType StoredTypeOf(tf::DataType type) {
  switch (type) {
#define TF_EMBED_KEY(type, dtype, name, stored) \
  case tf::dtype:                               \
    return StoredType::stored;
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
    case tf::DT_STRING:
      return StoredType::kString;
    default:
      return static_cast<StoredType>(CoreType(type));
  }
}

tf::DataType TensorFlowType(DataType type) {
  for (const auto& [one, core] : kValueTypes) {
    if (core == type) return one;
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
  // Both have the canonical numbers. kAborted and not kUnavailable tells of a lost server, because
  // inside a function TensorFlow would report an unavailable server as an internal error.
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

Status FromTensorFlow(const absl::Status& status) {
  if (status.ok()) return Status();
  return Status::Of(static_cast<StatusCode>(status.code()), std::string(status.message()));
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

TableResource::TableResource(const Signature& signature, const StoreOptions& options)
    : Table({options, signature.policy, static_cast<size_t>(signature.num_shards),
             StoredTypeOf(signature.key_dtype), StoredTypeOf(signature.value_dtype)}),
      signature_(signature) {}

namespace {

// Makes the store of a shard on GPU `gpu`, or on the host if it is -1.
Status NewShard(const StorageSettings& storage, int gpu, size_t number, size_t num_shards,
                StoreOptions options, Shard* shard) {
  const bool is_on_gpu = gpu >= 0;
  if (is_on_gpu && !storage.HasTiers(gpu) && storage.evict_by_bytes &&
      options.policy.max_rows == 0) {
    // Never reached: eviction begins when the bytes are used up.
    options.policy.max_rows = SIZE_MAX;
  }
  MadeStore made;
  StorageOptions of_shard;
  const absl::Status read = storage.ForShard(options.name, static_cast<int64_t>(number),
                                             static_cast<int64_t>(num_shards), gpu, &of_shard);
  if (!read.ok()) return FromTensorFlow(read);
  const Status status = NewStore(options, of_shard, &made);
  if (status.code() == StatusCode::kResourceExhausted && !is_on_gpu && storage.path.empty() &&
      storage.redis.host.empty()) {
    return Status::ResourceExhausted(
        [&] { return "No memory for an empty table '" + options.name + "'."; });
  }
  TF_EMBED_RETURN_IF_ERROR(status);
  shard->store = std::move(made.store);
  if (!is_on_gpu) return Status();
  shard->device = gpu;
  shard->on_device = made.on_device;
  shard->own_on_device = std::move(made.own_on_device);
  shard->new_split = [gpu] {
    return EmulatesDevice() ? NewEmulatedDeviceSplit(HostAllocator()) : NewDeviceSplit(gpu);
  };
  return Status();
}

}  // namespace

absl::Status TableResource::Create(const Signature& signature, const StoreOptions& options,
                                   const StorageSettings& storage, int gpu,
                                   TableResource** resource) {
  const bool has_strings =
      signature.key_dtype == tf::DT_STRING || signature.value_dtype == tf::DT_STRING;
  if (signature.policy.kept_statistics().Has(Statistic::kChange) && has_strings) {
    return InvalidArgumentError("`track_changes` of table '", options.name,
                                "' must be False: tables with string keys or values do not keep "
                                "track of changes.");
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
  tf::core::RefCountPtr<TableResource> created(new TableResource(signature, options));
  const auto new_shard = [&](size_t number, const StoreOptions& of_shard, Shard* shard) {
    return NewShard(storage, gpu, number, static_cast<size_t>(signature.num_shards), of_shard,
                    shard);
  };
  const absl::Status status = ToTensorFlow(created->MakeShards(new_shard));
  TF_RETURN_IF_ERROR(gpu < 0 ? status : WithMemoryAdvice(status));
  *resource = created.release();
  return absl::OkStatus();
}

std::string TableResource::DebugString() const {
  return absl::StrCat("Table '", name(), "': ", signature_.DebugString(), ", ", size(), " keys");
}

}  // namespace tf_embed
