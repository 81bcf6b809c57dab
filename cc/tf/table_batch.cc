// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_batch.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "cc/core/files/table_meta.h"
#include "cc/core/rows/quantized_row.h"
#include "cc/tf/op_inputs.h"

namespace tf_embed {

namespace tf = ::tensorflow;

// The header of a packed batch. Pieces, offsets, keys and weights follow, two weights to a word.
struct TableBatch::Header {
  int64_t num_words;  // total length
  int64_t size;
  int64_t num_keys;
  int64_t num_bags;
  int64_t num_pieces;
  int64_t is_weighted;
};

namespace {

constexpr int64_t kHeaderWords = 6;
constexpr int64_t kPieceWords = sizeof(Piece) / sizeof(int64_t);

int64_t WeightWords(int64_t num_keys) { return num_keys / 2 + num_keys % 2; }

struct Range {
  int64_t begin, end;
};

// A number in two of the ranges; -1 if they are disjoint. Sorts the ranges.
int64_t FirstInTwo(std::vector<Range>* ranges) {
  const auto before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  // Ranges are usually sorted, and then the check is a single pass.
  if (!std::is_sorted(ranges->begin(), ranges->end(), before)) {
    std::sort(ranges->begin(), ranges->end(), before);
  }
  int64_t end = 0;
  for (const Range& range : *ranges) {
    if (range.begin < end && range.begin < range.end) return range.begin;
    end = std::max(end, range.end);
  }
  return -1;
}

// The number of values from the start of a piece's first row to the end of its last row.
int64_t Extent(const Piece& piece, int64_t dim) {
  return (piece.num_bags - 1) * piece.stride + dim;
}

// Merges pieces with adjacent rows into a range, which leaves few ranges in most batches. Pieces
// merge, in order of `begin`, if they have equal bag counts and strides and fit between two rows of
// the first piece.
std::vector<Range> Blocks(std::vector<const Piece*> pieces, const std::vector<int64_t>& dims) {
  const auto before = [](const Piece* a, const Piece* b) { return a->begin < b->begin; };
  if (!std::is_sorted(pieces.begin(), pieces.end(), before)) {
    std::sort(pieces.begin(), pieces.end(), before);
  }
  std::vector<Range> blocks;
  const Piece* first = nullptr;
  int64_t row_end = 0;  // of the previous piece
  for (const Piece* const piece : pieces) {
    const int64_t dim = dims[static_cast<size_t>(piece->table)];
    const bool is_beside = first != nullptr && piece->stride == first->stride &&
                           piece->num_bags == first->num_bags && piece->begin >= row_end &&
                           piece->begin + dim - first->begin <= first->stride;
    row_end = piece->begin + dim;
    if (is_beside) {
      blocks.back().end = piece->begin + Extent(*piece, dim);
      continue;
    }
    first = piece;
    blocks.push_back({piece->begin, piece->begin + Extent(*piece, dim)});
  }
  return blocks;
}

// A pooled value claimed by two rows; -1 if there is none.
int64_t FirstValueInTwo(const std::vector<Piece>& pieces, const std::vector<int64_t>& dims) {
  std::vector<const Piece*> some;
  for (const Piece& piece : pieces) {
    if (piece.num_bags > 0) some.push_back(&piece);
  }
  std::vector<Range> ranges = Blocks(some, dims);
  if (FirstInTwo(&ranges) < 0) return -1;
  ranges.clear();  // merged ranges may overlap although no rows do
  for (const Piece* const piece : some) {
    for (int64_t bag = 0; bag < piece->num_bags; ++bag) {
      const int64_t begin = piece->begin + bag * piece->stride;
      ranges.push_back({begin, begin + dims[static_cast<size_t>(piece->table)]});
    }
  }
  return FirstInTwo(&ranges);
}

// A bag claimed by two pieces; -1 if there is none.
int64_t FirstBagInTwo(const std::vector<Piece>& pieces) {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces) {
    ranges.push_back({piece.first_bag, piece.first_bag + piece.num_bags});
  }
  return FirstInTwo(&ranges);
}

}  // namespace

