// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/saved_rows.h"

#include <algorithm>
#include <set>

namespace tf_embed {
namespace {

// Bounds the retries when a concurrent save replaces files between two looks.
constexpr int kMaxTries = 1000;
// Linked files kept open; more are opened for each read.
constexpr size_t kMaxOpenLinks = 256;
// Bound on a chain of incremental saves.
constexpr size_t kMaxChain = 10000;

std::string KindOf(StoredType keys, StoredType values, uint64_t dim) {
  return std::string("key ") + NameOf(keys) + ", value " + NameOf(values) + ", dim " +
         std::to_string(dim);
}

Status CheckKind(const Table& table, const std::string& file, StoredType keys, StoredType values,
                 uint64_t dim) {
  const std::string wanted =
      KindOf(table.stored_key_type(), table.stored_value_type(), table.dim());
  const std::string present = KindOf(keys, values, dim);
  if (wanted == present) return Status();
  return Status::InvalidArgument("'" + table.name() + "' can't load '" + file + "': it has " +
                                 wanted + ", and the rows in the file have " + present + ".");
}

// The type of saved values in a table. Strings are stored as numbers.
DataType ValueTypeOf(StoredType stored) {
  return stored == StoredType::kString ? DataType::kInt64 : static_cast<DataType>(stored);
}

Status NoSave(const SavePlace& place, const SavedRanks& ranks) {
  std::string present;
  for (const auto& [processes, some] : ranks) {
    for (const uint32_t rank : some) {
      present +=
          (present.empty() ? "" : ", ") + std::to_string(rank) + " of " + std::to_string(processes);
    }
  }
  return Status::NotFound("'" + place.folder->path() + "' holds no whole save of '" +
                          place.file_name + "'. " +
                          (present.empty() ? "It has no manifest of one."
                                           : "It has the parts of the processes " + present +
                                                 ", and this is " + std::to_string(place.rank) +
                                                 " of " + std::to_string(place.processes) + "."));
}

// The time of a save's first part.
Status TimeOf(const SaveFolder& folder, const RowFileNames& names,
              const SavedRanks::value_type& ranks, uint64_t* milliseconds) {
  *milliseconds = UINT64_MAX;
  for (const uint32_t rank : ranks.second) {
    RowManifest manifest;
    TF_EMBED_RETURN_IF_ERROR(ReadManifest(folder, names, rank, ranks.first, &manifest));
    *milliseconds = std::min(*milliseconds, manifest.milliseconds);
  }
  return Status();
}

// The manifests of the parts that a process reads.
Status FindParts(const SavePlace& place, bool whole, bool* by_key,
                 std::vector<RowManifest>* parts) {
  const SaveFolder& folder = *place.folder;
  RowFileNames names(place.file_name);
  std::vector<std::string> files;
  const Status listed = folder.List(&files);
  // A missing folder has no save, which NoSave reports with the path.
  if (!listed.ok() && listed.code() != StatusCode::kNotFound) return listed;
  SavedRanks ranks = RanksIn(names, files);
  if (ranks.empty()) {  // an earlier version may have saved it
    names = RowFileNames(place.file_name, /*shortens=*/false);
    ranks = RanksIn(names, files);
  }
  uint32_t processes = 0;
  uint64_t latest = 0;
  const auto complete = std::count_if(ranks.begin(), ranks.end(), IsComplete);
  for (const auto& some : ranks) {
    if (!IsComplete(some)) continue;
    // A crash may leave two complete saves; the newer save counts.
    uint64_t milliseconds = 0;
    // Not for a single save, because a network file system takes long for each manifest.
    if (complete > 1) TF_EMBED_RETURN_IF_ERROR(TimeOf(folder, names, some, &milliseconds));
    if (processes == 0 || milliseconds > latest) {
      processes = some.first;
      latest = milliseconds;
    }
  }
  std::vector<uint32_t> wanted;
  const auto own = ranks.find(place.processes);
  if (processes == 0 && !whole && own != ranks.end() &&
      std::count(own->second.begin(), own->second.end(), place.rank) > 0) {
    processes = place.processes;  // each process has its own folder
  }
  if (processes == 0) return NoSave(place, ranks);
  *by_key = !whole && processes != place.processes && place.processes > 1;
  if (!whole && processes == place.processes) {
    wanted = {place.rank};
  } else {
    wanted = ranks.at(processes);
  }
  parts->clear();
  for (const uint32_t rank : wanted) {
    parts->emplace_back();
    TF_EMBED_RETURN_IF_ERROR(ReadManifest(folder, names, rank, processes, &parts->back()));
  }
  return Status();
}

// Finds the manifest of save `number`, whatever its file names. If a fold was killed, the folder
// may have two saves of that number, the changes and their fold. The base of the changes may have
// been removed, so the fold counts.
Status FindSave(const SaveFolder& folder, uint32_t rank, uint32_t processes, uint64_t number,
                RowManifest* manifest) {
  const std::string end = RowFileNames("").Manifest(rank, processes);
  std::vector<std::string> files;
  TF_EMBED_RETURN_IF_ERROR(folder.List(&files));
  bool found = false;
  for (const std::string& file : files) {
    if (file.size() < end.size() || file.compare(file.size() - end.size(), end.size(), end) != 0) {
      continue;
    }
    std::string text;
    RowManifest one;
    TF_EMBED_RETURN_IF_ERROR(folder.ReadWhole(file, RowManifest::kMaxBytes, &text));
    TF_EMBED_RETURN_IF_ERROR(RowManifest::Decode(text, folder.PathOf(file), &one));
    if (one.save != number) continue;
    found = true;
    *manifest = std::move(one);
    if (manifest->since == 0) break;
  }
  if (found) return Status();
  return Status::NotFound("'" + folder.path() + "' has no such save.");
}

Status OpenNamed(const SaveFolder& folder, const std::string& name, uint64_t bytes, bool stays_open,
                 Allocator* allocator, std::unique_ptr<SavedRows::File>* file) {
  std::unique_ptr<ByteSource> source;
  TF_EMBED_RETURN_IF_ERROR(folder.Open(name, stays_open, &source));
  // A cheap check for truncated copies, before any block is read.
  if (source->size() != bytes) {
    return Status::DataLoss("'" + source->name() + "' is damaged: it has " +
                            std::to_string(source->size()) + " bytes, and had " +
                            std::to_string(bytes) + " when it was saved.");
  }
  *file = std::make_unique<SavedRows::File>(std::move(source), allocator);
  return Status();
}

// Whether a header is the one that the save's file of this number must have.
bool IsHeaderOf(const RowFileHeader& header, const RowManifest& manifest, size_t number) {
  return header.has_changes == (manifest.since != 0) && header.save == manifest.save &&
         header.shard == number && header.num_shards == manifest.files.size() &&
         header.key_type == manifest.key_type && header.value_type == manifest.value_type &&
         header.meta.dim == manifest.dim &&
         header.meta.value_type == ValueTypeOf(header.value_type);
}

// The parts of a save may come from several processes.
Status CheckAlike(const SavedRows::File& first, const SavedRows::File& file) {
  const RowFileHeader& one = first.reader.header();
  const RowFileHeader& other = file.reader.header();
  if (one.key_type == other.key_type && one.value_type == other.value_type &&
      one.meta.dim == other.meta.dim) {
    return Status();
  }
  return Status::FailedPrecondition("'" + first.source->name() + "' and '" + file.source->name() +
                                    "' have rows of different kinds.");
}

Status NotSaved(const SavedRows::File& file) {
  return Status::DataLoss("'" + file.source->name() + "' is damaged: it is not what was saved.");
}

}  // namespace

Status SavedRows::File::Damaged(const Status& status) const {
  if (status.code() != StatusCode::kInvalidArgument) return status;
  return Status::DataLoss("'" + source->name() + "' is damaged: " + status.message());
}

Status SavedRows::File::CheckFits(const Table& table) const {
  const RowFileHeader& header = reader.header();
  return CheckKind(table, source->name(), header.key_type, header.value_type, header.meta.dim);
}

bool SavedRows::File::HasAllStatistics(const Table& table) const {
  return table.HasAllStatistics(reader.header().statistics);
}

Status SavedRows::Open(const SavePlace& place, bool whole, const Table& table,
                       std::shared_ptr<SavedRows>* rows) {
  return Open(place, whole, /*alone=*/false, table.allocator(), &table, rows);
}

Status SavedRows::OpenAlone(const SavePlace& place, const Table& table,
                            std::shared_ptr<SavedRows>* rows) {
  return Open(place, /*whole=*/true, /*alone=*/true, table.allocator(), &table, rows);
}

Status SavedRows::Open(const SavePlace& place, bool whole, std::shared_ptr<SavedRows>* rows) {
  return Open(place, whole, /*alone=*/false, HostAllocator(), nullptr, rows);
}

Status SavedRows::OpenAlone(const SavePlace& place, std::shared_ptr<SavedRows>* rows) {
  return Open(place, /*whole=*/true, /*alone=*/true, HostAllocator(), nullptr, rows);
}

Status SavedRows::Describe(const SavePlace& place, std::vector<RowManifest>* parts,
                           RowFileHeader* header) {
  bool by_key;
  std::unique_ptr<File> file;
  TF_EMBED_RETURN_IF_ERROR(FindParts(place, /*whole=*/true, &by_key, parts));
  const RowManifest& first = parts->front();
  TF_EMBED_RETURN_IF_ERROR(OpenNamed(*place.folder, first.files[0].name, first.files[0].bytes,
                                     /*stays_open=*/true, HostAllocator(), &file));
  TF_EMBED_RETURN_IF_ERROR(file->reader.ReadHeader());
  *header = file->reader.header();
  return IsHeaderOf(*header, first, 0) ? Status() : NotSaved(*file);
}

Status SavedRows::Open(const SavePlace& place, bool whole, bool alone, Allocator* allocator,
                       const Table* table, std::shared_ptr<SavedRows>* rows) {
  Status status;
  std::vector<uint64_t> saves, last_saves;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    std::vector<RowManifest> parts;
    // A new object for each try: files of two saves must not mix.
    rows->reset(new SavedRows(allocator));
    status = FindParts(place, whole, &(*rows)->by_key_, &parts);
    saves.clear();
    for (const RowManifest& part : parts) saves.push_back(part.save);
    for (size_t i = 0; status.ok() && i < parts.size(); ++i) {
      status = (*rows)->OpenPart(place, parts[i], alone, table);
    }
    // Retry only while new saves appear. A file missing from the last save stays missing.
    if (status.code() != StatusCode::kNotFound || (tries > 0 && saves == last_saves)) break;
    last_saves.swap(saves);
  }
  return status;
}

