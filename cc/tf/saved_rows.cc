// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/saved_rows.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/key_types.h"
#include "cc/tf/op_inputs.h"
#include "tensorflow/core/platform/path.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Bounds the retries when a concurrent save replaces files between two looks.
constexpr int kMaxTries = 1000;
// Linked files kept open; more are opened for each read.
constexpr size_t kMaxOpenLinks = 256;
// Bound on a chain of incremental saves.
constexpr size_t kMaxChain = 10000;

std::string KindOf(StoredType keys, StoredType values, uint64_t dim) {
  return absl::StrCat("key ", NameOf(keys), ", value ", NameOf(values), ", dim ", dim);
}

absl::Status CheckKind(const TableResource& table, const std::string& file, StoredType keys,
                       StoredType values, uint64_t dim) {
  const TableResource::Signature& signature = table.signature();
  const std::string wanted =
      KindOf(StoredTypeOf(signature.key_dtype), StoredTypeOf(signature.value_dtype), table.dim());
  const std::string present = KindOf(keys, values, dim);
  if (wanted == present) return absl::OkStatus();
  return InvalidArgumentError("'", table.name(), "' can't load '", file, "': it has ", wanted,
                              ", and the rows in the file have ", present, ".");
}

// The type of saved values in a table. Strings are stored as numbers.
DataType ValueTypeOf(StoredType stored) {
  return stored == StoredType::kString ? DataType::kInt64 : static_cast<DataType>(stored);
}

absl::Status NoSave(const SavePlace& place, const SavedRanks& ranks) {
  std::string present;
  for (const auto& [processes, some] : ranks) {
    for (const uint32_t rank : some) {
      absl::StrAppend(&present, present.empty() ? "" : ", ", rank, " of ", processes);
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "'", place.folder->path(), "' holds no whole save of '", place.file_name, "'. ",
      present.empty() ? "It has no manifest of one."
                      : absl::StrCat("It has the parts of the processes ", present,
                                     ", and this is ", place.rank, " of ", place.processes, ".")));
}

// The time of a save's first part.
absl::Status TimeOf(const Folder& folder, const RowFileNames& names,
                    const SavedRanks::value_type& ranks, uint64_t* milliseconds) {
  *milliseconds = UINT64_MAX;
  for (const uint32_t rank : ranks.second) {
    RowManifest manifest;
    TF_RETURN_IF_ERROR(ReadManifest(folder, names, rank, ranks.first, &manifest));
    *milliseconds = std::min(*milliseconds, manifest.milliseconds);
  }
  return absl::OkStatus();
}

// The manifests of the parts that a process reads.
absl::Status FindParts(const SavePlace& place, bool whole, bool* by_key,
                       std::vector<RowManifest>* parts) {
  const Folder& folder = *place.folder;
  RowFileNames names(place.file_name);
  std::vector<std::string> files;
  const absl::Status listed = folder.List(&files);
  // A missing folder has no save, which NoSave reports with the path.
  if (!listed.ok() && !absl::IsNotFound(listed)) return listed;
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
    if (complete > 1) TF_RETURN_IF_ERROR(TimeOf(folder, names, some, &milliseconds));
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
    TF_RETURN_IF_ERROR(ReadManifest(folder, names, rank, processes, &parts->back()));
  }
  return absl::OkStatus();
}

// Finds the manifest of save `number`, whatever its file names. If a fold was killed, the folder
// may have two saves of that number, the changes and their fold. The base of the changes may have
// been removed, so the fold counts.
absl::Status FindSave(const Folder& folder, uint32_t rank, uint32_t processes, uint64_t number,
                      RowManifest* manifest) {
  const std::string end = RowFileNames("").Manifest(rank, processes);
  std::vector<std::string> files;
  TF_RETURN_IF_ERROR(folder.List(&files));
  bool found = false;
  for (const std::string& file : files) {
    if (!absl::EndsWith(file, end)) continue;
    std::string text;
    RowManifest one;
    const std::string path = folder.PathOf(file);
    TF_RETURN_IF_ERROR(ReadWholeFile(path, RowManifest::kMaxBytes, &text));
    TF_RETURN_IF_ERROR(ToTensorFlow(RowManifest::Decode(text, path, &one)));
    if (one.save != number) continue;
    found = true;
    *manifest = std::move(one);
    if (manifest->since == 0) break;
  }
  if (found) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("'", folder.path(), "' has no such save."));
}

