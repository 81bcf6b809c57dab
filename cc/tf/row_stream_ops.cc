// SPDX-License-Identifier: Apache-2.0
// Ops that describe, read and write saved rows block by block, without a table. They run on the CPU
// and keep open files in variants. A stream dropped before it is finished leaves no files.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cc/core/saves/pending_save.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/save_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// The block size of a layer's saves.
constexpr size_t kBlockBytes = size_t{1} << 22;

absl::Status RunDescribeRows(tf::OpKernelContext* context) {
  SavePlace place;
  std::vector<RowManifest> parts;
  RowFileHeader header;
  SavedPolicy policy;
  TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
  TF_RETURN_IF_ERROR(ToTensorFlow(SavedRows::Describe(place, &parts, &header)));
  if (!header.policy.empty()) {
    TF_RETURN_IF_ERROR(
        ToTensorFlow(SavedPolicy::Decode(header.policy.data(), header.policy.size(), &policy)));
  }
  const RowManifest& first = parts.front();
  uint64_t milliseconds = first.milliseconds, files = 0, links = 0, rows = 0, bytes = 0;
  for (const RowManifest& part : parts) {
    milliseconds = std::min(milliseconds, part.milliseconds);
    files += part.files.size();
    links += part.links.size();
    for (const RowManifest::File& file : part.files) {
      rows += file.rows;
      bytes += file.bytes;
    }
    for (const RowManifest::Link& link : part.links) bytes += link.bytes;
  }
  const uint64_t values[] = {
      first.save,  milliseconds, first.since, first.processes,          files,
      links,       rows,         bytes,       header.statistics.bits(), policy.step,
      policy.epoch};
  tf::Tensor *numbers, *names, *meta;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {std::size(values)}, &numbers));
  TF_RETURN_IF_ERROR(context->allocate_output(1, {3}, &names));
  TF_RETURN_IF_ERROR(
      context->allocate_output(2, {static_cast<int64_t>(header.meta.count())}, &meta));
  std::copy(std::begin(values), std::end(values), numbers->flat<int64_t>().data());
  names->vec<tf::tstring>()(0) = NameOf(header.key_type);
  names->vec<tf::tstring>()(1) = NameOf(header.value_type);
  names->vec<tf::tstring>()(2) = first.since_name;
  header.meta.Encode(meta->vec<int64_t>().data());
  return absl::OkStatus();
}

absl::Status OpenRowStream(tf::OpKernelContext* context, bool alone) {
  SavePlace place;
  std::shared_ptr<SavedRows> rows;
  TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
  TF_RETURN_IF_ERROR(ToTensorFlow(alone ? SavedRows::OpenAlone(place, &rows)
                                        : SavedRows::Open(place, /*whole=*/true, &rows)));
  const RowFileHeader& header = rows->files().front()->reader.header();
  const SavedRows::File* slots;
  TF_RETURN_IF_ERROR(ToTensorFlow(rows->FindSlots(&slots)));
  TableMeta shown = header.meta;
  // Files of a chain may be from before the table was trained, so the rule is read from a file
  // with slots.
  if (slots != nullptr) shown.rule = slots->reader.header().meta.rule;
  uint64_t num_rows;
  TF_RETURN_IF_ERROR(ToTensorFlow(rows->CountRows(&num_rows)));
  tf::Tensor *counts, *types, *meta;
  const bool has_origin = rows->files().front()->has_origin();
  const int64_t meta_count = has_origin ? static_cast<int64_t>(shown.count()) : 0;
  TF_RETURN_IF_ERROR(context->allocate_output(1, {4}, &counts));
  TF_RETURN_IF_ERROR(context->allocate_output(2, {2}, &types));
  TF_RETURN_IF_ERROR(context->allocate_output(3, {meta_count}, &meta));
  auto numbers = counts->vec<int64_t>();
  numbers(0) = static_cast<int64_t>(rows->num_blocks());
  numbers(1) = static_cast<int64_t>(num_rows);
  numbers(2) = static_cast<int64_t>(header.meta.dim);
  numbers(3) = static_cast<int64_t>(shown.rule.slots_per_row());
  types->vec<tf::tstring>()(0) = NameOf(header.key_type);
  types->vec<tf::tstring>()(1) = NameOf(header.value_type);
  if (has_origin) shown.Encode(meta->vec<int64_t>().data());
  return GiveScalar<tf::Variant>(context, 0, VariantOf(std::move(rows)));
}