Status SavedRows::OpenPart(const SavePlace& place, const RowManifest& manifest, bool alone,
                           const Table* table) {
  ++num_parts_;
  RowManifest save = manifest;
  const SaveFolder* folder = place.folder.get();
  std::unique_ptr<SaveFolder> base;
  std::vector<std::shared_ptr<const KeySet>> newer;
  std::set<uint64_t> numbers = {save.save};
  for (;;) {
    const size_t first = files_.size();
    TF_EMBED_RETURN_IF_ERROR(OpenSave(*folder, save, table, newer));
    if (save.since == 0 || alone) return Status();
    newer.emplace_back();
    TF_EMBED_RETURN_IF_ERROR(KeysOf(first, &newer.back()));
    const uint64_t since = save.since;
    const std::string newer_path = folder->path();
    base = folder->Sibling(save.since_name);
    folder = base.get();
    // A damaged or crafted chain may lead back to itself.
    if (newer.size() > kMaxChain || !numbers.insert(since).second) {
      return Status::DataLoss("'" + newer_path + "' is changes of itself.");
    }
    const Status found = FindSave(*folder, manifest.rank, manifest.processes, since, &save);
    if (found.code() == StatusCode::kNotFound) {
      return Status::DataLoss("'" + newer_path + "' has changes of a save in '" + folder->path() +
                              "', which is not there any more.");
    }
    TF_EMBED_RETURN_IF_ERROR(found);
  }
}

