// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_op.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "cc/core/base/allocator.h"
#include "cc/core/files/table_meta.h"
#include "cc/ops/key_types.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/op_inputs.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/util/work_sharder.h"
#include "xla/stream_executor/stream.h"

namespace tf_embed {

namespace tf = ::tensorflow;

namespace {

// Running table ops in the whole process.
std::atomic<int> ops_under_way{0};

// TensorFlow's memory of a GPU, which its own ops have their temporary tensors in.
class GpuScratch final : public Allocator {
 public:
  explicit GpuScratch(tf::Allocator* gpu) : gpu_(gpu) {}

  void* Allocate(size_t bytes) override {
    // Stores have memory of their own to fall back on, so a failure neither waits nor is logged at
    // length.
    const tf::AllocationAttributes once(/*retry_on_failure=*/false,
                                        /*allocation_will_be_logged=*/false, nullptr);
    return gpu_->AllocateRaw(kAlignment, bytes, once);
  }
  void Deallocate(void* memory, size_t) override { gpu_->DeallocateRaw(memory); }

  // Lives as long as the process, as allocators of GPUs do.
  static GpuScratch* Of(tf::Allocator* gpu) {
    static std::mutex mutex;
    static auto* const all = new std::map<tf::Allocator*, GpuScratch>;
    std::lock_guard<std::mutex> lock(mutex);
    return &all->try_emplace(gpu, gpu).first->second;
  }

 private:
  static constexpr size_t kAlignment = 256;  // of cudaMalloc

  tf::Allocator* const gpu_;
};

}  // namespace

OpUnderWay::OpUnderWay() { ops_under_way.fetch_add(1, std::memory_order_relaxed); }
OpUnderWay::~OpUnderWay() { ops_under_way.fetch_sub(1, std::memory_order_relaxed); }

absl::Status CheckDim(const TableResource& table, int64_t dim) {
  // The shape function has promised outputs of this dim to the graph.
  if (dim == 0 || dim == table.signature().dim) return absl::OkStatus();
  return InvalidArgumentError("`dim` of table '", table.name(), "' must be ", table.signature().dim,
                              ". Received: dim=", dim, ".");
}

absl::Status RunOnTable(const TableResource& table, absl::FunctionRef<absl::Status()> part) {
  try {
    absl::Status status = part();
    return table.is_on_device() ? WithMemoryAdvice(std::move(status)) : status;
    // Containers of the standard library throw. An exception that leaves a kernel ends the process.
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("No memory for an operation on table '", table.name(), "'.");
  }
}

TableOp::TableOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
  OP_REQUIRES_OK(construction, CheckListLengths(construction));
  if (construction->HasAttr("dim")) {
    OP_REQUIRES_OK(construction, ReadNumber(construction, "dim", 1, TableMeta::kMaxDim, &dim_));
  }
}

void TableOp::Compute(tf::OpKernelContext* context) {
  const OpUnderWay under_way;
  tf::core::RefCountPtr<TableResource> table;
  OP_REQUIRES_OK(context, LookUpTable(context, context->input(0), "table", &table));
  OP_REQUIRES_OK(context, CheckDim(*table, dim_));
  OP_REQUIRES_OK(context, RunOnTable(*table, [&] { return Run(context, table.get()); }));
}

absl::Status WidenedKeys(const tf::Tensor& tensor, Buffer<int64_t>* widened, const int64_t** keys) {
  const size_t size = static_cast<size_t>(tensor.NumElements());
  const auto widen = [&](auto* narrow) {
    TF_RETURN_IF_ERROR(ToTensorFlow(widened->Resize(size)));
    std::copy_n(narrow, size, widened->data());
    *keys = widened->data();
    return absl::OkStatus();
  };
  switch (tensor.dtype()) {
#define TF_EMBED_KEY(type, dtype, name, stored)                                      \
  case tf::dtype:                                                                    \
    if (sizeof(type) < sizeof(int64_t)) return widen(tensor.flat<type>().data());    \
    *keys = static_cast<const int64_t*>(tensor.data()); /* unsigned by their bits */ \
    return absl::OkStatus();
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
    default:
      return InvalidArgumentError(
          "`keys` must be integers. Received: ", tf::DataTypeString(tensor.dtype()), ".");
  }
}

void NarrowKeys(const int64_t* keys, size_t count, size_t at, tf::Tensor* tensor) {
  switch (tensor->dtype()) {
#define TF_EMBED_KEY(type, dtype, name, stored)                        \
  case tf::dtype:                                                      \
    std::copy_n(keys, count, static_cast<type*>(tensor->data()) + at); \
    return;
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
    default:
      // Unreachable: ops are registered for no other types.
      LOG(FATAL) << "Keys of " << tf::DataTypeString(tensor->dtype());
  }
}