class OpenRowStreamOp : public StatusOp {
 public:
  explicit OpenRowStreamOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("alone", &alone_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override { return OpenRowStream(context, alone_); }

  bool alone_ = false;
};

// Fills initial slots for all rows, as a load does for rows without slots.
void FillSlots(const RuleSlots& rule, size_t slot_size, tf::Tensor* slots) {
  for (int64_t row = 0; row < slots->dim_size(0); ++row) {
    char* const begin = static_cast<char*>(slots->data()) +
                        static_cast<size_t>(row) * rule.slots_per_row() * slot_size;
    if (slot_size == sizeof(double)) {
      FillInitialSlots(rule, reinterpret_cast<double*>(begin));
    } else {
      FillInitialSlots(rule, reinterpret_cast<float*>(begin));
    }
  }
}

void CopyBytes(const char* bytes, size_t size, tf::Tensor* tensor) {
  if (size > 0) std::memcpy(tensor->data(), bytes, size);
}

void CopyStrings(const StringBatch& strings, tf::Tensor* tensor) {
  tf::tstring* const out = tensor->flat<tf::tstring>().data();
  for (int64_t i = 0; i < tensor->NumElements(); ++i) {
    const std::string_view string = strings[static_cast<size_t>(i)];
    out[i].assign(string.data(), string.size());
  }
}

absl::Status RunReadRowStream(tf::OpKernelContext* context) {
  SavedRows* saved;
  size_t number;
  std::shared_ptr<const RowBlock> block;
  TF_RETURN_IF_ERROR(ReadBlockInput(context, 0, &saved, &number));
  const RowFileHeader& header = saved->FileOf(number).reader.header();
  const size_t slot_size = SlotSize(header.meta.value_type);
  if (StoredTypeOf(context->expected_output_dtype(0)) != header.key_type ||
      StoredTypeOf(context->expected_output_dtype(1)) != header.value_type ||
      tf::DataTypeSize(context->expected_output_dtype(2)) != static_cast<int>(slot_size)) {
    return InvalidArgumentError("`key_dtype`, `value_dtype` and `slot_dtype` must be those of ",
                                "the rows, which have ", NameOf(header.key_type), " keys and ",
                                NameOf(header.value_type), " weights.");
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(saved->ReadBlock(number, &block)));
  const int64_t size = static_cast<int64_t>(block->size);
  const SavedRows::File* slots;
  TF_RETURN_IF_ERROR(ToTensorFlow(saved->FindSlots(&slots)));
  const RuleSlots rule = slots == nullptr ? RuleSlots() : slots->reader.header().meta.rule;
  tf::Tensor* outputs[4];
  TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &outputs[0]));
  TF_RETURN_IF_ERROR(
      context->allocate_output(1, {size, static_cast<int64_t>(header.meta.dim)}, &outputs[1]));
  TF_RETURN_IF_ERROR(
      context->allocate_output(2, {size, static_cast<int64_t>(rule.slots_per_row())}, &outputs[2]));
  TF_RETURN_IF_ERROR(context->allocate_output(
      3, {size, static_cast<int64_t>(header.statistics.size())}, &outputs[3]));
  TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, 4, header.statistics.bits()));
  if (header.has_string_keys()) {
    CopyStrings(block->key_strings, outputs[0]);
  } else {
    NarrowKeys(block->keys, block->size, 0, outputs[0]);
  }
  if (header.has_string_values()) {
    CopyStrings(block->value_strings, outputs[1]);
  } else {
    CopyBytes(block->weights, block->size * header.weight_bytes(), outputs[1]);
  }
  CopyBytes(reinterpret_cast<const char*>(block->statistics),
            block->size * header.statistics_bytes(), outputs[3]);
  // A file from before the rule; its rows have no slots.
  if (header.meta.rule.slots_per_row() == 0) {
    FillSlots(rule, slot_size, outputs[2]);
  } else {
    CopyBytes(block->slots, block->size * header.slot_bytes(), outputs[2]);
  }
  return absl::OkStatus();
}

