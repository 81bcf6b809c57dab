// SPDX-License-Identifier: Apache-2.0
// FindPooledTables: a pooled lookup in many tables. SumByKeyTables turns the gradient of the pooled
// rows into summed gradients by key. ApplyTables trains the tables with it. Its batch has the
// packed form of PackBatch.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/pooling/key_sums.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/store/store_locks.h"
#include "cc/core/table/paused_tables.h"
#include "cc/tf/for_each_table.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/rule_attributes.h"
#include "cc/tf/table_batch.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class FindPooledTablesOp : public TableBatchOp {
 public:
  explicit FindPooledTablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
    OP_REQUIRES_OK(construction, ReadFound(construction, 1, &gives_found_));
  }

 private:
  // The tables, and a find for each piece.
  struct Finds {
    Resources tables;
    std::vector<Moment> moments;  // of each table's clock
    std::vector<std::vector<int64_t>> splits;
    std::vector<std::unique_ptr<Bags>> bags;
    TableBatch batch;
    std::vector<PooledFind> finds;  // one for each piece
    bool on_gpu = false;
  };

  // Reads all inputs except the pooled values, which number `size`.
  absl::Status ReadFinds(tf::OpKernelContext* context, int64_t size, Finds* all) {
    TF_RETURN_IF_ERROR(LookUp(context, &all->tables));
    TF_RETURN_IF_ERROR(all->batch.Read(context, dims_, size));
    all->on_gpu = IsOnGpu(context, "indices");
    const size_t count = all->batch.pieces().size();
    for (const auto& table : all->tables) all->moments.push_back(table->clock()->Now());
    // One vector for each piece, sized before the loop: finds keep pointers into them.
    all->splits.assign(count, {0});
    all->finds.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = all->batch.pieces()[i];
      const Table& table = *all->tables[static_cast<size_t>(piece.table)];
      std::vector<int64_t>& splits = all->splits[i];
      all->batch.AddSplits(piece, &splits);
      all->bags.push_back(std::make_unique<Bags>(HostAllocator()));
      TF_RETURN_IF_ERROR(ToTensorFlow(all->bags[i]->OfSplits(splits.data(), splits.size(),
                                                             static_cast<size_t>(piece.num_keys))));
      PooledFind& find = all->finds[i];
      find.keys = {all->batch.keys(piece), nullptr, false, table.stores(all->on_gpu),
                   table.num_shards()};
      find.bags = all->bags[i].get();
      find.pooling = {combiner_, all->batch.weights(piece), nullptr};
      find.stride = static_cast<size_t>(piece.stride);
      find.now = &all->moments[static_cast<size_t>(piece.table)];
      find.quantized = table.value_type() == DataType::kInt8;
    }
    return absl::OkStatus();
  }

  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* size;
    int64_t num_values;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_values));
    Finds all;
    TF_RETURN_IF_ERROR(ReadFinds(context, num_values, &all));
    tf::Tensor* pooled;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_values}, &pooled));
    for (size_t i = 0; i < all.finds.size(); ++i) {
      all.finds[i].pooled = pooled->flat<float>().data() + all.batch.pieces()[i].begin;
    }
    if (gives_found_ && context->output_required(1)) {
      TF_RETURN_IF_ERROR(AllocateFound(context, &all));
    }
    const ExecContext exec = all.tables.front()->Now(ExecContextOf(context, training_));
    if (!all.on_gpu) return ToTensorFlow(FindPooled(exec, all.finds.data(), all.finds.size()));
    std::vector<const Table*> tables;
    for (const Piece& piece : all.batch.pieces()) {
      tables.push_back(all.tables[static_cast<size_t>(piece.table)].get());
    }
    return FindPooledOnGpu(exec, tables, all.finds);
  }

  // Allocates the output for the rows of all keys, piece by piece.
  absl::Status AllocateFound(tf::OpKernelContext* context, Finds* all) const {
    const std::vector<Piece>& pieces = all->batch.pieces();
    const auto num_values = [&](const Piece& piece) {
      return piece.num_keys * dims_[static_cast<size_t>(piece.table)];
    };
    int64_t size = 0;
    for (const Piece& piece : pieces) size += num_values(piece);
    tf::Tensor* found;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {size}, &found));
    float* rows = found->flat<float>().data();
    for (size_t i = 0; i < pieces.size(); ++i) {
      all->finds[i].found = rows;
      rows += num_values(pieces[i]);
    }
    return absl::OkStatus();
  }

  bool training_ = false;
  bool gives_found_ = false;
};