absl::Status TableBatch::Read(tf::OpKernelContext* context, const std::vector<int64_t>& dims,
                              int64_t size) {
  const tf::Tensor *indices, *offsets, *pieces;
  TF_RETURN_IF_ERROR(context->input("indices", &indices));
  TF_RETURN_IF_ERROR(context->input("offsets", &offsets));
  TF_RETURN_IF_ERROR(context->input("pieces", &pieces));
  tf::OpInputList weights;
  TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
  TF_RETURN_IF_ERROR(CheckRank(*indices, "indices", 1));
  TF_RETURN_IF_ERROR(CheckRank(*offsets, "offsets", 1));
  if (size < 0) return InvalidArgumentError("`size` must not be negative. Received: ", size, ".");
  num_keys_ = indices->NumElements();
  keys_ = indices->flat<int64_t>().data();
  if (weights.size() > 0) {
    if (weights[0].NumElements() != num_keys_) {
      return InvalidArgumentError("`weights` must have one for each of ", num_keys_,
                                  " indices. Received: ", weights[0].NumElements(), ".");
    }
    weights_ = weights[0].flat<float>().data();
  }
  offsets_ = offsets->flat<int64_t>().data();
  num_bags_ = offsets->NumElements() - 1;
  size_ = size;
  if (pieces->dims() != 2 || pieces->dim_size(1) != Piece::kGiven) {
    return InvalidArgumentError(
        "`pieces` must have shape [n, 5]. Received: ", pieces->shape().DebugString(), ".");
  }
  pieces_.resize(static_cast<size_t>(pieces->dim_size(0)));
  const int64_t* numbers = pieces->flat<int64_t>().data();
  for (Piece& piece : pieces_) {
    std::memcpy(&piece, numbers, Piece::kGiven * sizeof(int64_t));
    numbers += Piece::kGiven;
  }
  return Check(dims);
}

size_t TableBatch::PackedSize() const {
  const int64_t weight_words = is_weighted() ? WeightWords(num_keys_) : 0;
  return static_cast<size_t>(kHeaderWords + num_bags_ + 1 + num_keys_ + weight_words) +
         pieces_.size() * kPieceWords;
}

// The header, the pieces and the offsets.
std::vector<int64_t> TableBatch::Head() const {
  const Header header{static_cast<int64_t>(PackedSize()),
                      size_,
                      num_keys_,
                      num_bags_,
                      static_cast<int64_t>(pieces_.size()),
                      is_weighted() ? 1 : 0};
  static_assert(sizeof(header) == kHeaderWords * sizeof(int64_t), "words");
  std::vector<int64_t> head(kHeaderWords + pieces_.size() * kPieceWords);
  std::memcpy(head.data(), &header, sizeof(header));
  if (!pieces_.empty()) {
    std::memcpy(head.data() + kHeaderWords, pieces_.data(), pieces_.size() * sizeof(Piece));
  }
  head.insert(head.end(), offsets_, offsets_ + num_bags_ + 1);
  return head;
}

void TableBatch::Pack(int64_t* words) const {
  const std::vector<int64_t> head = Head();
  words = std::copy(head.begin(), head.end(), words);
  words = std::copy_n(keys_, num_keys_, words);
  if (!is_weighted() || num_keys_ == 0) return;
  // An odd number of weights leaves half a word, which would otherwise be uninitialized memory.
  words[WeightWords(num_keys_) - 1] = 0;
  std::memcpy(words, weights_, static_cast<size_t>(num_keys_) * sizeof(float));
}