StringBatch StringsOf(const tf::Tensor& tensor) {
  return {tensor.flat<tf::tstring>().data(), static_cast<size_t>(tensor.NumElements()),
          [](const void* strings, size_t i) {
            const tf::tstring& string = static_cast<const tf::tstring*>(strings)[i];
            return std::string_view(string.data(), string.size());
          }};
}

void WriteStrings(const ExecContext& context, const StringKeys& dictionary, const int64_t* numbers,
                  size_t count, size_t at, tf::Tensor* tensor) {
  tf::tstring* const out = tensor->flat<tf::tstring>().data() + at;
  const auto write = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const std::string_view string = dictionary.StringOf(numbers[i]);
      out[i].assign(string.data(), string.size());
    }
  };
  context.parallel_for(count, kStringCost, std::cref(write));
}

void WriteKeys(const ExecContext& context, const Table& table, const int64_t* keys, size_t count,
               size_t at, tf::Tensor* tensor) {
  if (table.key_strings() != nullptr) {
    WriteStrings(context, *table.key_strings(), keys, count, at, tensor);
  } else {
    NarrowKeys(keys, count, at, tensor);
  }
}

absl::Status KeysInput::Read(const TableInputs& inputs, TableResource* table, KeyUse use,
                             KeysInput* keys) {
  TF_RETURN_IF_ERROR(keys->ReadShapes(inputs, *table));
  keys->string_scope_.emplace(table, use);
  const tf::Tensor& tensor = inputs[1];
  if (tensor.dtype() != tf::DT_STRING) {
    return WidenedKeys(tensor, &keys->widened_, &keys->batch_.keys);
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(keys->string_scope_->Keys(ExecContextOf(inputs.context),
                                                            StringsOf(tensor), &keys->widened_)));
  keys->batch_.keys = keys->widened_.data();
  return absl::OkStatus();
}

absl::Status KeysInput::ReadAside(const TableInputs& inputs, const TableResource& table,
                                  StringKeys* dictionary, KeysInput* keys) {
  TF_RETURN_IF_ERROR(keys->ReadShapes(inputs, table));
  const tf::Tensor& tensor = inputs[1];
  if (tensor.dtype() != tf::DT_STRING) {
    return WidenedKeys(tensor, &keys->widened_, &keys->batch_.keys);
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(InternStrings(ExecContextOf(inputs.context), StringsOf(tensor),
                                                table.allocator(), dictionary, &keys->widened_)));
  keys->batch_.keys = keys->widened_.data();
  return absl::OkStatus();
}

absl::Status KeysInput::ReadShapes(const TableInputs& inputs, const TableResource& table) {
  const tf::Tensor& tensor = inputs[1];
  const tf::Tensor& owners = inputs[2];
  if (tensor.dtype() != table.signature().key_dtype) {
    return InvalidArgumentError("`keys` of table '", table.name(), "' must be ",
                                tf::DataTypeString(table.signature().key_dtype),
                                ". Received: ", tf::DataTypeString(tensor.dtype()), ".");
  }
  batch_.size = static_cast<size_t>(tensor.NumElements());
  shape_ = tensor.shape();
  // The same kernel class is registered with keys on the host, for narrow keys and for ops that no
  // step needs. On the CPU all memory is the device's.
  batch_.on_device = inputs.context->op_device_context() != nullptr && table.is_on_device() &&
                     inputs.context->input_memory_type(inputs.Index(1)) == tf::DEVICE_MEMORY;
  // Positions within a batch are 32-bit numbers.
  if (batch_.size > kMaxBatchSize) {
    return InvalidArgumentError("A batch may have at most ", kMaxBatchSize,
                                " keys. Received: ", batch_.size, ".");
  }
  TF_RETURN_IF_ERROR(CheckRank(owners, "owners", 1));
  rows_shape_ = shape_;
  TF_RETURN_IF_ERROR(AddAxis(table.signature().dim, &rows_shape_));
  const size_t num_owners = static_cast<size_t>(owners.NumElements());
  if (num_owners != 0 && num_owners != batch_.size) {
    return InvalidArgumentError("The partitioner of table '", table.name(),
                                "' must give one shard for each of ", batch_.size,
                                " keys. Received: ", num_owners, ".");
  }
  if (num_owners != 0) batch_.owners = owners.flat<int32_t>().data();
  // The shard of a key is its remainder, which depends on the sign. Keys of strings are hashes of
  // all 64 bits.
  batch_.unsigned_keys = tensor.dtype() == tf::DT_UINT64 || tensor.dtype() == tf::DT_STRING;
  return absl::OkStatus();
}

