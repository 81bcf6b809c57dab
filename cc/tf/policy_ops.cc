// SPDX-License-Identifier: Apache-2.0
// Admission and eviction verbs: Restrict, DrainEvicted, RowStatistics, SetScores, ExportScores,
// ExpiredRows, SetClock.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "cc/core/policy/eviction_order.h"
#include "cc/core/table/paused_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Reads the attribute `order`.
absl::Status ReadOrder(tf::OpKernelConstruction* construction, EvictionOrder* order) {
  std::string wanted;
  TF_RETURN_IF_ERROR(construction->GetAttr("order", &wanted));
  if (FindByName(kEvictionOrderNames, wanted, order)) return absl::OkStatus();
  return InvalidArgumentError("`order` must be a known order. Received: ", wanted, ".");
}

absl::Status CheckKeyType(tf::DataType type, const TableResource& table) {
  if (type == table.signature().key_dtype) return absl::OkStatus();
  return InvalidArgumentError("Table '", table.name(), "' is ", table.signature().DebugString(),
                              ". Asked for: keys ", tf::DataTypeString(type), ".");
}

class RestrictOp : public TableOp {
 public:
  explicit RestrictOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadOrder(construction, &order_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    int64_t num_reserved;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "num_reserved", &num_reserved));
    if (num_reserved < 0) {
      return InvalidArgumentError("`num_reserved` of table '", table->name(),
                                  "' must be a number of rows. Received: ", num_reserved, ".");
    }
    const uint8_t needed = StatisticsOf(order_).bits();
    // Without them all ranks would be 0, and hashes would choose the rows to evict.
    if ((needed & ~table->statistics().bits()) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Table '", table->name(),
          "' does not keep the statistics of its rows that this restriction goes by."));
    }
    size_t removed = 0;
    TF_RETURN_IF_ERROR(ToTensorFlow(table->Restrict(ExecContextOf(context), order_,
                                                    static_cast<size_t>(num_reserved), &removed)));
    return GiveScalar<int64_t>(context, 0, removed);
  }

  EvictionOrder order_ = EvictionOrder::kLru;
};

void CopyStrings(const std::vector<std::string>& strings, tf::Tensor* tensor) {
  std::copy(strings.begin(), strings.end(), tensor->flat<tf::tstring>().data());
}

absl::Status RunDrainEvicted(tf::OpKernelContext* context, TableResource* table) {
  TF_RETURN_IF_ERROR(CheckKeyType(context->expected_output_dtype(0), *table));
  TF_RETURN_IF_ERROR(CheckOutputType(context->expected_output_dtype(1), *table));
  if (table->evicted() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("Table '", table->name(), "' keeps no log of evicted rows."));
  }
  // The log forgets the rows only if this succeeds, so a failed allocation loses none.
  return table->evicted()->Drain([&](const EvictionLog::Rows& rows) -> absl::Status {
    tf::Tensor *keys, *values;
    const int64_t size = static_cast<int64_t>(rows.size);
    TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {size, table->signature().dim}, &values));
    if (size == 0) return absl::OkStatus();
    if (keys->dtype() == tf::DT_STRING) {
      CopyStrings(rows.key_strings, keys);
    } else {
      NarrowKeys(rows.keys.data(), rows.size, 0, keys);
    }
    if (values->dtype() == tf::DT_STRING) {
      CopyStrings(rows.value_strings, values);
    } else {
      std::memcpy(values->data(), rows.weights.data(), rows.size * table->row_bytes());
    }
    return absl::OkStatus();
  });
}

int64_t Shown(Statistic statistic, uint64_t word) {
  return statistic == Statistic::kScore ? RowStatistics::ScoreOf(word) : static_cast<int64_t>(word);
}

absl::Status RunRowStatistics(tf::OpKernelContext* context, TableResource* table) {
  TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckEviction()));
  KeysInput keys(table->allocator());
  Buffer<uint64_t> kept(table->allocator());
  tf::Tensor *output, *exists;
  TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
  tf::TensorShape shape = keys.shape();
  TF_RETURN_IF_ERROR(AddAxis(static_cast<int64_t>(std::size(kAllStatistics)), &shape));
  TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &output));
  TF_RETURN_IF_ERROR(context->allocate_output(1, keys.shape(), &exists));
  const StatisticSet set = table->statistics();
  TF_RETURN_IF_ERROR(ToTensorFlow(kept.Resize(keys.size() * set.size())));
  bool* const found = exists->flat<bool>().data();
  TF_RETURN_IF_ERROR(ToTensorFlow(
      table->FindStatistics(ExecContextOf(context), keys.batch(), kept.data(), found)));
  int64_t* out = output->flat<int64_t>().data();
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t* const words = kept.data() + i * set.size();
    for (const Statistic statistic : kAllStatistics) {
      *out++ = set.Has(statistic) && found[i] ? Shown(statistic, words[set.IndexOf(statistic)]) : 0;
    }
  }
  return absl::OkStatus();
}

