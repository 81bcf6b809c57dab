// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/fold.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/saves/pending_save.h"
#include "cc/core/saves/saved_rows.h"

namespace tf_embed {
namespace {

// Files of a save are named by its number. A fold into the place of the save that it reads would
// write over them.
Status CheckIsNew(const SavePlace& to, size_t num_files) {
  const std::string file =
      RowFileNames(to.file_name)
          .Rows(/*rank=*/0, /*processes=*/1, to.joint_save, 0, static_cast<uint32_t>(num_files));
  if (!to.folder->CheckExists(file).ok()) return Status();
  return Status::InvalidArgument(
      "`to_folder` and `to_file_name` must not be the place of the save that is folded. Received: "
      "one that has '" +
      to.folder->PathOf(file) + "'.");
}

bool AreAlike(const RowFileHeader& one, const RowFileHeader& other) {
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
std::vector<Folded> FilesOf(const SavedRows& saved) {
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
SavedPolicy PolicyOf(const Folded& one, const SavedRows& saved) {
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
Status WriteAlike(const RowFileHeader& header, SavedRows* saved, size_t block_bytes,
                  PendingSave* save) {
  FileSink* sink;
  TF_EMBED_RETURN_IF_ERROR(save->NewFile(header.num_shards, &sink));
  RowFileWriter writer(sink, HostAllocator(), block_bytes);
  TF_EMBED_RETURN_IF_ERROR(writer.Begin(header));
  const size_t num_blocks = saved == nullptr ? 0 : saved->num_blocks();
  for (size_t number = 0; number < num_blocks; ++number) {
    if (!AreAlike(saved->FileOf(number).reader.header(), header)) continue;
    std::shared_ptr<const RowBlock> block;
    TF_EMBED_RETURN_IF_ERROR(saved->ReadBlock(number, &block));
    RowsToWrite rows;
    rows.size = block->size;
    rows.keys = block->keys;
    rows.key_strings = block->key_strings;
    rows.weights = block->weights;
    rows.value_strings = block->value_strings;
    rows.slots = block->slots;
    rows.statistics = block->statistics;
    TF_EMBED_RETURN_IF_ERROR(writer.Append(rows));
  }
  TF_EMBED_RETURN_IF_ERROR(writer.Finish());
  save->EndFile(writer);
  return Status();
}

}  // namespace

Status FoldSaves(const SavePlace& from, SavePlace to, size_t block_bytes, uint64_t* number) {
  std::shared_ptr<SavedRows> saved;
  TF_EMBED_RETURN_IF_ERROR(SavedRows::Open(from, /*whole=*/true, &saved));
  const SavedRows::File* slots;  // slots of two optimizers can't be merged
  TF_EMBED_RETURN_IF_ERROR(saved->FindSlots(&slots));
  const RowFileHeader& first = saved->files().front()->reader.header();
  RowManifest kind;
  kind.key_type = first.key_type;
  kind.value_type = first.value_type;
  kind.dim = first.meta.dim;
  const std::vector<Folded> files = FilesOf(*saved);
  // The folded save shows the same moment, and tables identify moments by the number, so it keeps
  // the number.
  if (saved->num_parts() == 1) to.joint_save = first.save;
  TF_EMBED_RETURN_IF_ERROR(CheckIsNew(to, files.size()));
  PendingSave save(std::move(to), kind);
  TF_EMBED_RETURN_IF_ERROR(save.Begin());
  for (size_t i = 0; i < files.size(); ++i) {
    RowFileHeader header = files[i].head->reader.header();
    header.save = save.number();
    header.shard = static_cast<uint32_t>(i);
    header.num_shards = static_cast<uint32_t>(files.size());
    // The new file has every row itself, in the dense form.
    header.has_changes = header.has_links = header.padded = false;
    if (!header.policy.empty()) header.policy = PolicyOf(files[i], *saved).Encode();
    TF_EMBED_RETURN_IF_ERROR(
        WriteAlike(header, files[i].has_rows ? saved.get() : nullptr, block_bytes, &save));
  }
  *number = save.number();
  return save.Commit();
}

}  // namespace tf_embed