// One file of rows in progress. Thread-safe.
class RowStream {
 public:
  static constexpr char kTypeName[] = "tf_embed::RowStream";

  RowStream(SavePlace place, const RowManifest& kind)
      : kind_(kind), pending_(std::move(place), kind) {}

  absl::Status Begin(const TableMeta& meta, bool has_origin) {
    std::lock_guard<std::mutex> lock(mutex_);
    header_.key_type = kind_.key_type;
    header_.value_type = kind_.value_type;
    header_.save = pending_.number();
    header_.meta = meta;
    // A load takes the seed only from a file with a policy, so an empty policy marks the origin.
    if (has_origin) header_.policy = SavedPolicy().Encode();
    FileSink* sink;
    TF_RETURN_IF_ERROR(ToTensorFlow(pending_.Begin()));
    TF_RETURN_IF_ERROR(ToTensorFlow(pending_.NewFile(header_.num_shards, &sink)));
    writer_.emplace(sink, HostAllocator(), kBlockBytes);
    TF_RETURN_IF_ERROR(ToTensorFlow(writer_->Begin(header_)));
    open_ = true;
    return absl::OkStatus();
  }

  absl::Status Append(const tf::Tensor& keys, const tf::Tensor& weights, const tf::Tensor& slots) {
    std::lock_guard<std::mutex> lock(mutex_);
    TF_RETURN_IF_ERROR(CheckOpen());
    TF_RETURN_IF_ERROR(CheckRank(keys, "keys", 1));
    const int64_t size = keys.NumElements();
    TF_RETURN_IF_ERROR(CheckMatrix(weights, "weights", size, header_.meta.dim));
    TF_RETURN_IF_ERROR(CheckMatrix(slots, "slots", size, header_.meta.rule.slots_per_row()));
    if (StoredTypeOf(weights.dtype()) != header_.value_type ||
        tf::DataTypeSize(slots.dtype()) != static_cast<int>(SlotSize(header_.meta.value_type))) {
      return InvalidArgumentError("`weights` must be ", NameOf(header_.value_type),
                                  ", and `slots` as wide as they are computed with.");
    }
    RowsToWrite rows;
    rows.size = static_cast<size_t>(size);
    rows.keys = static_cast<const int64_t*>(keys.data());
    rows.weights = static_cast<const char*>(weights.data());
    rows.slots = static_cast<const char*>(slots.data());
    const absl::Status status = ToTensorFlow(writer_->Append(rows));
    if (!status.ok()) GiveUp();  // the file may end in a partial block
    return status;
  }

  absl::Status Finish() {
    std::lock_guard<std::mutex> lock(mutex_);
    TF_RETURN_IF_ERROR(CheckOpen());
    absl::Status status = ToTensorFlow(writer_->Finish());
    pending_.EndFile(*writer_);
    if (status.ok()) status = ToTensorFlow(pending_.Commit());
    if (!status.ok()) GiveUp();
    open_ = false;
    return status;
  }

 private:
  // Closes the file early: the caller may keep the failed stream for long.
  void GiveUp() {
    open_ = false;
    pending_.GiveUp();
  }

  absl::Status CheckOpen() const {
    if (open_) return absl::OkStatus();
    return absl::FailedPreconditionError("The stream of rows has ended, or has failed before.");
  }