absl::Status OpenNamed(const Folder& folder, const std::string& name, uint64_t bytes,
                       bool stays_open, Allocator* allocator,
                       std::unique_ptr<SavedRows::File>* file) {
  std::unique_ptr<FileSource> source;
  TF_RETURN_IF_ERROR(FileSource::Open(folder.PathOf(name), stays_open, &source));
  // A cheap check for truncated copies, before any block is read.
  if (source->size() != bytes) {
    return absl::DataLossError(absl::StrCat("'", source->name(), "' is damaged: it has ",
                                            source->size(), " bytes, and had ", bytes,
                                            " when it was saved."));
  }
  *file = std::make_unique<SavedRows::File>(std::move(source), allocator);
  return absl::OkStatus();
}

// The parts of a save may come from several processes.
absl::Status CheckAlike(const SavedRows::File& first, const SavedRows::File& file) {
  const RowFileHeader& one = first.reader.header();
  const RowFileHeader& other = file.reader.header();
  if (one.key_type == other.key_type && one.value_type == other.value_type &&
      one.meta.dim == other.meta.dim) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("'", first.source->name(), "' and '",
                                                    file.source->name(),
                                                    "' have rows of different kinds."));
}

absl::Status NotSaved(const SavedRows::File& file) {
  return absl::DataLossError(
      absl::StrCat("'", file.source->name(), "' is damaged: it is not what was saved."));
}

}  // namespace

StoredType StoredTypeOf(tf::DataType type) {
  switch (type) {
#define TF_EMBED_KEY(type, dtype, name, stored) \
  case tf::dtype:                               \
    return StoredType::stored;
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
    case tf::DT_STRING:
      return StoredType::kString;
    default:
      return static_cast<StoredType>(CoreType(type));
  }
}

absl::Status ReadPlace(tf::OpKernelContext* context, int input, SavePlace* place) {
  tf::tstring folder, file_name;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input), "folder", &folder));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 1), "file_name", &file_name));
  if (folder.empty()) return InvalidArgumentError("`folder` must name a folder. Received: ''.");
  place->folder = std::make_unique<Folder>(std::string(folder));
  place->file_name = std::string(file_name);
  return absl::OkStatus();
}

absl::Status ReadPart(tf::OpKernelContext* context, int input, SavePlace* place) {
  int64_t save, rank, processes;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input), "save", &save));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 1), "rank", &rank));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 2), "processes", &processes));
  if (save == 0) return InvalidArgumentError("`save` must not be 0. Received: 0.");
  if (processes < 1 || processes > kMaxParts || rank < 0 || rank >= processes) {
    return InvalidArgumentError("`rank` must be from 0 to `processes`, of at most ", kMaxParts,
                                ". Received: rank=", rank, ", processes=", processes, ".");
  }
  place->joint_save = static_cast<uint64_t>(save);
  place->rank = static_cast<uint32_t>(rank);
  place->processes = static_cast<uint32_t>(processes);
  return absl::OkStatus();
}

absl::Status SaveAttributes::Read(tf::OpKernelConstruction* construction) {
  int64_t number, count;
  TF_RETURN_IF_ERROR(construction->GetAttr("folder_variable", &folder_variable_));
  TF_RETURN_IF_ERROR(construction->GetAttr("rank", &number));
  TF_RETURN_IF_ERROR(construction->GetAttr("processes", &count));
  if (count < 1 || count > INT32_MAX || number < 0 || number >= count) {
    return InvalidArgumentError("`rank` must be from 0 to `processes`. Received: rank=", number,
                                ", processes=", count, ".");
  }
  rank_ = static_cast<uint32_t>(number);
  processes_ = static_cast<uint32_t>(count);
  return absl::OkStatus();
}

