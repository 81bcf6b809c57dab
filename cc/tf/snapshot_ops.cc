// SPDX-License-Identifier: Apache-2.0
// Snapshot ops. They run on the CPU, in eager execution.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/store/change_log.h"
#include "cc/core/table/paused_tables.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pending_save.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/shard_file.h"
#include "cc/tf/shared_variant.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/env.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

absl::Status CheckTracked(const TableResource& table) {
  TF_RETURN_IF_ERROR(ToTensorFlow(table.CheckMaintenance()));
  if (table.store(0)->maintenance()->changes() != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Table '", table.name(), "' does not keep track of changes."));
}

// A consistent snapshot of several tables. Thread-safe.
class Snapshot {
 public:
  static constexpr char kTypeName[] = "tf_embed::Snapshot";
  using TablePointer = tf::core::RefCountPtr<TableResource>;
  // The format of the files.
  struct Form {
    size_t block_bytes;
    bool with_slots;
  };

  ~Snapshot() {
    // Also after a failed Begin: `begun` counts the shards of each table with a snapshot to end.
    for (const One& one : tables_) End(one, 0);
  }

  absl::Status Begin(std::vector<TablePointer> tables, const std::vector<uint64_t>& since) {
    std::vector<const Table*> all;
    for (size_t i = 0; i < tables.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckTracked(*tables[i]));
      for (size_t k = 0; k < i; ++k) {
        if (tables[k].get() == tables[i].get()) {
          return InvalidArgumentError("`tables` must be distinct. Received: '", tables[i]->name(),
                                      "' twice.");
        }
      }
      all.push_back(tables[i].get());
    }
    PausedTables paused(HostAllocator());
    // All tables are paused together, so they share the moment. Writers go on as soon as this
    // returns.
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(std::move(all))));
    for (size_t i = 0; i < tables.size(); ++i) {
      One one;
      TF_RETURN_IF_ERROR(HeaderOf(tables[i].get(), &one.header));
      one.header.has_changes = since[i] != 0;
      one.since = since[i];
      one.table = std::move(tables[i]);
      const size_t num_shards = one.table->num_shards();
      tables_.push_back(std::move(one));
      for (size_t number = 0; number < num_shards; ++number) {
        TF_RETURN_IF_ERROR(ToTensorFlow(ChangesOf(tables_.back(), number)->Begin(since[i])));
        // After each shard, so that a failure of the next shard ends exactly the begun snapshots.
        ++tables_.back().begun;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write(int64_t number, SavePlace place, std::string since_name, const Form& form,
                     uint64_t* save) {
    One* one;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (number < 0 || number >= static_cast<int64_t>(tables_.size()) ||
          tables_[static_cast<size_t>(number)].written) {
        return InvalidArgumentError("`number` must be that of a table that is not written yet, of ",
                                    tables_.size(), ". Received: ", number, ".");
      }
      one = &tables_[static_cast<size_t>(number)];
      if (one->since != 0 && !RowManifest::IsFolderName(since_name)) {
        return InvalidArgumentError("`since_name` must be the name of a folder. Received: '",
                                    since_name, "'.");
      }
      // Before the write: a second caller is refused at once and does not wait for the disk.
      one->written = true;
    }
    // Outside of the mutex, so that several tables are written at once.
    absl::Status status;
    try {
      status = WriteOne(*one, std::move(place), std::move(since_name), form, save);
    } catch (const std::bad_alloc&) {  // ends the table's snapshot, so that it can have another
      status = ResourceExhaustedError("No memory to write table '", one->table->name(), "'.");
    }
    End(*one, status.ok() ? *save : 0);
    one->begun = 0;
    return status;
  }

 private:
  struct One {
    TablePointer table;
    uint64_t since = 0;
    RowFileHeader header;
    size_t begun = 0;  // shards whose snapshot has begun
    bool written = false;
  };

  static ChangeLog* ChangesOf(const One& one, size_t shard) {
    return one.table->store(shard)->maintenance()->changes();
  }

  static void End(const One& one, uint64_t save) {
    for (size_t number = 0; number < one.begun; ++number) ChangesOf(one, number)->End(save);
  }

  static absl::Status WriteOne(const One& one, SavePlace place, std::string since_name,
                               const Form& form, uint64_t* number) {
    TableResource* const table = one.table.get();
    // Keeps clears and imports out.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    RowManifest kind = KindOf(*table);
    kind.since = one.since;
    kind.since_name = std::move(since_name);
    PendingSave save(std::move(place), kind);
    RowFileHeader header = one.header;
    header.has_links = form.with_slots && CanLink(*table, save);
    if (!form.with_slots) LeaveSlotsOut(&header);
    TF_RETURN_IF_ERROR(save.Begin());
    for (size_t shard = 0; shard < table->num_shards(); ++shard) {
      ShardFile file(table, &save, form.block_bytes);
      TF_RETURN_IF_ERROR(file.Begin(header, shard));
      LinkedRows linked(table->allocator());
      if (header.has_links) {
        TF_RETURN_IF_ERROR(file.AppendLinks(ExecContext::Serial(), table->store(shard), &linked));
      }
      TF_RETURN_IF_ERROR(WriteShard(one, shard, &file));
      TF_RETURN_IF_ERROR(file.Finish());
    }
    *number = save.number();
    return save.Commit();
  }

  static absl::Status WriteShard(const One& one, size_t number, ShardFile* file) {
    const Store* const shard = one.table->store(number);
    ChangeLog* const changes = ChangesOf(one, number);
    Allocator* const allocator = one.table->allocator();
    WholeRows rows(allocator);
    const auto write_given = [&] {
      // A writer that is about to change a row hands over the old version, if the scan has not
      // reached it.
      while (changes->TakeGiven(&rows)) TF_RETURN_IF_ERROR(file->Append(&rows));
      return ToTensorFlow(changes->Check());
    };
    for (ExportCursor cursor; !cursor.done;) {
      TF_RETURN_IF_ERROR(ToTensorFlow(one.table->store(number)->maintenance()->ExportSnapshot(
          ExecContext::Serial(), file->rows_of_block(), &cursor, &rows)));
      TF_RETURN_IF_ERROR(file->Append(&rows));
      // After each block, so that rows that were handed over do not pile up in memory.
      TF_RETURN_IF_ERROR(write_given());
    }
    {
      // The scan is done. This pause waits until writers hand over the rows that they have
      // captured.
      HeldStores paused(allocator);
      TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(&shard, 1, Held::kPaused)));
    }
    TF_RETURN_IF_ERROR(write_given());
    Buffer<int64_t> left(allocator);
    size_t count;
    TF_RETURN_IF_ERROR(ToTensorFlow(changes->KeysThatLeft(&left, &count)));
    return file->AppendLeft(left.data(), count);
  }

  std::mutex mutex_;  // guards `written`
  std::vector<One> tables_;
};