  static absl::Status CheckMatrix(const tf::Tensor& tensor, const char* name, int64_t rows,
                                  size_t columns) {
    TF_RETURN_IF_ERROR(CheckRank(tensor, name, 2));
    if (tensor.dim_size(0) == rows && tensor.dim_size(1) == static_cast<int64_t>(columns)) {
      return absl::OkStatus();
    }
    return InvalidArgumentError("`", name, "` must be of shape [", rows, ", ", columns,
                                "]. Received: ", tensor.shape().DebugString(), ".");
  }

  const RowManifest kind_;
  std::mutex mutex_;
  PendingSave pending_;
  RowFileHeader header_;
  std::optional<RowFileWriter> writer_;
  bool open_ = false;
};

using RowStreamVariant = SharedVariant<RowStream>;

absl::Status ReadStream(tf::OpKernelContext* context, RowStream** stream) {
  *stream = RowStreamVariant::In(context->input(0));
  if (*stream != nullptr) return absl::OkStatus();
  return InvalidArgumentError("`stream` must be what TfEmbedBeginRowStream gave.");
}

class BeginRowStreamOp : public StatusOp {
 public:
  explicit BeginRowStreamOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    tf::DataType type;
    OP_REQUIRES_OK(construction, construction->GetAttr("value_dtype", &type));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "dim", 1, TableMeta::kMaxDim, &dim_));
    kind_.value_type = StoredTypeOf(type);
    kind_.dim = static_cast<uint64_t>(dim_);
    value_type_ = CoreType(type);
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    SavePlace place;
    TableMeta meta;
    meta.dim = static_cast<size_t>(dim_);
    meta.value_type = value_type_;
    const tf::Tensor& numbers = context->input(2);
    TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
    TF_RETURN_IF_ERROR(CheckRank(numbers, "meta", 1));
    const size_t count = static_cast<size_t>(numbers.NumElements());
    if (count > 0) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(TableMeta::Decode(numbers.vec<int64_t>().data(), count, &meta)));
      if (meta.dim != static_cast<size_t>(dim_) || meta.value_type != value_type_) {
        return InvalidArgumentError("`meta` must be of `value_dtype` and `dim`. Received: dim=",
                                    dim_, " and a meta of dim ", meta.dim, ".");
      }
    }
    auto stream = std::make_shared<RowStream>(std::move(place), kind_);
    TF_RETURN_IF_ERROR(stream->Begin(meta, /*has_origin=*/count > 0));
    return GiveScalar<tf::Variant>(context, 0, RowStreamVariant(std::move(stream)));
  }

  RowManifest kind_;
  DataType value_type_ = DataType::kFloat;
  int64_t dim_ = 0;
};

absl::Status RunAppendRowStream(tf::OpKernelContext* context) {
  RowStream* stream;
  TF_RETURN_IF_ERROR(ReadStream(context, &stream));
  return stream->Append(context->input(1), context->input(2), context->input(3));
}

absl::Status RunFinishRowStream(tf::OpKernelContext* context) {
  RowStream* stream;
  TF_RETURN_IF_ERROR(ReadStream(context, &stream));
  return stream->Finish();
}

const Kernels<StatusFunction<RunDescribeRows>> describe_rows("TfEmbedDescribeRows");
const Kernels<OpenRowStreamOp> open_row_stream("TfEmbedOpenRowStream");
const Kernels<StatusFunction<RunReadRowStream>> read_row_stream("TfEmbedReadRowStream");
const Kernels<BeginRowStreamOp> begin_row_stream("TfEmbedBeginRowStream");
const Kernels<StatusFunction<RunAppendRowStream>> append_row_stream("TfEmbedAppendRowStream");
const Kernels<StatusFunction<RunFinishRowStream>> finish_row_stream("TfEmbedFinishRowStream");

}  // namespace
}  // namespace tf_embed
