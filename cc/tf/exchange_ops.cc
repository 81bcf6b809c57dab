// SPDX-License-Identifier: Apache-2.0
// Packs keys and rows into messages between workers, and unpacks them. TensorFlow's collectives
// carry the messages. Every message is validated before it is read.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/core/exchange/message.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Low enough that the counts in a plan fit in 64 bits.
constexpr int64_t kMostTables = 1 << 16;
constexpr double kBytesPerNanosecond = 4;  // rough copy speed

// The attributes of an op that packs or unpacks parts.
struct PartAttributes {
  std::vector<tf::DataType> types;
  std::vector<int64_t> tables;
  std::vector<WireType> wires;
  int64_t rank = -1;  // nothing is packed for this worker; -1: no such worker

  absl::Status Read(tf::OpKernelConstruction* construction) {
    std::vector<std::string> names;
    TF_RETURN_IF_ERROR(construction->GetAttr("rank", &rank));
    TF_RETURN_IF_ERROR(construction->GetAttr("part_types", &types));
    TF_RETURN_IF_ERROR(construction->GetAttr("part_tables", &tables));
    TF_RETURN_IF_ERROR(construction->GetAttr("wire_types", &names));
    if (tables.size() != types.size() || names.size() != types.size()) {
      return InvalidArgumentError(
          "`part_tables` and `wire_types` must have one entry for each part. Received: ",
          tables.size(), " and ", names.size(), " for ", types.size(), " parts.");
    }
    for (size_t i = 0; i < types.size(); ++i) {
      wires.push_back(names[i] == "same"       ? WireType::kAsTheyAre
                      : names[i] == "bfloat16" ? WireType::kBFloat16
                                               : WireType::kHalf);
      // Keys must keep every bit, and rows of other types are narrow already or chosen for their
      // precision.
      if (wires[i] != WireType::kAsTheyAre && types[i] != tf::DT_FLOAT) {
        return InvalidArgumentError("`wire_types` must be same for a part that is not float32. ",
                                    "Received: ", names[i], " for ", tf::DataTypeString(types[i]),
                                    ".");
      }
      // Resources and variants have no bytes that another process could read.
      if (types[i] != tf::DT_STRING && tf::DataTypeSize(types[i]) == 0) {
        return InvalidArgumentError("`part_types` must be numbers or strings. Received: ",
                                    tf::DataTypeString(types[i]), ".");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCounts(const tf::Tensor& counts) const {
    TF_RETURN_IF_ERROR(CheckRank(counts, "counts", 2));
    if (rank >= counts.dim_size(1)) {
      return InvalidArgumentError("`rank` must be less than the number of workers, ",
                                  counts.dim_size(1), ". Received: ", rank, ".");
    }
    for (const int64_t table : tables) {
      if (table < 0 || table >= counts.dim_size(0)) {
        return InvalidArgumentError("`part_tables` must be from 0 to ", counts.dim_size(0) - 1,
                                    ". Received: ", table, ".");
      }
    }
    const int32_t* const numbers = counts.flat<int32_t>().data();
    for (int64_t i = 0; i < counts.NumElements(); ++i) {
      if (numbers[i] < 0) {
        return InvalidArgumentError("`counts` must be from 0. Received: ", numbers[i], ".");
      }
    }
    return absl::OkStatus();
  }

  // Key counts per worker for the table of `part`.
  const int32_t* CountsOf(size_t part, const tf::Tensor& counts) const {
    return counts.flat<int32_t>().data() + tables[part] * counts.dim_size(1);
  }
};

// The outgoing parts of messages.
class PartsOut {
 public:
  absl::Status Read(tf::OpKernelContext* context, const PartAttributes& attributes,
                    const tf::Tensor& counts) {
    attributes_ = &attributes;
    TF_RETURN_IF_ERROR(attributes.CheckCounts(counts));
    num_workers_ = static_cast<size_t>(counts.dim_size(1));
    for (size_t part = 0; part < attributes.types.size(); ++part) {
      const tf::Tensor& tensor = context->input(static_cast<int>(part));
      const bool is_string = tensor.dtype() == tf::DT_STRING;
      if (tensor.dims() != 1 && (tensor.dims() != 2 || is_string)) {
        return InvalidArgumentError("`parts` must be vectors, or matrices of numbers. Received: ",
                                    "shape ", tensor.shape().DebugString(), " as part ", part, ".");
      }
      std::vector<size_t> begins = {0};
      const int32_t* const numbers = attributes.CountsOf(part, counts);
      for (size_t worker = 0; worker < num_workers_; ++worker) {
        begins.push_back(begins.back() + static_cast<size_t>(numbers[worker]));
      }
      // Pack trusts these ranges, so they are checked against the tensor here.
      if (static_cast<int64_t>(begins.back()) != tensor.dim_size(0)) {
        return InvalidArgumentError(
            "`parts` must have as many rows as `counts` says. Received: ", tensor.dim_size(0),
            " rows instead of ", begins.back(), " in part ", part, ".");
      }
      tensors_.push_back(&tensor);
      begins_.push_back(std::move(begins));
      row_bytes_.push_back(is_string ? 0 : RowBytes(tensor));
    }
    return absl::OkStatus();
  }

  size_t num_workers() const { return num_workers_; }

  uint64_t WordsTo(size_t worker, size_t part) const {
    const size_t begin = begins_[part][worker], end = begins_[part][worker + 1];
    if (row_bytes_[part] == 0 && tensors_[part]->dtype() == tf::DT_STRING) {
      return WordsOfStrings(StringsOf(*tensors_[part]), begin, end);
    }
    return WordsOfBytes((end - begin) * WireRowBytes(row_bytes_[part], attributes_->wires[part]));
  }
  uint64_t WordsTo(size_t worker) const {
    uint64_t words = 0;
    // A worker's own share does not travel: UnpackMessages takes it from the parts that were
    // packed.
    if (static_cast<int64_t>(worker) == attributes_->rank) return words;
    for (size_t part = 0; part < tensors_.size(); ++part) words += WordsTo(worker, part);
    return words;
  }

  void Pack(size_t worker, char* message) const {
    if (static_cast<int64_t>(worker) == attributes_->rank) return;
    for (size_t part = 0; part < tensors_.size(); ++part) {
      const size_t begin = begins_[part][worker], end = begins_[part][worker + 1];
      if (tensors_[part]->dtype() == tf::DT_STRING) {
        PackStrings(StringsOf(*tensors_[part]), begin, end, message);
      } else {
        PackRows(static_cast<const char*>(tensors_[part]->data()) + begin * row_bytes_[part],
                 end - begin, row_bytes_[part], attributes_->wires[part], message);
      }
      message += WordsTo(worker, part) * kWordBytes;
    }
  }

 private:
  static size_t RowBytes(const tf::Tensor& tensor) {
    const int64_t numbers = tensor.dims() == 1 ? 1 : tensor.dim_size(1);
    return static_cast<size_t>(numbers * tf::DataTypeSize(tensor.dtype()));
  }

  const PartAttributes* attributes_ = nullptr;
  size_t num_workers_ = 0;
  std::vector<const tf::Tensor*> tensors_;
  std::vector<std::vector<size_t>> begins_;  // row ranges per worker, end included
  std::vector<size_t> row_bytes_;            // 0 for strings
};

absl::Status TooLong(uint64_t words) {
  return InvalidArgumentError("A message to a worker may have at most ", kMaxCapacityWords - 1,
                              " words of 4 bytes: use smaller batches. Received: ", words, ".");
}

class MessageWordsOp final : public StatusOp {
 public:
  explicit MessageWordsOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& counts = context->input(context->num_inputs() - 1);
    PartsOut parts;
    TF_RETURN_IF_ERROR(parts.Read(context, attributes_, counts));
    tf::Tensor* words;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {static_cast<int64_t>(parts.num_workers())}, &words));
    for (size_t worker = 0; worker < parts.num_workers(); ++worker) {
      const uint64_t some = parts.WordsTo(worker);
      // The workers exchange these numbers as int32.
      if (some >= kMaxCapacityWords) return TooLong(some);
      words->flat<int32_t>().data()[worker] = static_cast<int32_t>(some);
    }
    return absl::OkStatus();
  }

