// SPDX-License-Identifier: Apache-2.0
// SaveRows writes a consistent snapshot of a variable's rows, and replaces the earlier save.
// RowsSaved is the number of rows that a running save has written, for its progress.
//
// OpenSavedRows finds and checks the files and prepares the table. SavedRowCounts returns the
// number of rows of each block. SavedKeys returns a block's keys, so that a process can select its
// own. LoadSavedRows inserts the rows.
#include <memory>
#include <mutex>
#include <utility>

#include "cc/core/table/paused_tables.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pending_save.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/shard_file.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// The requested content and format of a save.
struct Wanted {
  int64_t buffer_bytes = 0;
  bool with_slots = true;
  bool links = false;

  absl::Status Read(tf::OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(construction->GetAttr("buffer_bytes", &buffer_bytes));
    return construction->GetAttr("with_slots", &with_slots);
  }
};

// Begins the export of a table. If the table is shared, reads the first rows, from which HeaderOf
// learns the rule: another process may have changed it.
absl::Status Begin(TableResource* table, ExportCursor* cursor, WholeRows* rows) {
  if (!table->is_shared()) return absl::OkStatus();
  return ToTensorFlow(table->store(0)->maintenance()->ExportBatch(1, cursor, rows));
}

// Blocks writers until it returns. They then run while the disk flushes.
absl::Status WriteRows(TableResource* table, const Wanted& wanted, PendingSave* save) {
  StringScope string_scope(table, KeyUse::kRead);
  PausedTables paused(table->allocator());
  TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
  WholeRows rows(table->allocator());
  ExportCursor begun;
  TF_RETURN_IF_ERROR(Begin(table, &begun, &rows));
  RowFileHeader header;
  TF_RETURN_IF_ERROR(HeaderOf(table, &header));
  header.has_links = wanted.links && wanted.with_slots && CanLink(*table, *save);
  if (!wanted.with_slots) LeaveSlotsOut(&header);
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Store* const shard = table->store(number);
    ShardFile file(table, save, static_cast<size_t>(wanted.buffer_bytes));
    TF_RETURN_IF_ERROR(file.Begin(header, number));
    LinkedRows linked(table->allocator());
    if (header.has_links) {
      const ExecContext context = ExecContext::Serial().Holding(Held::kPaused);
      TF_RETURN_IF_ERROR(file.AppendLinks(context, shard, &linked));
    }
    ExportCursor cursor = std::exchange(begun, ExportCursor());
    // Rows in linked files are skipped here.
    cursor.linked = &linked;
    if (table->is_shared()) TF_RETURN_IF_ERROR(file.Append(&rows));
    while (!cursor.done) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(shard->maintenance()->ExportBatch(file.rows_of_block(), &cursor, &rows)));
      TF_RETURN_IF_ERROR(file.Append(&rows));
    }
    TF_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

absl::Status Save(TableResource* table, SavePlace place, const Wanted& wanted) {
  TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
  // Serialize saves: concurrent saves would remove each other's partial files.
  std::lock_guard<OrderedMutex> turn(*table->save_mutex());
  PendingSave save(std::move(place), KindOf(*table));
  TF_RETURN_IF_ERROR(save.Begin());
  TF_RETURN_IF_ERROR(WriteRows(table, wanted, &save));
  // Writers run again: WriteRows has returned, and only the flush remains.
  return save.Commit();
}

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, wanted_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("links", &wanted_.links));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    return Save(table, std::move(place), wanted_);
  }

  SaveAttributes attributes_;
  Wanted wanted_;
};

class SaveRowsPartOp : public TableOp {
 public:
  explicit SaveRowsPartOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, wanted_.Read(construction));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    TF_RETURN_IF_ERROR(ReadPlace(context, 1, &place));
    TF_RETURN_IF_ERROR(ReadPart(context, 3, &place));
    return Save(table, std::move(place), wanted_);
  }

  Wanted wanted_;
};