absl::Status SaveAttributes::PlaceOf(tf::OpKernelContext* context, SavePlace* place) const {
  tf::tstring folder, file_name;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "dirpath", &folder));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "file_name", &file_name));
  const char* const other =
      folder_variable_.empty() ? nullptr : std::getenv(folder_variable_.c_str());
  std::string path = other != nullptr ? other : "";
  if (path.empty()) path = std::string(folder);
  if (path.empty()) return InvalidArgumentError("`dirpath` must name a folder. Received: ''.");
  place->folder = std::make_unique<Folder>(std::move(path));
  place->file_name = std::string(file_name);
  place->rank = rank_;
  place->processes = processes_;
  return absl::OkStatus();
}

SavedRanks RanksIn(const RowFileNames& names, const std::vector<std::string>& files) {
  SavedRanks ranks;
  for (const std::string& file : files) {
    uint32_t rank, processes;
    if (names.IsManifest(file, &rank, &processes)) ranks[processes].push_back(rank);
  }
  for (auto& some : ranks) std::sort(some.second.begin(), some.second.end());
  return ranks;
}

bool IsComplete(const SavedRanks::value_type& ranks) { return ranks.second.size() == ranks.first; }

absl::Status ReadManifest(const Folder& folder, const RowFileNames& names, uint32_t rank,
                          uint32_t processes, RowManifest* manifest) {
  const std::string name = names.Manifest(rank, processes);
  const std::string path = folder.PathOf(name);
  std::string text;
  TF_RETURN_IF_ERROR(ReadWholeFile(path, RowManifest::kMaxBytes, &text));
  TF_RETURN_IF_ERROR(ToTensorFlow(RowManifest::Decode(text, path, manifest)));
  if (manifest->rank != rank || manifest->processes != processes) {
    return absl::DataLossError(absl::StrCat("'", path, "' is the manifest of process ",
                                            manifest->rank, " of ", manifest->processes,
                                            ", and has the name of another."));
  }
  return absl::OkStatus();
}

absl::Status SavedRows::File::Damaged(const absl::Status& status) const {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::DataLossError(absl::StrCat("'", source->name(), "' is damaged: ", status.message()));
}

absl::Status SavedRows::File::CheckFits(const TableResource& table) const {
  const RowFileHeader& header = reader.header();
  return CheckKind(table, source->name(), header.key_type, header.value_type, header.meta.dim);
}

bool SavedRows::File::HasAllStatistics(const TableResource& table) const {
  return table.HasAllStatistics(reader.header().statistics);
}

absl::Status SavedRows::Open(const SavePlace& place, bool whole, const TableResource& table,
                             std::shared_ptr<SavedRows>* rows) {
  return Open(place, whole, /*alone=*/false, table.allocator(), &table, rows);
}

absl::Status SavedRows::OpenAlone(const SavePlace& place, const TableResource& table,
                                  std::shared_ptr<SavedRows>* rows) {
  return Open(place, /*whole=*/true, /*alone=*/true, table.allocator(), &table, rows);
}

absl::Status SavedRows::Open(const SavePlace& place, bool whole, std::shared_ptr<SavedRows>* rows) {
  return Open(place, whole, /*alone=*/false, HostAllocator(), nullptr, rows);
}

absl::Status SavedRows::Open(const SavePlace& place, bool whole, bool alone, Allocator* allocator,
                             const TableResource* table, std::shared_ptr<SavedRows>* rows) {
  absl::Status status;
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
    if (!absl::IsNotFound(status) || (tries > 0 && saves == last_saves)) break;
    last_saves.swap(saves);
  }
  return status;
}