absl::Status TableBatch::PackOnGpu(const ExecContext& exec, DeviceMemory* memory,
                                   int64_t* words) const {
  const std::vector<int64_t> head = Head();
  const size_t num_keys = static_cast<size_t>(num_keys_);
  TF_RETURN_IF_ERROR(
      ToTensorFlow(memory->CopyIn(exec, head.data(), head.size() * sizeof(int64_t), words)));
  words += head.size();
  TF_RETURN_IF_ERROR(
      ToTensorFlow(memory->CopyWithin(exec, keys_, num_keys * sizeof(int64_t), words)));
  if (!is_weighted() || num_keys == 0) return absl::OkStatus();
  words += num_keys;
  const int64_t zero = 0;  // as in Pack
  TF_RETURN_IF_ERROR(
      ToTensorFlow(memory->CopyIn(exec, &zero, sizeof(zero), words + WeightWords(num_keys_) - 1)));
  return ToTensorFlow(memory->CopyWithin(exec, weights_, num_keys * sizeof(float), words));
}

absl::Status TableBatch::Open(const int64_t* head, size_t head_size, const int64_t* words,
                              size_t count, size_t* used) {
  const int64_t most = static_cast<int64_t>(count);
  Header header{};
  bool good = head_size >= static_cast<size_t>(kHeaderWords);
  if (good) {
    std::memcpy(&header, head, sizeof(header));
    const auto in_range = [most](int64_t number) { return number >= 0 && number <= most; };
    good = in_range(header.num_words) && in_range(header.num_keys) && in_range(header.num_bags) &&
           in_range(header.num_pieces) && header.size >= 0 &&
           kHeaderWords + kPieceWords * header.num_pieces <= static_cast<int64_t>(head_size);
  }
  if (good) {
    num_keys_ = header.num_keys;
    num_bags_ = header.num_bags;
    size_ = header.size;
    offsets_ = words + kHeaderWords + kPieceWords * header.num_pieces;
    keys_ = offsets_ + num_bags_ + 1;
    const int64_t* const behind_keys = keys_ + num_keys_;
    weights_ = header.is_weighted != 0 ? reinterpret_cast<const float*>(behind_keys) : nullptr;
    const int64_t weight_words = header.is_weighted != 0 ? WeightWords(num_keys_) : 0;
    good = behind_keys + weight_words == words + header.num_words;
  }
  if (!good) {
    return InvalidArgumentError("`batch` must be what TfEmbedPackBatch gave. Received: ", count,
                                " words that are not.");
  }
  pieces_.resize(static_cast<size_t>(header.num_pieces));
  if (!pieces_.empty()) {
    std::memcpy(pieces_.data(), head + kHeaderWords, pieces_.size() * sizeof(Piece));
  }
  *used = static_cast<size_t>(header.num_words);
  return absl::OkStatus();
}

absl::Status TableBatch::Unpack(const int64_t* words, size_t count,
                                const std::vector<int64_t>& dims, size_t* used) {
  TF_RETURN_IF_ERROR(Open(words, count, words, count, used));
  return Check(dims);
}

absl::Status TableBatch::UnpackOnGpu(const ExecContext& exec, DeviceMemory* memory,
                                     const int64_t* words, size_t count,
                                     const std::vector<int64_t>& dims, size_t* used) {
  constexpr size_t kPiecesAtOnce = 100;  // copied with the header
  std::vector<int64_t> head(
      std::min(count, static_cast<size_t>(kHeaderWords) + kPiecesAtOnce * kPieceWords));
  const auto read = [&] {
    return ToTensorFlow(memory->CopyOut(exec, words, head.size() * sizeof(int64_t), head.data()));
  };
  TF_RETURN_IF_ERROR(read());
  Header header{};
  if (head.size() >= static_cast<size_t>(kHeaderWords)) {
    std::memcpy(&header, head.data(), sizeof(header));
  }
  // The number is read from the tensor; a corrupt number must not cause a huge allocation.
  const size_t most_pieces = count / kPieceWords;
  const size_t pieces = header.num_pieces < 0 ? 0 : static_cast<size_t>(header.num_pieces);
  if (pieces > kPiecesAtOnce && pieces <= most_pieces) {
    head.resize(std::min(count, static_cast<size_t>(kHeaderWords) + pieces * kPieceWords));
    TF_RETURN_IF_ERROR(read());
  }
  TF_RETURN_IF_ERROR(Open(head.data(), head.size(), words, count, used));
  for (const Piece& piece : pieces_) {
    if (piece.first_key >= 0 && piece.num_keys >= 0 &&
        piece.first_key <= num_keys_ - piece.num_keys) {
      continue;
    }
    return InvalidArgumentError("`batch` must be what TfEmbedPackBatch gave. Received: a piece of ",
                                piece.num_keys, " keys from ", piece.first_key, " of ", num_keys_,
                                ".");
  }
  // The offsets stay on the GPU unchecked. The kernels clamp them to the keys of their piece, which
  // were checked above.
  return CheckPieces(dims);
}