  PartAttributes attributes_;
};

class PlanExchangeOp final : public StatusOp {
 public:
  explicit PlanExchangeOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_workers", 1, kMostWorkers, &num_workers_));
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_tables", 1, kMostTables, &num_tables_));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "rank", 0, num_workers_ - 1, &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("reply_tables", &reply_tables_));
    OP_REQUIRES_OK(construction, construction->GetAttr("reply_row_bytes", &reply_row_bytes_));
    OP_REQUIRES(construction, reply_row_bytes_.size() == reply_tables_.size(),
                InvalidArgumentError("`reply_row_bytes` must have one number for each of ",
                                     "`reply_tables`. Received: ", reply_row_bytes_.size(), " for ",
                                     reply_tables_.size(), "."));
    for (size_t part = 0; part < reply_tables_.size(); ++part) {
      const int64_t table = reply_tables_[part], bytes = reply_row_bytes_[part];
      OP_REQUIRES(construction, table >= 0 && table < num_tables_ && bytes >= 0,
                  InvalidArgumentError("`reply_tables` must be from 0 to ", num_tables_ - 1,
                                       ", and `reply_row_bytes` from 0. Received: ", table, " and ",
                                       bytes, "."));
    }
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& gathered = context->input(0);
    TF_RETURN_IF_ERROR(CheckRank(gathered, "gathered", 1));
    // Can't overflow: kMostTables and kMostWorkers bound the product below 2^49.
    const int64_t of_worker = (num_tables_ + 1) * num_workers_;
    if (gathered.NumElements() != of_worker * num_workers_) {
      return InvalidArgumentError("`gathered` must have ", of_worker, " numbers of each worker. ",
                                  "Received: ", gathered.NumElements(), " numbers of ",
                                  num_workers_, " workers.");
    }
    const int32_t* const numbers = gathered.flat<int32_t>().data();
    uint64_t most = 0, most_in_reply = 0;
    for (int64_t from = 0; from < num_workers_; ++from) {
      const int32_t* const of_from = numbers + from * of_worker;
      for (int64_t to = 0; to < num_workers_; ++to) {
        uint64_t reply = 0;
        for (int64_t table = 0; table < num_tables_; ++table) {
          const int64_t count = of_from[table * num_workers_ + to];
          if (count < 0) return Damaged(from, count);
        }
        for (size_t part = 0; part < reply_tables_.size(); ++part) {
          const int32_t count = of_from[reply_tables_[part] * num_workers_ + to];
          reply += WordsOfBytes(static_cast<uint64_t>(count) *
                                static_cast<uint64_t>(reply_row_bytes_[part]));
        }
        // A worker sends no reply to itself.
        if (from == to) reply = 0;
        const int64_t words = of_from[num_tables_ * num_workers_ + to];
        if (words < 0) return Damaged(from, words);
        most = std::max(most, static_cast<uint64_t>(words));
        most_in_reply = std::max(most_in_reply, reply);
      }
    }
    if (most_in_reply >= kMaxCapacityWords) return TooLong(most_in_reply);
    // All workers see the same gathered numbers, so they compute the same capacities without
    // another exchange. There are fewer than 256 sizes, because TensorFlow never forgets the shape
    // under the key of a collective.
    TF_RETURN_IF_ERROR(Give(context, 0, CapacityFor(most)));
    TF_RETURN_IF_ERROR(Give(context, 2, CapacityFor(most_in_reply)));
    tf::Tensor* received;
    TF_RETURN_IF_ERROR(context->allocate_output(4, {num_tables_, num_workers_}, &received));
    int32_t* to = received->flat<int32_t>().data();
    for (int64_t table = 0; table < num_tables_; ++table) {
      for (int64_t from = 0; from < num_workers_; ++from) {
        *to++ = numbers[from * of_worker + table * num_workers_ + rank_];
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Give(tf::OpKernelContext* context, int output, const Capacity& capacity) {
    TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, output, capacity.words));
    return GiveScalar<int32_t>(context, output + 1, capacity.number);
  }