absl::Status RunSetScores(tf::OpKernelContext* context, TableResource* table) {
  TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckEviction()));
  KeysInput keys(table->allocator());
  Buffer<uint64_t> words(table->allocator());
  TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
  TF_RETURN_IF_ERROR(keys.ReadScores(context, *table, 3));
  TF_RETURN_IF_ERROR(ToTensorFlow(words.Resize(keys.size())));
  const int64_t* const given = keys.batch().scores;
  // Statistics are unsigned words, in the order of the scores.
  std::transform(given, given + keys.size(), words.data(), RowStatistics::ScoreBits);
  return ToTensorFlow(table->AssignStatistic(ExecContextOf(context), keys.batch(),
                                             Statistic::kScore, words.data()));
}

class ExpiredRowsOp : public TableOp {
 public:
  explicit ExpiredRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("renews", &renews_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    size_t expired;
    const ExecContext exec = ExecContextOf(context);
    TF_RETURN_IF_ERROR(ToTensorFlow(table->CountExpired(exec, &expired)));
    TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, 0, expired));
    return renews_ ? ToTensorFlow(table->RenewUses(exec)) : absl::OkStatus();
  }

  bool renews_ = false;
};

absl::Status RunSetClock(tf::OpKernelContext* context, TableResource* table) {
  int64_t step, milliseconds, epoch;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "step", &step));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "milliseconds", &milliseconds));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "epoch", &epoch));
  if (step < -1 || step == 0 || step > StepClock::kMaxStep || milliseconds < -2 || epoch < -1 ||
      epoch > static_cast<int64_t>(kMaxEpoch)) {
    return InvalidArgumentError("The clock of table '", table->name(), "' has steps from 1 to ",
                                StepClock::kMaxStep, ", times from 0 and epochs from 0 to ",
                                kMaxEpoch, ". Received: ", step, ", ", milliseconds, " and ", epoch,
                                ".");
  }
  // Sets the step first, because SetEpoch keeps the epoch as a difference to it.
  if (step > 0) table->clock()->SetStep(static_cast<uint64_t>(step));
  if (milliseconds >= -1) table->clock()->SetTime(milliseconds);
  if (epoch >= 0) table->clock()->SetEpoch(static_cast<uint64_t>(epoch));
  return absl::OkStatus();
}

class ExportScoresOp : public TableOp {
 public:
  explicit ExportScoresOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadOrder(construction, &order_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    int64_t split_size;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "split_size", &split_size));
    if (split_size < 1) {
      return InvalidArgumentError("`split_size` of table '", table->name(),
                                  "' must be a positive number of rows. Received: ", split_size,
                                  ".");
    }
    TF_RETURN_IF_ERROR(CheckKeyType(output_type(0), *table));
    TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
    const StatisticSet set = table->statistics();
    if ((StatisticsOf(order_).bits() & ~set.bits()) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Table '", table->name(), "' does not keep the statistics that these scores are."));
    }
    StringScope string_scope(table, KeyUse::kRead);
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
    tf::Tensor *keys, *scores;
    const int64_t size = static_cast<int64_t>(table->size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {size}, &scores));
    const ExecContext exec = ExecContextOf(context);
    int64_t* next = scores->flat<int64_t>().data();
    size_t done = 0;
    const size_t most = std::min(kMostRows, static_cast<size_t>(split_size));
    return ToTensorFlow(table->ForEachBlock(most, [&](const WholeRows* rows) {
      WriteKeys(exec, *table, rows->keys.data(), rows->size, done, keys);
      for (size_t i = 0; i < rows->size; ++i) {
        RowStatistics::Word words[StatisticSet::kMax];
        const uint64_t* const kept = rows->statistics.data() + i * set.size();
        std::copy(kept, kept + set.size(), words);
        *next++ = ShownScore(order_, RowStatistics(set, words), HashKey(rows->keys[i]));
      }
      done += rows->size;
      return Status();
    }));
  }

  static constexpr size_t kMostRows = size_t{1} << 16;  // that are copied at a time

  EvictionOrder order_ = EvictionOrder::kLru;
};

const Kernels<RestrictOp> restrict("TfEmbedRestrict", {"table", "num_reserved", "removed"});
const Kernels<TableFunction<RunDrainEvicted>> drain_evicted("TfEmbedDrainEvicted",
                                                            {"table", "keys", "values"});
const Kernels<TableFunction<RunRowStatistics>> row_statistics("TfEmbedRowStatistics",
                                                              {"table", "keys", "owners",
                                                               "statistics", "exists"});
const Kernels<TableFunction<RunSetScores>> set_scores("TfEmbedSetScores",
                                                      {"table", "keys", "owners", "scores"});
const Kernels<ExpiredRowsOp> expired_rows("TfEmbedExpiredRows", {"table", "expired"});
const Kernels<ExportScoresOp> export_scores("TfEmbedExportScores",
                                            {"table", "split_size", "keys", "scores"});
const Kernels<TableFunction<RunSetClock>> set_clock("TfEmbedSetClock",
                                                    {"table", "step", "milliseconds", "epoch"});

}  // namespace
}  // namespace tf_embed