using SnapshotVariant = SharedVariant<Snapshot>;

class BeginSnapshotOp : public StatusOp {
 public:
  using StatusOp::StatusOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const int num_tables = context->num_inputs() - 1;
    const tf::Tensor& since = context->input(num_tables);
    TF_RETURN_IF_ERROR(CheckRank(since, "since", 1));
    if (since.NumElements() != num_tables) {
      return InvalidArgumentError("`since` must have ", num_tables,
                                  " numbers. Received: ", since.NumElements(), ".");
    }
    const auto numbers = since.vec<int64_t>();
    std::vector<Snapshot::TablePointer> tables(static_cast<size_t>(num_tables));
    std::vector<uint64_t> saves;
    for (int i = 0; i < num_tables; ++i) {
      TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, i),
                                            &tables[static_cast<size_t>(i)]));
      saves.push_back(static_cast<uint64_t>(numbers(i)));
    }
    auto snapshot = std::make_shared<Snapshot>();
    tf::Tensor* variant;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &variant));
    TF_RETURN_IF_ERROR(snapshot->Begin(std::move(tables), saves));
    variant->scalar<tf::Variant>()() = SnapshotVariant(std::move(snapshot));
    return absl::OkStatus();
  }
};

// Writes a table, or this process's part of a table shared by several processes.
class WriteSnapshotOp : public StatusOp {
 public:
  explicit WriteSnapshotOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    Snapshot* const snapshot = SnapshotVariant::In(context->input(0));
    if (snapshot == nullptr) {
      return InvalidArgumentError("`snapshot` must be what TfEmbedBeginSnapshot gave.");
    }
    SavePlace place;
    int64_t number;
    tf::tstring since_name;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "number", &number));
    TF_RETURN_IF_ERROR(ReadPlace(context, 2, &place));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(4), "since_name", &since_name));
    if (context->num_inputs() > 5) TF_RETURN_IF_ERROR(ReadPart(context, 5, &place));
    uint64_t save = 0;
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
    TF_RETURN_IF_ERROR(snapshot->Write(number, std::move(place), std::string(since_name),
                                       {static_cast<size_t>(buffer_bytes_), with_slots_}, &save));
    output->scalar<int64_t>()() = static_cast<int64_t>(save);
    return absl::OkStatus();
  }

  int64_t buffer_bytes_ = 0;
  bool with_slots_ = true;
};

class NoteSnapshotOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    int64_t save;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "save", &save));
    if (!CheckTracked(*table).ok()) return absl::OkStatus();
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
    for (size_t number = 0; number < table->num_shards(); ++number) {
      table->store(number)->maintenance()->changes()->NoteLoaded(static_cast<uint64_t>(save));
    }
    return absl::OkStatus();
  }
};

class DropSnapshotOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    int64_t save;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "save", &save));
    if (!CheckTracked(*table).ok()) return absl::OkStatus();
    for (size_t number = 0; number < table->num_shards(); ++number) {
      table->store(number)->maintenance()->changes()->Drop(static_cast<uint64_t>(save));
    }
    return absl::OkStatus();
  }
};

class JoinRowsOp : public StatusOp {
 public:
  using StatusOp::StatusOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    SavePlace place;
    int64_t processes;
    uint64_t save = 0;
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "processes", &processes));
    if (processes < 1 || processes > kMaxParts) {
      return InvalidArgumentError("`processes` must be from 1 to ", kMaxParts,
                                  ". Received: ", processes, ".");
    }
    place.processes = static_cast<uint32_t>(processes);
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
    TF_RETURN_IF_ERROR(JoinSaves(place, &save));
    output->scalar<int64_t>()() = static_cast<int64_t>(save);
    return absl::OkStatus();
  }
};