// Takes no lock, so that it does not wait for a save.
class RowsSavedOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    tf::Tensor* rows;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &rows));
    rows->scalar<int64_t>()() = static_cast<int64_t>(table->rows_saved());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRows").Device(tf::DEVICE_CPU), SaveRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRowsPart").Device(tf::DEVICE_CPU), SaveRowsPartOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedRowsSaved").Device(tf::DEVICE_CPU), RowsSavedOp);

const OnGpu<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});
const OnGpu<SaveRowsPartOp> save_rows_part("TfEmbedSaveRowsPart", {"table", "folder", "file_name",
                                                                   "save", "rank", "processes"});
const OnGpu<RowsSavedOp> rows_saved("TfEmbedRowsSaved", {"table", "rows"});

// Reads the inputs `rows` and `block` of an op. Checks the rows against this table, because they
// may have been opened for another.
absl::Status ReadFittingBlock(tf::OpKernelContext* context, int input, const TableResource& table,
                              SavedRows** rows, size_t* block) {
  TF_RETURN_IF_ERROR(ReadBlockInput(context, input, rows, block));
  return (*rows)->FileOf(*block).CheckFits(table);
}

class OpenSavedRowsOp : public TableOp {
 public:
  explicit OpenSavedRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("whole", &whole_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavePlace place;
    std::shared_ptr<SavedRows> rows;
    tf::Tensor *variant, *num_blocks, *by_key, *waiting;
    std::vector<int64_t> waiting_keys;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &variant));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &num_blocks));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {}, &by_key));
    TF_RETURN_IF_ERROR(SavedRows::Open(place, whole_, *table, &rows));
    if (!with_slots_) rows->LeaveSlotsOut();
    if (output_type(3) != table->signature().key_dtype) {
      return InvalidArgumentError("`key_dtype` must be ",
                                  tf::DataTypeString(table->signature().key_dtype), ".");
    }
    TF_RETURN_IF_ERROR(Prepare(*rows, table, &waiting_keys));
    const int64_t num_waiting = static_cast<int64_t>(waiting_keys.size());
    TF_RETURN_IF_ERROR(context->allocate_output(3, {num_waiting}, &waiting));
    if (num_waiting > 0) NarrowKeys(waiting_keys.data(), waiting_keys.size(), 0, waiting);
    num_blocks->scalar<int64_t>()() = static_cast<int64_t>(rows->num_blocks());
    by_key->scalar<bool>()() = rows->by_key();
    variant->scalar<tf::Variant>()() = SavedRowsVariant(std::move(rows));
    return absl::OkStatus();
  }

  // Prepares the table for the rows: sets their rule and, if the table is empty, their seed.
  // `waiting` receives the keys that now wait for admission.
  static absl::Status Prepare(const SavedRows& rows, TableResource* table,
                              std::vector<int64_t>* waiting) {
    const SavedRows::File* slots;
    TF_RETURN_IF_ERROR(rows.FindSlots(&slots));
    const RuleSlots rule = slots == nullptr ? RuleSlots() : slots->reader.header().meta.rule;
    // Checked before anything changes, and again by the change of rule.
    if (slots != nullptr && table->RowsOfOtherRule(rule) > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", table->name(), "' can't load '", slots->source->name(),
          "': its rows have slots of another optimizer than those in the file. Clear it first."));
    }
    {
      // No row may be added between the check of the size and the change of seed: it would have
      // been drawn with the old seed.
      PausedTables paused(table->allocator());
      TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
      if (table->size() == 0) TF_RETURN_IF_ERROR(TakeOrigin(rows, table, waiting));
    }
    if (slots != nullptr && !table->HasRule(rule)) {
      TF_RETURN_IF_ERROR(ToTensorFlow(table->SetRule(rule)));
    }
    rows.SetClockOf(table);
    return absl::OkStatus();
  }

  // Takes over the seed and the waiting keys of the saved table. REQUIRES: the table is empty.
  static absl::Status TakeOrigin(const SavedRows& rows, TableResource* table,
                                 std::vector<int64_t>* waiting) {
    const SavedRows::File& first = *rows.files().front();
    if (!first.has_origin()) return absl::OkStatus();
    TF_RETURN_IF_ERROR(TakeCounts(rows, table, waiting));
    const TableMeta& meta = first.reader.header().meta;
    return ToTensorFlow(table->SetOrigin(meta.seed, meta.table_id));
  }

  // Takes over the admission counts of all processes that saved. Validates all of them before it
  // changes the table.
  static absl::Status TakeCounts(const SavedRows& rows, TableResource* table,
                                 std::vector<int64_t>* waiting) {
    if (table->admission() == nullptr) return absl::OkStatus();
    const PolicySettings& settings = table->policy();
    std::shared_ptr<Admission> all;
    for (const auto& file : rows.files()) {
      const std::vector<int64_t>& counts = file->policy.admission;
      // The newest save of a chain has the counts of the older saves too.
      if (!file->newer.empty() || !file->policy.CountsFor(settings)) continue;
      std::shared_ptr<Admission> one;
      TF_RETURN_IF_ERROR(ToTensorFlow(settings.NewAdmission(table->allocator(), &one)));
      // Loads into a separate admission, so that a damaged file leaves the table's unchanged.
      TF_RETURN_IF_ERROR(file->Damaged(ToTensorFlow(one->Load(counts.data(), counts.size()))));
      if (all == nullptr) {
        all.swap(one);
      } else {
        const absl::Status merged = ToTensorFlow(all->Merge(*one));
        if (!merged.ok()) {
          return absl::Status(merged.code(),
                              absl::StrCat("'", file->source->name(), "': ", merged.message()));
        }
      }
    }
    if (all == nullptr) return absl::OkStatus();
    std::vector<int64_t> numbers;
    // The merged counts go through their saved form, which Load takes over as a whole or not at
    // all.
    TF_RETURN_IF_ERROR(ToTensorFlow(all->Save(&numbers)));
    TF_RETURN_IF_ERROR(ToTensorFlow(table->admission()->Load(numbers.data(), numbers.size())));
    // Dictionary numbers mean nothing to callers.
    if (!table->has_string_keys()) Admission::SavedKeys(numbers, waiting);
    return absl::OkStatus();
  }

  SaveAttributes attributes_;
  bool whole_ = false;
  bool with_slots_ = true;
};

class SavedRowCountsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource*) override {
    const SavedRows* const saved = SavedRowsVariant::In(context->input(1));
    if (saved == nullptr) {
      return InvalidArgumentError("`rows` must be the open files of saved rows.");
    }
    tf::Tensor* counts;
    const int64_t num_blocks = static_cast<int64_t>(saved->num_blocks());
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_blocks}, &counts));
    int64_t* const out = counts->flat<int64_t>().data();
    for (size_t block = 0; block < saved->num_blocks(); ++block) {
      out[block] = static_cast<int64_t>(saved->RowsIn(block));
    }
    return absl::OkStatus();
  }
};

class SavedKeysOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavedRows* saved;
    size_t number;
    std::shared_ptr<const RowBlock> block;
    tf::Tensor* keys;
    TF_RETURN_IF_ERROR(ReadFittingBlock(context, 1, *table, &saved, &number));
    TF_RETURN_IF_ERROR(saved->ReadBlock(number, &block));
    if (output_type(0) != table->signature().key_dtype) {
      return InvalidArgumentError("`keys` must be ",
                                  tf::DataTypeString(table->signature().key_dtype), ".");
    }
    TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(block->size)}, &keys));
    if (block->keys != nullptr) {
      NarrowKeys(block->keys, block->size, 0, keys);
      return absl::OkStatus();
    }
    tf::tstring* const out = keys->flat<tf::tstring>().data();
    for (size_t i = 0; i < block->size; ++i) {
      out[i].assign(block->key_strings[i].data(), block->key_strings[i].size());
    }
    return absl::OkStatus();
  }
};

class ForgetWaitingOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    const tf::Tensor& keys = context->input(1);
    TF_RETURN_IF_ERROR(CheckRank(keys, "keys", 1));
    if (keys.dtype() != table->signature().key_dtype) {
      return InvalidArgumentError("`keys` must be ",
                                  tf::DataTypeString(table->signature().key_dtype),
                                  ". Received: ", tf::DataTypeString(keys.dtype()), ".");
    }
    if (table->admission() == nullptr || table->has_string_keys()) return absl::OkStatus();
    Buffer<int64_t> widened(table->allocator());
    const int64_t* wide;
    TF_RETURN_IF_ERROR(WidenedKeys(keys, &widened, &wide));
    table->admission()->Forget(wide, static_cast<size_t>(keys.NumElements()));
    return absl::OkStatus();
  }
};

class LoadSavedRowsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    SavedRows* saved;
    size_t number;
    std::shared_ptr<const RowBlock> block;
    TF_RETURN_IF_ERROR(ReadFittingBlock(context, 1, *table, &saved, &number));
    TF_RETURN_IF_ERROR(saved->ReadBlock(number, &block));
    const tf::Tensor& owners = context->input(3);
    TF_RETURN_IF_ERROR(CheckRank(owners, "owners", 1));
    if (owners.NumElements() != 0 && owners.NumElements() != static_cast<int64_t>(block->size)) {
      return InvalidArgumentError("`owners` must have ", block->size,
                                  " numbers. Received: ", owners.NumElements(), ".");
    }
    const SavedRows::File& file = saved->FileOf(number);
    const RowFileHeader& header = file.reader.header();
    const ExecContext exec = ExecContextOf(context);
    SavedBatch batch;
    batch.keys.keys = block->keys;
    batch.keys.size = block->size;
    if (owners.NumElements() > 0) batch.keys.owners = owners.flat<int32_t>().data();
    batch.keys.unsigned_keys = header.key_type == StoredType::kUint64 || header.has_string_keys();
    batch.weights = block->weights;
    if (saved->HasSlots(file)) batch.slots = {&header.meta.rule, block->slots};
    batch.statistics = header.statistics;
    batch.words = block->statistics;
    // The table may exceed its bound until the statistics decide which rows leave. The save mutex
    // keeps saves and exports away meanwhile.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    StringScope string_scope(table, KeyUse::kWrite);
    Buffer<int64_t> key_numbers(table->allocator());
    Buffer<int64_t> value_numbers(table->allocator());
    if (header.has_string_keys()) {
      TF_RETURN_IF_ERROR(ToTensorFlow(string_scope.Keys(exec, block->key_strings, &key_numbers)));
      batch.keys.keys = key_numbers.data();
    }
    if (header.has_string_values()) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(string_scope.InternValues(exec, block->value_strings, &value_numbers)));
      batch.weights = value_numbers.data();
    }
    return ToTensorFlow(table->LoadRows(exec, batch));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedOpenSavedRows").Device(tf::DEVICE_CPU), OpenSavedRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSavedRowCounts").Device(tf::DEVICE_CPU), SavedRowCountsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSavedKeys").Device(tf::DEVICE_CPU), SavedKeysOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedLoadSavedRows").Device(tf::DEVICE_CPU), LoadSavedRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedForgetWaiting").Device(tf::DEVICE_CPU), ForgetWaitingOp);

const OnGpu<OpenSavedRowsOp> open_saved_rows("TfEmbedOpenSavedRows",
                                             {"table", "folder", "file_name", "rows", "num_blocks",
                                              "by_key", "waiting"});
const OnGpu<ForgetWaitingOp> forget_waiting("TfEmbedForgetWaiting", {"table", "keys"});
const OnGpu<SavedRowCountsOp> saved_row_counts("TfEmbedSavedRowCounts",
                                               {"table", "rows", "counts"});
const OnGpu<SavedKeysOp> saved_keys("TfEmbedSavedKeys", {"table", "rows", "block", "keys"});
const OnGpu<LoadSavedRowsOp> load_saved_rows("TfEmbedLoadSavedRows",
                                             {"table", "rows", "block", "owners"});

}  // namespace

}  // namespace tf_embed