const Kernels<FindPooledTablesOp> find_pooled_tables("TfEmbedFindPooledTables",
                                                     {"tables", "offsets", "pieces", "size",
                                                      "tokens"});

constexpr size_t kSumCost = 30;    // rough cost of a key, in nanoseconds
constexpr size_t kApplyCost = 60;  // rough cost of a key, in nanoseconds

// A batch and the gradient of its pooled rows.
struct BatchGradient {
  TableBatch batch;
  const float* values;
};

// The keys of one table over several batches, in order of batches and pieces.
class KeysOfTable {
 public:
  KeysOfTable(const std::deque<BatchGradient>& batches, int64_t table) {
    for (const BatchGradient& gradient : batches) {
      for (const Piece& piece : gradient.batch.pieces()) {
        if (piece.table != table) continue;
        parts_.push_back({&gradient, piece});
        size_ += static_cast<size_t>(piece.num_keys);
        is_weighted_ = is_weighted_ || gradient.batch.is_weighted();
      }
    }
  }

  struct Part {
    const BatchGradient* gradient;
    Piece piece;
    const TableBatch& batch() const { return gradient->batch; }
  };
  const std::vector<Part>& parts() const { return parts_; }
  size_t size() const { return size_; }
  bool is_weighted() const { return is_weighted_; }

  // The keys [size].
  Status Keys(Buffer<int64_t>* own, const int64_t** keys) const {
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(size_));
    // The usual case: one piece, whose keys are used where they are.
    if (parts_.size() == 1) {
      *keys = parts_[0].batch().keys(parts_[0].piece);
      return Status();
    }
    TF_EMBED_RETURN_IF_ERROR(own->Resize(size_));
    int64_t* to = own->data();
    for (const Part& part : parts_) {
      to = std::copy_n(part.batch().keys(part.piece), part.piece.num_keys, to);
    }
    *keys = own->data();
    return Status();
  }

 private:
  std::vector<Part> parts_;
  size_t size_ = 0;
  bool is_weighted_ = false;
};

// The summed gradients of a table's keys.
class SumsOfTable {
 public:
  SumsOfTable(KeysOfTable keys, size_t dim)
      : keys_(std::move(keys)),
        dim_(dim),
        own_keys_(HostAllocator()),
        bags_(HostAllocator()),
        sums_(HostAllocator()) {}

  // Finds the distinct keys.
  Status Build(const ExecContext& exec) {
    const int64_t* keys = nullptr;
    TF_EMBED_RETURN_IF_ERROR(keys_.Keys(&own_keys_, &keys));
    for (const KeysOfTable::Part& part : keys_.parts()) {
      part.batch().AddSplits(part.piece, &splits_);
      if (!keys_.is_weighted()) continue;
      const float* const weights = part.batch().weights(part.piece);
      weights_.insert(weights_.end(), weights, weights + part.piece.num_keys);
    }
    TF_EMBED_RETURN_IF_ERROR(bags_.OfSplits(splits_.data(), splits_.size(), keys_.size()));
    return sums_.Build(exec, keys, keys_.size(), nullptr);
  }

  size_t size() const { return sums_.size(); }

  // Writes the distinct keys [size] and their summed gradients [size, dim].
  Status Write(const ExecContext& exec, Combiner combiner, DataType type, int64_t* distinct,
               void* sums) {
    sums_.WriteKeys(distinct);
    // The gradients of a table's bags, consecutively.
    std::vector<float> rows(bags_.size() * dim_);
    float* to = rows.data();
    for (const KeysOfTable::Part& part : keys_.parts()) {
      const Piece& piece = part.piece;
      for (int64_t bag = 0; bag < piece.num_bags; ++bag, to += dim_) {
        std::copy_n(part.gradient->values + piece.begin + bag * piece.stride, dim_, to);
      }
    }
    const KeyGradients of{rows.data(),
                          DataType::kFloat,
                          dim_,
                          &bags_,
                          {combiner, keys_.is_weighted() ? weights_.data() : nullptr, nullptr}};
    return sums_.WriteSums(exec, of, type, sums);
  }

 private:
  const KeysOfTable keys_;
  const size_t dim_;
  std::vector<int64_t> splits_{0};
  std::vector<float> weights_;
  Buffer<int64_t> own_keys_;
  Bags bags_;
  KeySums sums_;
};