class FoldRowsOp : public StatusOp {
 public:
  explicit FoldRowsOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    SavePlace from, to;
    tf::Tensor* output;
    std::shared_ptr<SavedRows> saved;
    TF_RETURN_IF_ERROR(ReadPlace(context, 0, &from));
    TF_RETURN_IF_ERROR(ReadPlace(context, 2, &to));
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
    TF_RETURN_IF_ERROR(SavedRows::Open(from, /*whole=*/true, &saved));
    const SavedRows::File* slots;  // slots of two optimizers can't be merged
    TF_RETURN_IF_ERROR(saved->FindSlots(&slots));
    const RowFileHeader& first = saved->files().front()->reader.header();
    RowManifest kind;
    kind.key_type = first.key_type;
    kind.value_type = first.value_type;
    kind.dim = first.meta.dim;
    const std::vector<Folded> files = FilesOf(*saved);
    // The folded save shows the same moment, and tables identify moments by the number, so it keeps
    // the number.
    if (saved->num_parts() == 1) to.joint_save = first.save;
    TF_RETURN_IF_ERROR(CheckIsNew(to, files.size()));
    PendingSave save(std::move(to), kind);
    TF_RETURN_IF_ERROR(save.Begin());
    for (size_t number = 0; number < files.size(); ++number) {
      RowFileHeader header = files[number].head->reader.header();
      header.save = save.number();
      header.shard = static_cast<uint32_t>(number);
      header.num_shards = static_cast<uint32_t>(files.size());
      // The new file has every row itself, in the dense form.
      header.has_changes = header.has_links = header.padded = false;
      if (!header.policy.empty()) header.policy = PolicyOf(files[number], *saved).Encode();
      TF_RETURN_IF_ERROR(WriteAlike(header, files[number].has_rows ? saved.get() : nullptr, &save));
    }
    output->scalar<int64_t>()() = static_cast<int64_t>(save.number());
    return save.Commit();
  }

  // Files of a save are named by its number. A fold into the place of the save that it reads would
  // write over them.
  static absl::Status CheckIsNew(const SavePlace& to, size_t num_files) {
    const std::string path = to.folder->PathOf(
        RowFileNames(to.file_name)
            .Rows(/*rank=*/0, /*processes=*/1, to.joint_save, 0, static_cast<uint32_t>(num_files)));
    if (!tf::Env::Default()->FileExists(path).ok()) return absl::OkStatus();
    return InvalidArgumentError("`to_folder` and `to_file_name` must not be the place of the save ",
                                "that is folded. Received: one that has '", path, "'.");
  }

  static bool AreAlike(const RowFileHeader& one, const RowFileHeader& other) {
    return one.statistics.bits() == other.statistics.bits() &&
           SameRule(one.meta.rule, other.meta.rule);
  }

  // A file of the new save.
  struct Folded {
    const SavedRows::File* head;    // its kind of rows
    const SavedRows::File* counts;  // whose counts of admission it has; may be null
    bool has_rows = true;
  };

  // The files of the new save. Saves in a chain may differ in statistics and slots. A load
  // initializes whatever is missing from a row, so each kind keeps a separate file. Each process
  // that saved has counts of admission, which a load adds up. The newest save's counts include the
  // older saves'.
  static std::vector<Folded> FilesOf(const SavedRows& saved) {
    std::vector<Folded> files;
    const auto head_of = [&](const SavedRows::File& file) {
      return std::find_if(files.begin(), files.end(), [&](const Folded& one) {
        return AreAlike(one.head->reader.header(), file.reader.header());
      });
    };
    for (const auto& file : saved.files()) {
      if (head_of(*file) == files.end()) files.push_back({file.get(), nullptr});
    }
    for (const auto& file : saved.files()) {
      if (!file->newer.empty() || file->policy.admission.empty()) continue;
      const auto head = head_of(*file);
      if (head->counts == nullptr && !head->head->reader.header().policy.empty()) {
        head->counts = file.get();
      } else {
        files.push_back({file.get(), file.get(), /*has_rows=*/false});
      }
    }
    return files;
  }

  // The policy of a file, with the clock that loading all files would set.
  static SavedPolicy PolicyOf(const Folded& one, const SavedRows& saved) {
    SavedPolicy policy = one.head->policy;
    policy.admission.clear();
    if (one.counts != nullptr) policy.admission = one.counts->policy.admission;
    for (const auto& file : saved.files()) {
      policy.step = std::max(policy.step, file->policy.step);
      policy.epoch = std::max(policy.epoch, file->policy.epoch);
    }
    return policy;
  }

  // Writes the rows of `saved` that are of the header's kind; null: none.
  absl::Status WriteAlike(const RowFileHeader& header, SavedRows* saved, PendingSave* save) const {
    FileSink* sink;
    TF_RETURN_IF_ERROR(save->NewFile(header.num_shards, &sink));
    RowFileWriter writer(sink, HostAllocator(), static_cast<size_t>(buffer_bytes_));
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Begin(header)));
    const size_t num_blocks = saved == nullptr ? 0 : saved->num_blocks();
    for (size_t number = 0; number < num_blocks; ++number) {
      if (!AreAlike(saved->FileOf(number).reader.header(), header)) continue;
      std::shared_ptr<const RowBlock> block;
      TF_RETURN_IF_ERROR(saved->ReadBlock(number, &block));
      RowsToWrite rows;
      rows.size = block->size;
      rows.keys = block->keys;
      rows.key_strings = block->key_strings;
      rows.weights = block->weights;
      rows.value_strings = block->value_strings;
      rows.slots = block->slots;
      rows.statistics = block->statistics;
      TF_RETURN_IF_ERROR(ToTensorFlow(writer.Append(rows)));
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Finish()));
    save->EndFile(writer);
    return absl::OkStatus();
  }

  int64_t buffer_bytes_ = 0;
};

class PutFileOp : public StatusOp {
 public:
  using StatusOp::StatusOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    SavePlace place;
    tf::tstring text;
    TF_RETURN_IF_ERROR(ReadPlace(context, 0, &place));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "text", &text));
    if (!RowManifest::IsFolderName(place.file_name)) {
      return InvalidArgumentError("`file_name` must be the name of a file. Received: '",
                                  place.file_name, "'.");
    }
    TF_RETURN_IF_ERROR(place.folder->Create());
    TF_RETURN_IF_ERROR(place.folder->Sync());
    return place.folder->Replace(place.file_name, std::string(text));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedBeginSnapshot").Device(tf::DEVICE_CPU), BeginSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedWriteSnapshot").Device(tf::DEVICE_CPU), WriteSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedWriteSnapshotPart").Device(tf::DEVICE_CPU), WriteSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedJoinRows").Device(tf::DEVICE_CPU), JoinRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedNoteSnapshot").Device(tf::DEVICE_CPU), NoteSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedDropSnapshot").Device(tf::DEVICE_CPU), DropSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedFoldRows").Device(tf::DEVICE_CPU), FoldRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedPutFile").Device(tf::DEVICE_CPU), PutFileOp);

}  // namespace
}  // namespace tf_embed