absl::Status SavedRows::OpenPart(const SavePlace& place, const RowManifest& manifest, bool alone,
                                 const TableResource* table) {
  ++num_parts_;
  RowManifest save = manifest;
  std::string path = place.folder->path();
  std::vector<std::shared_ptr<const KeySet>> newer;
  std::set<uint64_t> numbers = {save.save};
  for (;;) {
    const size_t first = files_.size();
    TF_RETURN_IF_ERROR(OpenSave(Folder(path), save, table, newer));
    if (save.since == 0 || alone) return absl::OkStatus();
    newer.emplace_back();
    TF_RETURN_IF_ERROR(KeysOf(first, &newer.back()));
    const uint64_t since = save.since;
    const std::string newer_path = path;
    path = tf::io::JoinPath(tf::io::Dirname(path), save.since_name);
    // A damaged or crafted chain may lead back to itself.
    if (newer.size() > kMaxChain || !numbers.insert(since).second) {
      return absl::DataLossError(absl::StrCat("'", newer_path, "' is changes of itself."));
    }
    const absl::Status found =
        FindSave(Folder(path), manifest.rank, manifest.processes, since, &save);
    if (absl::IsNotFound(found)) {
      return absl::DataLossError(absl::StrCat("'", newer_path, "' has changes of a save in '", path,
                                              "', which is not there any more."));
    }
    TF_RETURN_IF_ERROR(found);
  }
}

absl::Status SavedRows::KeysOf(size_t first, std::shared_ptr<const KeySet>* keys) const {
  auto made = std::make_shared<KeySet>();
  RowBlock block(allocator_);
  for (size_t number = first; number < files_.size(); ++number) {
    const RowFileReader& reader = files_[number]->reader;
    for (size_t i = 0; i < reader.num_blocks(); ++i) {
      TF_RETURN_IF_ERROR(ToTensorFlow(reader.ReadBlock(i, &block)));
      TF_RETURN_IF_ERROR(ToTensorFlow(made->Add(block.keys, block.size)));
    }
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(made->Build()));
  *keys = std::move(made);
  return absl::OkStatus();
}

absl::Status SavedRows::OpenLinks(const Folder& folder, const RowManifest& manifest,
                                  std::vector<const RowFileReader*>* links) {
  const size_t begin = linked_.size();
  for (const RowManifest::Link& named : manifest.links) {
    linked_.emplace_back();
    TF_RETURN_IF_ERROR(OpenNamed(folder, named.name, named.bytes, linked_.size() <= kMaxOpenLinks,
                                 allocator_, &linked_.back()));
  }
  for (size_t number = begin; number < linked_.size(); ++number) {
    File& file = *linked_[number];
    // Reads every byte. So damage can't stop a load after it has replaced half of the rows.
    TF_RETURN_IF_ERROR(ToTensorFlow(file.reader.Verify()));
    // A file can be whole by itself, and of equal length, and still not be the linked file.
    if (file.reader.checksum() != manifest.links[number - begin].checksum) return NotSaved(file);
    links->push_back(&file.reader);
  }
  return absl::OkStatus();
}

absl::Status SavedRows::OpenSave(const Folder& folder, const RowManifest& manifest,
                                 const TableResource* table,
                                 const std::vector<std::shared_ptr<const KeySet>>& newer) {
  if (table != nullptr) {
    TF_RETURN_IF_ERROR(CheckKind(*table, folder.PathOf(manifest.files[0].name), manifest.key_type,
                                 manifest.value_type, manifest.dim));
  }
  // Open all files before reading any: on a local disk, an open file survives removal.
  const size_t begin = files_.size();
  for (const RowManifest::File& named : manifest.files) {
    files_.emplace_back();
    TF_RETURN_IF_ERROR(OpenNamed(folder, named.name, named.bytes, /*stays_open=*/true, allocator_,
                                 &files_.back()));
  }
  auto links = std::make_shared<std::vector<const RowFileReader*>>();
  TF_RETURN_IF_ERROR(OpenLinks(folder, manifest, links.get()));
  for (size_t number = begin; number < files_.size(); ++number) {
    const RowManifest::File& named = manifest.files[number - begin];
    File& file = *files_[number];
    file.links = links;
    file.reader.SetLinks(*links);
    TF_RETURN_IF_ERROR(ToTensorFlow(file.reader.Verify()));
    const RowFileHeader& header = file.reader.header();
    TF_RETURN_IF_ERROR(table != nullptr ? file.CheckFits(*table) : CheckAlike(*files_[0], file));
    file.newer = newer;
    // Each file is whole by itself. This checks that the files belong together.
    if (header.has_changes != (manifest.since != 0) || file.reader.checksum() != named.checksum ||
        file.reader.rows() != named.rows || header.save != manifest.save ||
        header.shard != number - begin || header.num_shards != manifest.files.size() ||
        header.key_type != manifest.key_type || header.value_type != manifest.value_type ||
        header.meta.dim != manifest.dim ||
        header.meta.value_type != ValueTypeOf(header.value_type)) {
      return NotSaved(file);
    }
    if (!header.policy.empty()) {
      TF_RETURN_IF_ERROR(file.Damaged(ToTensorFlow(
          SavedPolicy::Decode(header.policy.data(), header.policy.size(), &file.policy))));
    }
    for (size_t block = 0; block < file.reader.num_blocks(); ++block) {
      if (!file.reader.HasLeft(block)) blocks_.emplace_back(number, block);
    }
  }
  return absl::OkStatus();
}