class SumByKeyTablesOp : public TableBatchOp {
 public:
  using TableBatchOp::TableBatchOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* gradient;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    TF_RETURN_IF_ERROR(CheckRank(*gradient, "gradient", 1));
    std::deque<BatchGradient> batches(1);
    TableBatch& batch = batches.front().batch;
    batches.front().values = gradient->flat<float>().data();
    TF_RETURN_IF_ERROR(batch.Read(context, dims_, gradient->NumElements()));
    const size_t num_keys = static_cast<size_t>(batch.num_keys());
    const size_t count = dims_.size();
    std::vector<std::unique_ptr<SumsOfTable>> tables;
    for (size_t i = 0; i < count; ++i) {
      tables.push_back(std::make_unique<SumsOfTable>(KeysOfTable(batches, static_cast<int64_t>(i)),
                                                     static_cast<size_t>(dims_[i])));
    }
    const ExecContext exec = ExecContextOf(context);
    TF_RETURN_IF_ERROR(
        ForEachTable(exec, count, num_keys, kSumCost,
                     [&](const ExecContext& each, size_t i) { return tables[i]->Build(each); }));
    tf::OpOutputList distinct, sums;
    TF_RETURN_IF_ERROR(context->output_list("distinct", &distinct));
    TF_RETURN_IF_ERROR(context->output_list("sums", &sums));
    std::vector<int64_t*> keys(count);
    std::vector<tf::Tensor*> of_keys(count);
    for (size_t i = 0; i < count; ++i) {
      const int number = static_cast<int>(i);
      const int64_t size = static_cast<int64_t>(tables[i]->size());
      tf::Tensor* tensor;
      TF_RETURN_IF_ERROR(distinct.allocate(number, {size}, &tensor));
      keys[i] = tensor->flat<int64_t>().data();
      TF_RETURN_IF_ERROR(sums.allocate(number, {size, dims_[i]}, &of_keys[i]));
    }
    // The outputs were allocated before, because the op's context is not safe to use from several
    // threads.
    return ForEachTable(exec, count, num_keys, kSumCost, [&](const ExecContext& each, size_t i) {
      return tables[i]->Write(each, combiner_, CoreType(of_keys[i]->dtype()), keys[i],
                              of_keys[i]->data());
    });
  }
};

class PackBatchOp : public TableBatchOp {
 public:
  using TableBatchOp::TableBatchOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* size;
    int64_t num_values;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_values));
    TableBatch batch;
    TF_RETURN_IF_ERROR(batch.Read(context, dims_, num_values));
    tf::Tensor* words;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {static_cast<int64_t>(batch.PackedSize())}, &words));
    int64_t* const to = words->flat<int64_t>().data();
    if (IsOnGpu(context, "indices")) {
      return batch.PackOnGpu(ExecContextOf(context), gpu_memory(), to);
    }
    batch.Pack(to);
    return absl::OkStatus();
  }
};

