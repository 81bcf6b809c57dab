// SPDX-License-Identifier: Apache-2.0
// SaveRows: a variable's rows go to files, of one moment, and replace those of an earlier save.
//
// Files of rows have names that no other save has. When all of them are there, and on the disk, the
// manifest is put in place of the old one, by which the new save takes over from the old; then the
// files of the old one are removed. So a crash at any moment leaves one of the two, whole, and
// perhaps files that no manifest names, which the next save removes.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/tf/on_gpu.h"
#include "cc/tf/saved_rows.h"
#include "cc/tf/table_op.h"
#include "cc/tf/whole_table.h"
#include "tensorflow/core/platform/env_time.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

uint64_t NewSaveNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// The strings of numbers of a dictionary.
struct NumberedStrings {
  const StringKeys* dictionary;
  const int64_t* numbers;

  StringBatch Batch(size_t size) const {
    return {this, size, [](const void* self, size_t i) {
              const NumberedStrings& strings = *static_cast<const NumberedStrings*>(self);
              return strings.dictionary->StringOf(strings.numbers[i]);
            }};
  }
};

// One save, under way.
class RowSave {
 public:
  RowSave(const SavePlace& place, size_t block_bytes, TableResource* table)
      : folder_(*place.folder), names_(place.file_name), block_bytes_(block_bytes), table_(table) {
    manifest_.save = NewSaveNumber();
    manifest_.key_type = StoredTypeOf(table->signature().key_dtype);
    manifest_.value_type = StoredTypeOf(table->signature().value_dtype);
    manifest_.dim = table->dim();
    manifest_.rank = place.rank;
    manifest_.processes = place.processes;
  }

  absl::Status Run() {
    TF_RETURN_IF_ERROR(folder_.Create());
    absl::Status status = WriteRows();
    for (size_t i = 0; status.ok() && i < sinks_.size(); ++i) status = sinks_[i]->Close();
    // The names of the files before that of the manifest.
    if (status.ok()) status = folder_.Sync();
    if (status.ok()) status = PutManifest();
    if (!status.ok()) {
      for (const RowManifest::File& file : manifest_.files) folder_.Remove(file.name);
      folder_.Remove(Aside());
      return status;
    }
    RemoveOlder();
    return absl::OkStatus();
  }

 private:
  std::string Aside() const {
    return names_.Rank(manifest_.rank, manifest_.processes) + std::to_string(manifest_.save) +
           ".aside";
  }

  // Writers wait until this is over, and go on while disks take in what was written.
  absl::Status WriteRows() {
    StringKeyScope string_scope(table_, KeyUse::kRead);
    HeldTables paused(table_->allocator());
    TF_RETURN_IF_ERROR(PauseWriters(*table_, &paused));
    SavedPolicy policy;
    RowFileHeader header;
    TF_RETURN_IF_ERROR(MetaOf(*table_, /*with_slots=*/true, &header.meta));
    TF_RETURN_IF_ERROR(PolicyOf(table_, &policy));
    header.key_type = manifest_.key_type;
    header.value_type = manifest_.value_type;
    header.num_shards = static_cast<uint32_t>(table_->num_shards());
    header.save = manifest_.save;
    header.statistics = policy.statistics;
    for (size_t number = 0; number < table_->num_shards(); ++number) {
      header.shard = static_cast<uint32_t>(number);
      // What is the variable's and not a shard's stands in the first file.
      header.policy = number == 0 ? policy.Encode() : std::vector<int64_t>();
      TF_RETURN_IF_ERROR(WriteShard(*table_->shard(number), header));
    }
    return absl::OkStatus();
  }