void TableBatch::AddSplits(const Piece& piece, std::vector<int64_t>* splits) const {
  // Pieces of several batches are joined, so splits continue from the last split.
  const int64_t shift = splits->back() - piece.first_key;
  for (int64_t bag = 1; bag <= piece.num_bags; ++bag) {
    splits->push_back(offsets(piece)[bag] + shift);
  }
}

absl::Status TableBatch::Check(const std::vector<int64_t>& dims) {
  TF_RETURN_IF_ERROR(CheckOffsets());
  TF_RETURN_IF_ERROR(CheckPieces(dims));
  for (Piece& piece : pieces_) {
    piece.first_key = offsets(piece)[0];
    piece.num_keys = offsets(piece)[piece.num_bags] - piece.first_key;
  }
  return absl::OkStatus();
}

absl::Status TableBatch::CheckPieces(const std::vector<int64_t>& dims) const {
  int64_t covered = 0;
  for (const Piece& piece : pieces_) {
    TF_RETURN_IF_ERROR(CheckPiece(piece, dims));
    const int64_t dim = dims[static_cast<size_t>(piece.table)];
    // A division, because the product may overflow.
    if (piece.num_bags > (size_ - covered) / dim) {
      return InvalidArgumentError("`pieces` must cover each of ", size_,
                                  " pooled values once. Received: pieces of more.");
    }
    covered += piece.num_bags * dim;
  }
  if (covered != size_) {
    return InvalidArgumentError("`pieces` must cover all of ", size_,
                                " pooled values. Received: pieces of ", covered, ".");
  }
  if (const int64_t value = FirstValueInTwo(pieces_, dims); value >= 0) {
    return InvalidArgumentError("`pieces` must cover each of ", size_,
                                " pooled values once. Received: value ", value, " twice.");
  }
  if (const int64_t bag = FirstBagInTwo(pieces_); bag >= 0) {
    return InvalidArgumentError("`pieces` must have each bag once. Received: bag ", bag, " twice.");
  }
  return absl::OkStatus();
}

absl::Status TableBatch::CheckOffsets() const {
  if (num_bags_ < 0 || offsets_[0] != 0 || offsets_[num_bags_] != num_keys_) {
    return InvalidArgumentError(
        "`offsets` must go from 0 to the number of indices, ", num_keys_,
        ". Received: ", num_bags_ + 1, " offsets",
        num_bags_ < 0 ? "" : absl::StrCat(" from ", offsets_[0], " to ", offsets_[num_bags_]), ".");
  }
  const int64_t* const wrong =
      std::adjacent_find(offsets_, offsets_ + num_bags_ + 1, std::greater<int64_t>());
  if (wrong == offsets_ + num_bags_ + 1) return absl::OkStatus();
  return InvalidArgumentError("`offsets` must not decrease. Received: ", wrong[0], " and then ",
                              wrong[1], " at ", wrong - offsets_ + 1, ".");
}