class ApplyTablesOp : public TableBatchOp {
 public:
  explicit ApplyTablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, ReadRuleKind(construction, &kind_));
    OP_REQUIRES_OK(construction, ReadSlotTypes(construction, kind_, &slot_types_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("stochastic_rounding", &stochastic_rounding_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    Resources tables;
    std::deque<BatchGradient> batches;
    std::vector<Rule> rules(dims_.size());
    size_t num_keys = 0;
    TF_RETURN_IF_ERROR(LookUp(context, &tables));
    TF_RETURN_IF_ERROR(ReadBatches(context, &batches));
    TF_RETURN_IF_ERROR(ReadRules(context, tables, &rules));
    for (const BatchGradient& one : batches) num_keys += static_cast<size_t>(one.batch.num_keys());
    std::vector<KeysOfTable> keys;
    std::vector<Moment> moments;
    std::vector<const Table*> written;
    for (const auto& table : tables) written.push_back(table.get());
    const WritingTables writing(std::move(written));
    for (size_t i = 0; i < tables.size(); ++i) {
      keys.emplace_back(batches, static_cast<int64_t>(i));
      // Each table has its own clock, which ends a step even if the table has no keys in this
      // batch.
      moments.push_back(tables[i]->clock()->BeginStep());
    }
    const ExecContext exec = ExecContextOf(context);
    // In turn: each step is queued on the stream and returns at once.
    if (IsOnGpu(context, "batches")) {
      for (size_t i = 0; i < tables.size(); ++i) {
        ExecContext now = exec;
        now.now = moments[i];
        TF_RETURN_IF_ERROR(ToTensorFlow(ApplyOnGpu(now, keys[i], rules[i], OnDevice(*tables[i]))));
      }
      return absl::OkStatus();
    }
    const auto apply = [&](const ExecContext& each, size_t i) {
      ExecContext now = each;
      now.now = moments[i];
      return Apply(now, keys[i], rules[i], tables[i]->store(0));
    };
    const bool has_tiers = std::any_of(tables.begin(), tables.end(), [](const auto& table) {
      return table->store(0)->tiers() != nullptr;
    });
    const size_t count = tables.size();
    if (!AreManyTables(count)) return ForEachTable(exec, count, num_keys, kApplyCost, apply);
    // Not held, because a held table can't move rows between tiers.
    if (has_tiers) return ForEachInTurn(count, exec, apply);
    std::vector<const Store*> shards;
    for (size_t i = 0; i < tables.size(); ++i) {
      Store* const shard = tables[i]->store(0);
      shards.push_back(shard);
      // A held table can't change its rule.
      if (!SameRuleAndInitialValues(shard->rule(), rules[i].slots)) {
        TF_RETURN_IF_ERROR(ToTensorFlow(tables[i]->CheckMaintenance()));
        TF_RETURN_IF_ERROR(ToTensorFlow(shard->maintenance()->SetRule(rules[i].slots)));
      }
    }
    HeldStores held(HostAllocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(held.Take(shards.data(), shards.size(), Held::kWriting)));
    if (held.size() == shards.size()) {
      return ForEachTable(exec.Holding(Held::kWriting), count, num_keys, kApplyCost, apply);
    }
    // A repeated table must not be trained by two threads at once.
    held.Release();
    return ForEachInTurn(count, exec, apply);
  }

  template <typename Apply>
  static absl::Status ForEachInTurn(size_t count, const ExecContext& exec, const Apply& apply) {
    for (size_t i = 0; i < count; ++i) TF_RETURN_IF_ERROR(ToTensorFlow(apply(exec, i)));
    return absl::OkStatus();
  }

  absl::Status ReadBatches(tf::OpKernelContext* context, std::deque<BatchGradient>* batches) const {
    const tf::Tensor *words, *gradients;
    TF_RETURN_IF_ERROR(context->input("batches", &words));
    TF_RETURN_IF_ERROR(context->input("gradients", &gradients));
    TF_RETURN_IF_ERROR(CheckRank(*words, "batches", 1));
    TF_RETURN_IF_ERROR(CheckRank(*gradients, "gradients", 1));
    const int64_t* const begin = words->flat<int64_t>().data();
    const size_t count = static_cast<size_t>(words->NumElements());
    const float* const values = gradients->flat<float>().data();
    const bool on_gpu = IsOnGpu(context, "batches");
    const ExecContext exec = ExecContextOf(context);
    int64_t num_values = 0;
    for (size_t at = 0, used; at < count; at += used) {
      batches->emplace_back();
      BatchGradient& last = batches->back();
      TF_RETURN_IF_ERROR(
          on_gpu ? last.batch.UnpackOnGpu(exec, gpu_memory(), begin + at, count - at, dims_, &used)
                 : last.batch.Unpack(begin + at, count - at, dims_, &used));
      // A subtraction, because the sum may overflow.
      if (last.batch.size() > gradients->NumElements() - num_values) {
        return InvalidArgumentError("`gradients` must be those of all pooled values of `batches`, ",
                                    num_values, " and then ", last.batch.size(),
                                    " or more. Received: ", gradients->NumElements(), ".");
      }
      last.values = values + num_values;
      num_values += last.batch.size();
    }
    if (num_values == gradients->NumElements()) return absl::OkStatus();
    return InvalidArgumentError("`gradients` must be those of all pooled values of `batches`, ",
                                num_values, ". Received: ", gradients->NumElements(), ".");
  }

  absl::Status ReadRules(tf::OpKernelContext* context, const Resources& tables,
                         std::vector<Rule>* rules) const {
    const tf::Tensor *hyper, *step;
    TF_RETURN_IF_ERROR(context->input("hyper", &hyper));
    TF_RETURN_IF_ERROR(context->input("step", &step));
    const bool is_vector = hyper->dims() == 1;
    const int64_t count = static_cast<int64_t>(tables.size());
    if (!is_vector && (hyper->dims() != 2 || hyper->dim_size(0) != count)) {
      return InvalidArgumentError("`hyper` must be a vector, or one for each of ", count,
                                  " tables. Received shape: ", hyper->shape().DebugString(), ".");
    }
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i]->num_shards() != 1) {
        return InvalidArgumentError("Table '", tables[i]->name(),
                                    "' of a batch must have one shard to be trained. Received: ",
                                    tables[i]->num_shards(), ".");
      }
      Rule* const rule = &(*rules)[i];
      const tf::Tensor of_table = is_vector ? *hyper : hyper->SubSlice(static_cast<int64_t>(i));
      TF_RETURN_IF_ERROR(ReadRule(kind_, tables[i]->dim(), of_table, rule));
      TF_RETURN_IF_ERROR(ReadStep(*step, rule));
      for (size_t j = 0; j < slot_types_.size(); ++j) rule->slots.groups[j].type = slot_types_[j];
      rule->stochastic_rounding = stochastic_rounding_;
    }
    return absl::OkStatus();
  }

  Status Apply(const ExecContext& exec, const KeysOfTable& keys, const Rule& rule,
               Store* table) const {
    Buffer<int64_t> own_keys(HostAllocator());
    Buffer<size_t> begins(HostAllocator());
    Buffer<float> factors(HostAllocator());
    const bool has_factors = keys.is_weighted() || Divides(combiner_);
    const int64_t* distinct = nullptr;
    TF_EMBED_RETURN_IF_ERROR(keys.Keys(&own_keys, &distinct));
    TF_EMBED_RETURN_IF_ERROR(begins.Resize(keys.size()));
    if (has_factors) TF_EMBED_RETURN_IF_ERROR(factors.Resize(keys.size()));
    // Parts are in the same tensor, so each gradient has an offset from the first part.
    const float* const base = keys.parts().empty() ? nullptr : keys.parts()[0].gradient->values;
    size_t place = 0;
    for (const KeysOfTable::Part& part : keys.parts()) {
      const TableBatch& batch = part.batch();
      const float* weight = batch.weights(part.piece);
      size_t begin = static_cast<size_t>(part.gradient->values - base + part.piece.begin);
      for (int64_t bag = 0; bag < part.piece.num_bags; ++bag) {
        const size_t end = place + static_cast<size_t>(batch.bag_size(part.piece, bag));
        const float scale =
            combiner_ == Combiner::kSum ? 1.0f : 1.0f / static_cast<float>(end - place);
        for (; place < end; ++place) {
          begins[place] = begin;
          if (has_factors) factors[place] = weight == nullptr ? scale : scale * *weight++;
        }
        begin += static_cast<size_t>(part.piece.stride);
      }
    }
    const Gradients gradients{base, DataType::kFloat, begins.data(),
                              has_factors ? factors.data() : nullptr};
    const KeyBatch batch{distinct, keys.size(), nullptr};
    TF_EMBED_RETURN_IF_ERROR(table->Apply(exec, batch, gradients, rule));
    return table->UpdateAllRows(exec, rule);
  }

  Status ApplyOnGpu(const ExecContext& exec, const KeysOfTable& keys, const Rule& rule,
                    DeviceStore* table) const {
    const float* const base = keys.parts().empty() ? nullptr : keys.parts()[0].gradient->values;
    std::vector<BagGradients> batches;
    for (const KeysOfTable::Part& part : keys.parts()) {
      const TableBatch& batch = part.batch();
      const Piece& piece = part.piece;
      batches.push_back({batch.keys(piece), static_cast<size_t>(piece.num_keys),
                         batch.offsets(piece), static_cast<size_t>(piece.num_bags),
                         batch.weights(piece),
                         static_cast<size_t>(part.gradient->values - base + piece.begin),
                         static_cast<size_t>(piece.stride)});
    }
    TF_EMBED_RETURN_IF_ERROR(
        table->ApplyBags(exec, base, batches.data(), batches.size(), combiner_, rule));
    return table->UpdateAllRows(exec, rule);
  }

  RuleKind kind_ = RuleKind::kNone;
  std::vector<SlotType> slot_types_;
  bool stochastic_rounding_ = false;
};

const Kernels<SumByKeyTablesOp> sum_by_key_tables("TfEmbedSumByKeyTables");

const Kernels<PackBatchOp> pack_batch("TfEmbedPackBatch", {"tables", "offsets", "pieces", "size"});
const Kernels<ApplyTablesOp> apply_tables("TfEmbedApplyTables", {"tables", "hyper", "step"});

}  // namespace

}  // namespace tf_embed