absl::Status SavedRows::ReadNewest(size_t block, RowBlock* rows) const {
  const File& file = FileOf(block);
  TF_RETURN_IF_ERROR(ToTensorFlow(file.reader.ReadBlock(blocks_[block].second, rows)));
  if (file.newer.empty()) return absl::OkStatus();
  Buffer<uint32_t> places(allocator_);
  TF_RETURN_IF_ERROR(ToTensorFlow(places.Resize(rows->size)));
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
  return absl::OkStatus();
}

void SavedRows::SetClockOf(TableResource* table) const {
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

absl::Status SavedRows::CountRows(uint64_t* count) const {
  *count = 0;
  for (const auto& file : files_) *count += file->newer.empty() ? file->reader.rows() : 0;
  RowBlock rows(allocator_);
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (FileOf(block).newer.empty()) continue;
    TF_RETURN_IF_ERROR(ReadNewest(block, &rows));
    *count += rows.size;
  }
  return absl::OkStatus();
}

absl::Status SavedRows::FindSlots(const File** found) const {
  *found = nullptr;
  for (const auto& file : files_) {
    if (!HasSlots(*file)) continue;
    const RuleSlots& rule = file->reader.header().meta.rule;
    if (*found == nullptr) *found = file.get();
    if (!SameRule((*found)->reader.header().meta.rule, rule)) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", file->source->name(), "' and '", (*found)->source->name(),
                       "' have the slots of different optimizers."));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedRows::ReadBlock(size_t block, std::shared_ptr<const RowBlock>* rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  // SavedKeys and LoadSavedRows ask for the same block in succession.
  if (last_rows_ == nullptr || last_block_ != block) {
    // Frees the old block before the new block is read, so at most one block is in memory.
    last_rows_.reset();
    auto read = std::make_shared<RowBlock>(allocator_);
    TF_RETURN_IF_ERROR(ReadNewest(block, read.get()));
    last_rows_ = std::move(read);
    last_block_ = block;
  }
  *rows = last_rows_;
  return absl::OkStatus();
}

absl::Status ReadBlockInput(tf::OpKernelContext* context, int input, SavedRows** rows,
                            size_t* block) {
  const tf::Tensor& number = context->input(input + 1);
  *rows = SavedRowsVariant::In(context->input(input));
  if (*rows == nullptr) return InvalidArgumentError("`rows` must be the open files of saved rows.");
  const int64_t wanted = number.dims() == 0 ? number.scalar<int64_t>()() : -1;
  if (wanted < 0 || wanted >= static_cast<int64_t>((*rows)->num_blocks())) {
    return InvalidArgumentError("`block` must be a scalar less than ", (*rows)->num_blocks(),
                                ". Received: ", number.DebugString(), ".");
  }
  *block = static_cast<size_t>(wanted);
  return absl::OkStatus();
}

}  // namespace tf_embed