absl::Status TableBatch::CheckPiece(const Piece& piece, const std::vector<int64_t>& dims) const {
  const bool of_a_table = piece.table >= 0 && piece.table < static_cast<int64_t>(dims.size());
  const int64_t dim = of_a_table ? dims[static_cast<size_t>(piece.table)] : 0;
  const bool has_bags =
      piece.first_bag >= 0 && piece.num_bags >= 0 && piece.first_bag <= num_bags_ - piece.num_bags;
  // Written as differences and quotients of checked numbers, because the products may overflow.
  const bool has_room = has_bags && piece.begin >= 0 && piece.stride >= dim && dim >= 1 &&
                        piece.begin <= size_ - dim &&
                        piece.num_bags - 1 <= (size_ - dim - piece.begin) / piece.stride;
  if (of_a_table && has_bags && (has_room || piece.num_bags == 0)) return absl::OkStatus();
  return InvalidArgumentError("`pieces` must be of ", dims.size(), " tables, ", num_bags_,
                              " bags and ", size_, " pooled values. Received: table ", piece.table,
                              ", ", piece.num_bags, " bags from ", piece.first_bag,
                              ", values from ", piece.begin, " by ", piece.stride, ".");
}

TableBatchOp::TableBatchOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
  std::string combiner;
  if (construction->HasAttr("combiner")) {
    OP_REQUIRES_OK(construction, construction->GetAttr("combiner", &combiner));
  }
  OP_REQUIRES_OK(construction, CheckListLengths(construction));
  OP_REQUIRES_OK(construction, ReadDims(construction, &dims_));
  for (const char* const name : {"row_dtypes", "sum_dtypes", "distinct_dtypes"}) {
    if (!construction->HasAttr(name)) continue;
    tf::DataTypeVector types;
    OP_REQUIRES_OK(construction, ReadOneEach(construction, name, dims_.size(), &types));
  }
  if (!combiner.empty()) {
    OP_REQUIRES(
        construction, FindByName(kManyTablesCombinerNames, combiner, &combiner_),
        InvalidArgumentError("`combiner` must be one of ", QuotedNames(kManyTablesCombinerNames),
                             ". Received: ", combiner, "."));
  }
  if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) {
    gpu_memory_ = MemoryOfStores(GpuOf(construction));
  }
}

bool TableBatchOp::IsOnGpu(tf::OpKernelContext* context, const char* input) const {
  int begin = 0, end = 0;
  return InputRange(input, &begin, &end).ok() && begin < end &&
         context->input_memory_type(begin) == tf::DEVICE_MEMORY && gpu_memory_ != nullptr;
}

void TableBatchOp::Compute(tf::OpKernelContext* context) {
  try {
    absl::Status status = Run(context);
    if (gpu_memory_ != nullptr) status = WithMemoryAdvice(std::move(status));
    OP_REQUIRES_OK(context, std::move(status));
  } catch (const std::bad_alloc&) {
    context->CtxFailure(ResourceExhaustedError("No memory for a batch of many tables."));
  }
}

absl::Status TableBatchOp::LookUp(tf::OpKernelContext* context, Resources* tables) const {
  tf::OpInputList handles;
  TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
  tables->resize(dims_.size());
  for (size_t i = 0; i < dims_.size(); ++i) {
    const tf::Tensor& handle = handles[static_cast<int>(i)];
    TF_RETURN_IF_ERROR(LookUpTable(context, handle, "tables", &(*tables)[i]));
    const TableResource::Signature& signature = (*tables)[i]->signature();
    if (gpu_memory_ != nullptr && !(*tables)[i]->is_on_device()) {
      return InvalidArgumentError("Table '", (*tables)[i]->name(),
                                  "' of a batch on a GPU must be on it too.");
    }
    const bool quantized = signature.value_dtype == tf::DT_INT8;
    const int64_t width = dims_[i] + (quantized ? static_cast<int64_t>(kQuantizedTail) : 0);
    if (signature.dim == width && signature.key_dtype == tf::DT_INT64 &&
        signature.value_dtype != tf::DT_DOUBLE) {
      continue;
    }
    return InvalidArgumentError("Table ", i, " of a batch must have int64 keys, dim ", width,
                                " and rows that are pooled in float. Received: '",
                                (*tables)[i]->name(), "', ", signature.DebugString(), ".");
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