Status SavedRows::KeysOf(size_t first, std::shared_ptr<const KeySet>* keys) const {
  auto made = std::make_shared<KeySet>();
  RowBlock block(allocator_);
  for (size_t number = first; number < files_.size(); ++number) {
    const RowFileReader& reader = files_[number]->reader;
    for (size_t i = 0; i < reader.num_blocks(); ++i) {
      TF_EMBED_RETURN_IF_ERROR(reader.ReadBlock(i, &block));
      TF_EMBED_RETURN_IF_ERROR(made->Add(block.keys, block.size));
    }
  }
  TF_EMBED_RETURN_IF_ERROR(made->Build());
  *keys = std::move(made);
  return Status();
}

Status SavedRows::OpenLinks(const SaveFolder& folder, const RowManifest& manifest,
                            std::vector<const RowFileReader*>* links) {
  const size_t begin = linked_.size();
  for (const RowManifest::Link& named : manifest.links) {
    linked_.emplace_back();
    TF_EMBED_RETURN_IF_ERROR(OpenNamed(folder, named.name, named.bytes,
                                       linked_.size() <= kMaxOpenLinks, allocator_,
                                       &linked_.back()));
  }
  for (size_t number = begin; number < linked_.size(); ++number) {
    File& file = *linked_[number];
    // Reads every byte. So damage can't stop a load after it has replaced half of the rows.
    TF_EMBED_RETURN_IF_ERROR(file.reader.Verify());
    // A file can be whole by itself, and of equal length, and still not be the linked file.
    if (file.reader.checksum() != manifest.links[number - begin].checksum) return NotSaved(file);
    links->push_back(&file.reader);
  }
  return Status();
}