  absl::Status WriteShard(const Table& shard, const RowFileHeader& header) {
    RowManifest::File file;
    file.name = names_.Rows(manifest_.rank, manifest_.processes, manifest_.save, header.shard,
                            header.num_shards);
    manifest_.files.push_back(file);
    sinks_.emplace_back();
    TF_RETURN_IF_ERROR(FileSink::Create(folder_.PathOf(file.name), &sinks_.back()));
    RowFileWriter writer(sinks_.back().get(), table_->allocator(), block_bytes_);
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Begin(header)));
    const size_t row_bytes =
        sizeof(int64_t) + header.weight_bytes() + header.slot_bytes() + header.statistics_bytes();
    WholeRows exported(table_->allocator());
    for (ExportCursor cursor; !cursor.done;) {
      TF_RETURN_IF_ERROR(ToTensorFlow(shard.maintenance()->ExportBatch(
          std::max<size_t>(1, block_bytes_ / row_bytes), &cursor, &exported)));
      RowsToWrite rows;
      rows.size = exported.size;
      rows.keys = exported.keys.data();
      rows.weights = exported.weights.data();
      rows.slots = exported.slots.data();
      rows.statistics = exported.statistics.data();
      const NumberedStrings key_strings{table_->key_strings(), rows.keys};
      const NumberedStrings value_strings{table_->value_strings(),
                                          reinterpret_cast<const int64_t*>(rows.weights)};
      rows.key_strings = key_strings.Batch(rows.size);
      rows.value_strings = value_strings.Batch(rows.size * table_->dim());
      TF_RETURN_IF_ERROR(ToTensorFlow(writer.Append(rows)));
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(writer.Finish()));
    manifest_.files.back().bytes = writer.bytes();
    manifest_.files.back().rows = writer.rows();
    manifest_.files.back().checksum = writer.checksum();
    return absl::OkStatus();
  }

  absl::Status PutManifest() {
    // Later than what there is, whatever the clocks of those machines said.
    manifest_.milliseconds = tf::EnvTime::NowMicros() / 1000;
    std::vector<std::string> files;
    TF_RETURN_IF_ERROR(folder_.List(&files));
    for (const auto& ranks : RanksIn(names_, files)) {
      if (ranks.first == manifest_.processes) continue;
      manifest_.milliseconds = std::max(manifest_.milliseconds, LastTimeOf(ranks) + 1);
    }
    return folder_.Replace(names_.Manifest(manifest_.rank, manifest_.processes), Aside(),
                           manifest_.Encode());
  }

  // When the last part was written of those that can be read.
  uint64_t LastTimeOf(const SavedRanks::value_type& ranks) const {
    uint64_t last = 0;
    for (const uint32_t rank : ranks.second) {
      RowManifest manifest;
      if (ReadManifest(folder_, names_, rank, ranks.first, &manifest).ok()) {
        last = std::max(last, manifest.milliseconds);
      }
    }
    return last;
  }

  // Removes what this save takes the place of: this rank's other files and, once all ranks have
  // saved, the files of other numbers of processes.
  void RemoveOlder() const {
    std::vector<std::string> files;
    if (!folder_.List(&files).ok()) return;
    const SavedRanks present = RanksIn(names_, files);
    const auto own = present.find(manifest_.processes);
    uint64_t oldest = 0;
    if (own != present.end() && present.size() > 1 && IsComplete(*own)) {
      oldest = UINT64_MAX;
      for (const uint32_t rank : own->second) {
        RowManifest manifest;
        if (!ReadManifest(folder_, names_, rank, own->first, &manifest).ok()) oldest = 0;
        oldest = std::min(oldest, manifest.milliseconds);
      }
    }
    for (const auto& ranks : present) {
      if (ranks.first == manifest_.processes || LastTimeOf(ranks) >= oldest) continue;
      // Manifests first: without their files they would be a damaged save.
      for (const uint32_t rank : ranks.second) folder_.Remove(names_.Manifest(rank, ranks.first));
      RemoveRows(files, [&](uint32_t, uint32_t processes) { return processes == ranks.first; });
    }
    RemoveRows(files, [&](uint32_t rank, uint32_t processes) {
      return rank == manifest_.rank && processes == manifest_.processes;
    });
  }

  // Removes files other than manifests and those of this save.
  template <typename Wanted>
  void RemoveRows(const std::vector<std::string>& files, const Wanted& wanted) const {
    for (const std::string& file : files) {
      uint32_t rank, processes;
      if (!names_.IsOurs(file, &rank, &processes) || !wanted(rank, processes)) continue;
      const auto is_this = [&](const RowManifest::File& mine) { return mine.name == file; };
      if (file == names_.Manifest(rank, processes) ||
          std::any_of(manifest_.files.begin(), manifest_.files.end(), is_this)) {
        continue;
      }
      folder_.Remove(file);
    }
  }

  const Folder& folder_;
  const RowFileNames names_;
  const size_t block_bytes_;
  TableResource* const table_;
  RowManifest manifest_;
  std::vector<std::unique_ptr<FileSink>> sinks_;
};

class SaveRowsOp : public TableOp {
 public:
  explicit SaveRowsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("buffer_bytes", &buffer_bytes_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TF_RETURN_IF_ERROR(table->CheckMaintenance());
    SavePlace place;
    TF_RETURN_IF_ERROR(attributes_.PlaceOf(context, &place));
    // One after the other, or one would remove what the other has half written.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    return RowSave(place, static_cast<size_t>(buffer_bytes_), table).Run();
  }

  SaveAttributes attributes_;
  int64_t buffer_bytes_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSaveRows").Device(tf::DEVICE_CPU), SaveRowsOp);

const OnGpu<SaveRowsOp> save_rows("TfEmbedSaveRows", {"table", "folder", "file_name"});

}  // namespace
}  // namespace tf_embed