absl::Status KeysInput::ReadScores(tf::OpKernelContext* context, const TableResource& table,
                                   int input) {
  if (context->num_inputs() == input) return absl::OkStatus();
  const tf::Tensor& scores = context->input(input);
  if (scores.shape() != shape_) {
    return InvalidArgumentError("`scores` of table '", table.name(),
                                "' must have the shape of the keys, ", shape_.DebugString(),
                                ". Received: ", scores.shape().DebugString(), ".");
  }
  if (!table.statistics().Has(Statistic::kScore)) {
    return absl::FailedPreconditionError(
        absl::StrCat("Table '", table.name(), "' keeps no scores."));
  }
  batch_.scores = scores.flat<int64_t>().data();
  return absl::OkStatus();
}

void KeysInput::ReplaceString(const tf::Tensor& strings, std::string_view replaced, int64_t key) {
  const StringBatch batch = StringsOf(strings);
  for (size_t i = 0; i < size(); ++i) {
    if (batch[i] == replaced) widened_[i] = key;
  }
}

absl::Status CheckRows(const tf::Tensor& rows, const char* argument, const TableResource& table,
                       const KeysInput& keys) {
  if (rows.dtype() != table.signature().value_dtype) {
    return InvalidArgumentError("`", argument, "` of table '", table.name(), "' must be ",
                                tf::DataTypeString(table.signature().value_dtype),
                                ". Received: ", tf::DataTypeString(rows.dtype()), ".");
  }
  return CheckRowsShape(rows, argument, table, keys);
}

absl::Status CheckRowsShape(const tf::Tensor& rows, const char* argument,
                            const TableResource& table, const KeysInput& keys) {
  const tf::TensorShape& expected = keys.rows_shape();
  if (rows.shape() != expected) {
    return InvalidArgumentError("`", argument, "` of table '", table.name(), "' must have shape ",
                                expected.DebugString(), " for keys of shape ",
                                keys.shape().DebugString(),
                                ". Received: ", rows.shape().DebugString(), ".");
  }
  return absl::OkStatus();
}

absl::Status ReadDefaults(const TableInputs& inputs, const TableResource& table,
                          const KeysInput& keys, DefaultRows* defaults) {
  const tf::Tensor& tensor = inputs[3];
  if (tensor.NumElements() == 0) return absl::OkStatus();
  if (tensor.dtype() != table.signature().value_dtype) {
    return CheckRows(tensor, "defaults", table, keys);
  }
  defaults->rows = tensor.data();
  if (tensor.dims() == 1 && tensor.dim_size(0) == table.signature().dim) {
    defaults->kind = DefaultRows::Kind::kOneForAll;
    return absl::OkStatus();
  }
  defaults->kind = DefaultRows::Kind::kOneEach;
  return CheckRows(tensor, "defaults", table, keys);
}

absl::Status CheckOutputType(tf::DataType type, const TableResource& table) {
  if (type == table.signature().value_dtype) return absl::OkStatus();
  return InvalidArgumentError("Table '", table.name(), "' holds ",
                              tf::DataTypeString(table.signature().value_dtype),
                              ". Asked for: ", tf::DataTypeString(type), ".");
}

ExecContext ExecContextOf(tf::OpKernelContext* context, bool training) {
  const tf::DeviceBase::CpuWorkerThreads* const workers =
      context->device()->tensorflow_cpu_worker_threads();
  ExecContext exec;
  exec.training = training;
  exec.parallel_for = [workers](size_t total, size_t cost, const ExecContext::Work& work) {
    // Small concurrent ops share the threads evenly: more threads would only wait for busy ones. A
    // large op outlasts the others, so it may use all.
    constexpr size_t kLittle = 1000000;  // ns
    // An estimate is enough, so a relaxed counter of the whole process suffices.
    const int together = std::max(1, ops_under_way.load(std::memory_order_relaxed));
    const int threads = total * cost > kLittle ? workers->num_threads
                                               : std::max(1, workers->num_threads / together);
    tf::Shard(threads, workers->workers, static_cast<int64_t>(total), static_cast<int64_t>(cost),
              [&work](int64_t begin, int64_t end) {
                work(static_cast<size_t>(begin), static_cast<size_t>(end));
              });
  };
  const tf::DeviceContext* const device = context->op_device_context();
  if (device != nullptr && device->stream() != nullptr) {
    exec.scratch = GpuScratch::Of(context->device()->GetAllocator(tf::AllocatorAttributes()));
    exec.stream = device->stream()->platform_specific_handle().stream;  // the GPU's CUDA stream
  }
  return exec;
}

}  // namespace tf_embed