  static absl::Status Damaged(int64_t from, int64_t number) {
    return InvalidArgumentError("`gathered` must have numbers from 0. Received: ", number,
                                " of worker ", from, ".");
  }

  int64_t num_workers_ = 1;
  int64_t num_tables_ = 1;
  int64_t rank_ = 0;
  std::vector<int64_t> reply_tables_;
  std::vector<int64_t> reply_row_bytes_;
};

class PackMessagesOp final : public StatusOp {
 public:
  explicit PackMessagesOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& counts = context->input(context->num_inputs() - 2);
    int64_t capacity;
    TF_RETURN_IF_ERROR(
        ReadScalar(context->input(context->num_inputs() - 1), "capacity", &capacity));
    if (capacity < 0 || capacity > static_cast<int64_t>(kMaxCapacityWords)) {
      return InvalidArgumentError("`capacity` must be from 0 to ", kMaxCapacityWords,
                                  ". Received: ", capacity, ".");
    }
    PartsOut parts;
    TF_RETURN_IF_ERROR(parts.Read(context, attributes_, counts));
    const size_t words = static_cast<size_t>(capacity);
    for (size_t worker = 0; worker < parts.num_workers(); ++worker) {
      // A plan of other counts than these would overrun the message.
      if (parts.WordsTo(worker) > words) {
        return InvalidArgumentError("`capacity` must have room for each message. Received: ",
                                    capacity, " words for ", parts.WordsTo(worker), ".");
      }
    }
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(AddAxis(static_cast<int64_t>(parts.num_workers()), &shape));
    TF_RETURN_IF_ERROR(AddAxis(capacity, &shape));
    tf::Tensor* messages;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &messages));
    char* const out = static_cast<char*>(messages->data());
    const auto pack = [&](size_t begin, size_t end) {
      for (size_t worker = begin; worker < end; ++worker) {
        char* const message = out + worker * words * kWordBytes;
        const size_t used = static_cast<size_t>(parts.WordsTo(worker)) * kWordBytes;
        parts.Pack(worker, message);
        // The padding travels too. It must not carry this process's memory to others.
        std::fill(message + used, message + words * kWordBytes, '\0');
      }
    };
    const size_t cost = static_cast<size_t>(words * kWordBytes / kBytesPerNanosecond) + 1;
    ExecContextOf(context).parallel_for(parts.num_workers(), cost, std::cref(pack));
    return absl::OkStatus();
  }

  PartAttributes attributes_;
};