Status SavedRows::OpenSave(const SaveFolder& folder, const RowManifest& manifest,
                           const Table* table,
                           const std::vector<std::shared_ptr<const KeySet>>& newer) {
  if (table != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(CheckKind(*table, folder.PathOf(manifest.files[0].name),
                                       manifest.key_type, manifest.value_type, manifest.dim));
  }
  // Open all files before reading any: on a local disk, an open file survives removal.
  const size_t begin = files_.size();
  for (const RowManifest::File& named : manifest.files) {
    files_.emplace_back();
    TF_EMBED_RETURN_IF_ERROR(OpenNamed(folder, named.name, named.bytes, /*stays_open=*/true,
                                       allocator_, &files_.back()));
  }
  auto links = std::make_shared<std::vector<const RowFileReader*>>();
  TF_EMBED_RETURN_IF_ERROR(OpenLinks(folder, manifest, links.get()));
  for (size_t number = begin; number < files_.size(); ++number) {
    const RowManifest::File& named = manifest.files[number - begin];
    File& file = *files_[number];
    file.links = links;
    file.reader.SetLinks(*links);
    TF_EMBED_RETURN_IF_ERROR(file.reader.Verify());
    const RowFileHeader& header = file.reader.header();
    TF_EMBED_RETURN_IF_ERROR(table != nullptr ? file.CheckFits(*table)
                                              : CheckAlike(*files_[0], file));
    file.newer = newer;
    // Each file is whole by itself. This checks that the files belong together.
    if (file.reader.checksum() != named.checksum || file.reader.rows() != named.rows ||
        !IsHeaderOf(header, manifest, number - begin)) {
      return NotSaved(file);
    }
    if (!header.policy.empty()) {
      TF_EMBED_RETURN_IF_ERROR(file.Damaged(
          SavedPolicy::Decode(header.policy.data(), header.policy.size(), &file.policy)));
    }
    for (size_t block = 0; block < file.reader.num_blocks(); ++block) {
      if (!file.reader.HasLeft(block)) blocks_.emplace_back(number, block);
    }
  }
  return Status();
}

Status SavedRows::ReadNewest(size_t block, RowBlock* rows) const {
  const File& file = FileOf(block);
  TF_EMBED_RETURN_IF_ERROR(file.reader.ReadBlock(blocks_[block].second, rows));
  if (file.newer.empty()) return Status();
  Buffer<uint32_t> places(allocator_);
  TF_EMBED_RETURN_IF_ERROR(places.Resize(rows->size));
  size_t count = 0;
  for (size_t i = 0; i < rows->size; ++i) {
    const auto has = [&](const auto& keys) { return keys->Has(rows->keys[i]); };
    // Skips keys that a newer save of the chain wrote or removed. So blocks may be loaded in any
    // order.
    if (std::none_of(file.newer.begin(), file.newer.end(), has)) {
      places[count++] = static_cast<uint32_t>(i);
    }
  }
  if (count < rows->size) rows->Keep(file.reader.header(), places.data(), count);
  return Status();
}

void SavedRows::SetClockOf(Table* table) const {
  uint64_t step = 0;
  uint64_t epoch = 0;
  for (const auto& file : files_) {
    step = std::max(step, file->policy.step);
    epoch = std::max(epoch, file->policy.epoch);
  }
  // The clock must not be behind the last use of any row.
  if (step > table->clock()->step()) table->clock()->SetStep(step);
  if (epoch > table->clock()->epoch()) table->clock()->SetEpoch(epoch);
  // Rows without usage statistics count as used in a single finished step. Blocks of newer saves
  // are first.
  for (size_t block = 0; block < num_blocks(); ++block) {
    if (FileOf(block).HasAllStatistics(*table)) continue;
    table->clock()->BeginStep();
    break;
  }
}

Status SavedRows::CountRows(uint64_t* count) const {
  *count = 0;
  for (const auto& file : files_) *count += file->newer.empty() ? file->reader.rows() : 0;
  RowBlock rows(allocator_);
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (FileOf(block).newer.empty()) continue;
    TF_EMBED_RETURN_IF_ERROR(ReadNewest(block, &rows));
    *count += rows.size;
  }
  return Status();
}

Status SavedRows::FindSlots(const File** found) const {
  *found = nullptr;
  for (const auto& file : files_) {
    if (!HasSlots(*file)) continue;
    const RuleSlots& rule = file->reader.header().meta.rule;
    if (*found == nullptr) *found = file.get();
    if (!SameRule((*found)->reader.header().meta.rule, rule)) {
      return Status::FailedPrecondition("'" + file->source->name() + "' and '" +
                                        (*found)->source->name() +
                                        "' have the slots of different optimizers.");
    }
  }
  return Status();
}

Status SavedRows::ReadBlock(size_t block, std::shared_ptr<const RowBlock>* rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A caller that chooses rows by their keys asks for the same block twice.
  if (last_rows_ == nullptr || last_block_ != block) {
    // Frees the old block before the new block is read, so at most one block is in memory.
    last_rows_.reset();
    auto read = std::make_shared<RowBlock>(allocator_);
    TF_EMBED_RETURN_IF_ERROR(ReadNewest(block, read.get()));
    last_rows_ = std::move(read);
    last_block_ = block;
  }
  *rows = last_rows_;
  return Status();
}

}  // namespace tf_embed