class UnpackMessagesOp final : public StatusOp {
 public:
  explicit UnpackMessagesOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("widths", &widths_));
    OP_REQUIRES(construction, widths_.size() == attributes_.types.size(),
                InvalidArgumentError("`widths` must have one number for each part. Received: ",
                                     widths_.size(), " for ", attributes_.types.size(), " parts."));
    for (size_t part = 0; part < widths_.size(); ++part) {
      const bool is_string = attributes_.types[part] == tf::DT_STRING;
      OP_REQUIRES(construction, widths_[part] >= 0 && (!is_string || widths_[part] == 0),
                  InvalidArgumentError("`widths` must be from 0, and 0 for strings. Received: ",
                                       widths_[part], " for part ", part, "."));
    }
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& messages = context->input(0);
    const tf::Tensor& counts = context->input(1);
    TF_RETURN_IF_ERROR(CheckRank(messages, "messages", 2));
    TF_RETURN_IF_ERROR(attributes_.CheckCounts(counts));
    if (messages.dim_size(0) != counts.dim_size(1)) {
      return InvalidArgumentError(
          "`messages` must have one row for each worker. Received: ", messages.dim_size(0),
          " rows for ", counts.dim_size(1), " workers.");
    }
    const size_t num_parts = attributes_.types.size();
    const size_t num_workers = static_cast<size_t>(messages.dim_size(0));
    const uint64_t capacity = static_cast<uint64_t>(messages.dim_size(1));
    const char* const in = static_cast<const char*>(messages.data());
    std::vector<size_t> own;  // first own row of each part
    TF_RETURN_IF_ERROR(ReadOwn(context, counts, &own));

    // Compare the claimed counts with the message size before allocating: corrupt counts must not
    // cause a huge allocation.
    for (size_t worker = 0; worker < num_workers; ++worker) {
      uint64_t words = 0;
      if (static_cast<int64_t>(worker) == attributes_.rank) continue;
      for (size_t part = 0; part < num_parts; ++part) {
        const uint64_t count = static_cast<uint64_t>(attributes_.CountsOf(part, counts)[worker]);
        words += WordsOfBytes(count * LeastBytes(part));
        if (words > capacity) return TooShort(capacity, worker);
      }
    }
    std::vector<tf::Tensor*> outputs(num_parts);
    for (size_t part = 0; part < num_parts; ++part) {
      const int32_t* const numbers = attributes_.CountsOf(part, counts);
      int64_t rows = 0;
      for (size_t worker = 0; worker < num_workers; ++worker) rows += numbers[worker];
      tf::TensorShape shape;
      TF_RETURN_IF_ERROR(AddAxis(rows, &shape));
      if (widths_[part] > 0) TF_RETURN_IF_ERROR(AddAxis(widths_[part], &shape));
      TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(part), shape, &outputs[part]));
    }
    std::vector<size_t> at(num_parts, 0);  // next row of each part
    for (size_t worker = 0; worker < num_workers; ++worker) {
      const char* const message = in + worker * capacity * kWordBytes;
      uint64_t word = 0;
      for (size_t part = 0; part < num_parts; ++part) {
        const size_t count = static_cast<size_t>(attributes_.CountsOf(part, counts)[worker]);
        const char* const from = message + word * kWordBytes;
        uint64_t words = 0;
        if (static_cast<int64_t>(worker) == attributes_.rank) {
          CopyOwn(context->input(2 + static_cast<int>(part)), own[part], count, at[part],
                  outputs[part]);
        } else if (attributes_.types[part] == tf::DT_STRING) {
          tf::tstring* const to = outputs[part]->flat<tf::tstring>().data() + at[part];
          TF_RETURN_IF_ERROR(ToTensorFlow(UnpackStrings(
              from, capacity - word, count,
              [to](size_t i, std::string_view string) {
                to[i].assign(string.data(), string.size());
              },
              &words)));
        } else {
          const size_t bytes = RowBytes(part);
          words = WordsOfBytes(count * WireRowBytes(bytes, attributes_.wires[part]));
          // Strings before this part may have taken more than the minimum that was checked above.
          if (words > capacity - word) return TooShort(capacity, worker);
          UnpackRows(from, count, bytes, attributes_.wires[part],
                     static_cast<char*>(outputs[part]->data()) + at[part] * bytes);
        }
        word += words;
        at[part] += count;
      }
    }
    return absl::OkStatus();
  }

  // Reads and checks the parts packed by this worker. `own` [parts] receives the start of its
  // share.
  absl::Status ReadOwn(tf::OpKernelContext* context, const tf::Tensor& counts,
                       std::vector<size_t>* own) const {
    const size_t num_own = static_cast<size_t>(context->num_inputs() - 3);
    const size_t wanted = attributes_.rank < 0 ? 0 : attributes_.types.size();
    if (num_own != wanted) {
      return InvalidArgumentError("`own` must have ", wanted, " parts. Received: ", num_own, ".");
    }
    if (num_own == 0) return absl::OkStatus();
    const tf::Tensor& own_counts = context->input(context->num_inputs() - 1);
    TF_RETURN_IF_ERROR(attributes_.CheckCounts(own_counts));
    for (size_t part = 0; part < num_own; ++part) {
      const tf::Tensor& tensor = context->input(2 + static_cast<int>(part));
      const bool is_matrix = widths_[part] > 0;
      if (tensor.dtype() != attributes_.types[part] || tensor.dims() != (is_matrix ? 2 : 1) ||
          (is_matrix && tensor.dim_size(1) != widths_[part])) {
        return InvalidArgumentError(
            "`own` must have parts of `part_types` and `widths`. Received: ",
            tf::DataTypeString(tensor.dtype()), " of shape ", tensor.shape().DebugString(),
            " as part ", part, ".");
      }
      const int32_t* const numbers = attributes_.CountsOf(part, own_counts);
      int64_t begin = 0, size = 0;
      // This worker's share begins behind the shares of all workers with a lower number.
      for (int64_t worker = 0; worker < own_counts.dim_size(1); ++worker) {
        if (worker < attributes_.rank) begin += numbers[worker];
        size += numbers[worker];
      }
      if (size != tensor.dim_size(0) ||
          numbers[attributes_.rank] != attributes_.CountsOf(part, counts)[attributes_.rank]) {
        return InvalidArgumentError(
            "`own_counts` must be those that `own` was packed with, and be ",
            "equal to `counts` for the worker itself. Received: ", size, " rows for ",
            tensor.dim_size(0), " in part ", part, ".");
      }
      own->push_back(static_cast<size_t>(begin));
    }
    return absl::OkStatus();
  }

  static void CopyOwn(const tf::Tensor& own, size_t begin, size_t count, size_t at,
                      tf::Tensor* part) {
    if (own.dtype() == tf::DT_STRING) {
      std::copy_n(own.flat<tf::tstring>().data() + begin, count,
                  part->flat<tf::tstring>().data() + at);
      return;
    }
    const size_t width = own.dims() == 2 ? static_cast<size_t>(own.dim_size(1)) : 1;
    const size_t bytes = width * static_cast<size_t>(tf::DataTypeSize(own.dtype()));
    std::copy_n(static_cast<const char*>(own.data()) + begin * bytes, count * bytes,
                static_cast<char*>(part->data()) + at * bytes);
  }

  size_t RowBytes(size_t part) const {
    return static_cast<size_t>(std::max<int64_t>(widths_[part], 1)) *
           static_cast<size_t>(tf::DataTypeSize(attributes_.types[part]));
  }
  // The minimum size of a row in a message, in bytes.
  size_t LeastBytes(size_t part) const {
    return attributes_.types[part] == tf::DT_STRING
               ? kWordBytes
               : WireRowBytes(RowBytes(part), attributes_.wires[part]);
  }

  static absl::Status TooShort(uint64_t capacity, size_t worker) {
    return InvalidArgumentError("`messages` must have room for what `counts` says is in them. ",
                                "Received: ", capacity, " words, which is too few for worker ",
                                worker, ".");
  }

  PartAttributes attributes_;
  std::vector<int64_t> widths_;
};

const Kernels<MessageWordsOp> message_words("TfEmbedMessageWords");
const Kernels<PlanExchangeOp> plan_exchange("TfEmbedPlanExchange");
const Kernels<PackMessagesOp> pack_messages("TfEmbedPackMessages");
const Kernels<UnpackMessagesOp> unpack_messages("TfEmbedUnpackMessages");

}  // namespace
}  // namespace tf_embed
