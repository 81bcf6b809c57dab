// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/pending_save.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tf_embed {
namespace {

Status TooManyShards(const std::string& received) {
  return Status::InvalidArgument("A save has at most " + std::to_string(RowManifest::kMaxFiles) +
                                 " shards. Received: " + received + ".");
}

}  // namespace

PendingSave::PendingSave(SavePlace place, const RowManifest& kind)
    : folder_(std::move(place.folder)),
      names_(place.file_name),
      is_part_(place.joint_save != 0),
      manifest_(kind) {
  // Random, because processes that save to the same folder share no counter. A collision would let
  // files of two saves pass as a single save.
  manifest_.save = is_part_ ? place.joint_save : RandomNumber();
  manifest_.rank = place.rank;
  manifest_.processes = place.processes;
}

void PendingSave::GiveUp() {
  if (!begun_ || committed_) return;
  // Removal runs once: the destructor calls this again.
  begun_ = false;
  for (const std::string& file : FileNames()) folder_->Remove(file);
}

std::vector<std::string> PendingSave::FileNames() const {
  std::vector<std::string> names;
  for (const RowManifest::File& file : manifest_.files) names.push_back(file.name);
  for (const RowManifest::Link& link : manifest_.links) names.push_back(link.name);
  return names;
}

uint32_t PendingSave::ShardOf(size_t shard, uint32_t num_shards) const {
  return static_cast<uint32_t>(shard) + (is_part_ ? manifest_.rank * num_shards : 0);
}

uint32_t PendingSave::NumShards(uint32_t num_shards) const {
  return is_part_ ? manifest_.processes * num_shards : num_shards;
}

Status PendingSave::Begin() {
  TF_EMBED_RETURN_IF_ERROR(folder_->Create());
  begun_ = true;
  return Status();
}

Status PendingSave::NewFile(uint32_t num_shards, FileSink** sink) {
  if (uint64_t{num_shards} * manifest_.processes > RowManifest::kMaxFiles) {
    return TooManyShards(std::to_string(num_shards) + " of each of " +
                         std::to_string(manifest_.processes) + " processes");
  }
  const uint32_t shard = ShardOf(manifest_.files.size(), num_shards);
  RowManifest::File file;
  file.name = names_.Rows(manifest_.rank, manifest_.processes, manifest_.save, shard,
                          NumShards(num_shards));
  manifest_.files.push_back(file);
  sinks_.emplace_back();
  TF_EMBED_RETURN_IF_ERROR(folder_->NewFile(file.name, &sinks_.back()));
  *sink = sinks_.back().get();
  return Status();
}

bool PendingSave::LinkFile(const std::string& path, uint64_t bytes, uint32_t checksum,
                           uint32_t* number) {
  if (manifest_.links.size() == RowManifest::kMaxLinks) return false;
  *number = static_cast<uint32_t>(manifest_.links.size());
  RowManifest::Link link;
  link.name = names_.Link(manifest_.rank, manifest_.processes, manifest_.save, *number);
  link.bytes = bytes;
  link.checksum = checksum;
  if (!folder_->Link(path, link.name)) return false;
  manifest_.links.push_back(std::move(link));
  return true;
}

void PendingSave::EndFile(const RowFileWriter& writer) {
  manifest_.files.back().bytes = writer.bytes();
  manifest_.files.back().rows = writer.rows();
  manifest_.files.back().checksum = writer.checksum();
}

Status PendingSave::Commit() {
  // The contents first, then their names, then the manifest: whenever a crash happens, the manifest
  // on disk names complete files.
  for (const auto& sink : sinks_) TF_EMBED_RETURN_IF_ERROR(sink->Close());
  // Flush the row files' directory entries before the manifest names them.
  TF_EMBED_RETURN_IF_ERROR(folder_->Sync());
  // A concurrent save of the same place may have removed the files.
  for (const std::string& file : FileNames()) {
    const Status found = folder_->CheckExists(file);
    if (found.code() == StatusCode::kNotFound) {
      return Status::Aborted("'" + folder_->PathOf(file) +
                             "' was removed by another save of the same name.");
    }
    TF_EMBED_RETURN_IF_ERROR(found);
  }
  const Status put = PutManifest();
  committed_ = put.ok() || MayBeInPlace();
  if (!put.ok()) return put;
  // The save exists from here on. The removal of older files can fail without harm.
  RemoveOlder();
  return Status();
}

bool PendingSave::MayBeInPlace() const {
  RowManifest found;
  const Status read = ReadManifest(*folder_, names_, manifest_.rank, manifest_.processes, &found);
  if (read.code() == StatusCode::kNotFound) return false;
  return !read.ok() || found.save == manifest_.save;
}

Status PendingSave::PutManifest() {
  // Newer than every existing save, even if another machine's clock is ahead.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  manifest_.milliseconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  std::vector<std::string> files;
  TF_EMBED_RETURN_IF_ERROR(folder_->List(&files));
  for (const auto& ranks : RanksIn(names_, files)) {
    if (ranks.first == manifest_.processes) continue;
    manifest_.milliseconds = std::max(manifest_.milliseconds, LastTimeOf(ranks) + 1);
  }
  return folder_->Replace(names_.Manifest(manifest_.rank, manifest_.processes), manifest_.Encode());
}

// The time of the last readable part.
uint64_t PendingSave::LastTimeOf(const SavedRanks::value_type& ranks) const {
  uint64_t last = 0;
  for (const uint32_t rank : ranks.second) {
    RowManifest manifest;
    if (ReadManifest(*folder_, names_, rank, ranks.first, &manifest).ok()) {
      last = std::max(last, manifest.milliseconds);
    }
  }
  return last;
}

// Removes row files, except this save's.
template <typename Wanted>
void PendingSave::RemoveRows(const std::vector<std::string>& files, const Wanted& wanted) const {
  std::vector<std::string> own = FileNames();
  std::sort(own.begin(), own.end());
  for (const std::string& file : files) {
    uint32_t rank, processes;
    if (!names_.IsOurs(file, &rank, &processes) || !wanted(rank, processes)) continue;
    if (file == names_.Manifest(rank, processes) ||
        std::binary_search(own.begin(), own.end(), file)) {
      continue;
    }
    folder_->Remove(file);
  }
}

// Removes the files that this save replaces: this rank's older files and, once all ranks have
// saved, files of other numbers of processes.
void PendingSave::RemoveOlder() const {
  std::vector<std::string> files;
  if (!folder_->List(&files).ok()) return;
  const SavedRanks present = RanksIn(names_, files);
  const auto own = present.find(manifest_.processes);
  uint64_t oldest = 0;
  if (own != present.end() && present.size() > 1 && IsComplete(*own)) {
    oldest = UINT64_MAX;
    for (const uint32_t rank : own->second) {
      RowManifest manifest;
      // Unreadable part: keeps the files of other numbers of processes, which may be the only whole
      // save.
      if (!ReadManifest(*folder_, names_, rank, own->first, &manifest).ok()) oldest = 0;
      oldest = std::min(oldest, manifest.milliseconds);
    }
  }
  for (const auto& ranks : present) {
    if (ranks.first == manifest_.processes || LastTimeOf(ranks) >= oldest) continue;
    // Manifests first, because a manifest without its files is a damaged save.
    for (const uint32_t rank : ranks.second) folder_->Remove(names_.Manifest(rank, ranks.first));
    RemoveRows(files, [&](uint32_t, uint32_t processes) { return processes == ranks.first; });
  }
  RemoveRows(files, [&](uint32_t rank, uint32_t processes) {
    return rank == manifest_.rank && processes == manifest_.processes;
  });
}

Status JoinSaves(const SavePlace& place, uint64_t* save) {
  const SaveFolder& folder = *place.folder;
  const RowFileNames names(place.file_name);
  RowManifest joined;
  for (uint32_t rank = 0; rank < place.processes; ++rank) {
    RowManifest part;
    TF_EMBED_RETURN_IF_ERROR(ReadManifest(folder, names, rank, place.processes, &part));
    if (rank == 0) {
      joined = part;
      joined.processes = 1;
    }
    if (part.save != joined.save || part.key_type != joined.key_type ||
        part.value_type != joined.value_type || part.dim != joined.dim ||
        part.since != joined.since || part.since_name != joined.since_name || !part.links.empty()) {
      return Status::FailedPrecondition("'" + folder.PathOf(names.Manifest(rank, place.processes)) +
                                        "' is not a part of the save of which '" +
                                        names.Manifest(0, place.processes) + "' is one.");
    }
    // Newer than its parts, so that it wins if their manifests remain.
    joined.milliseconds = std::max(joined.milliseconds, part.milliseconds + 1);
    if (rank > 0) joined.files.insert(joined.files.end(), part.files.begin(), part.files.end());
  }
  if (joined.files.size() > RowManifest::kMaxFiles) {
    return TooManyShards(std::to_string(joined.files.size()));
  }
  for (const RowManifest::File& file : joined.files) {
    // The joined manifest must not name a file that a concurrent save has removed.
    TF_EMBED_RETURN_IF_ERROR(folder.CheckExists(file.name));
  }
  const std::string manifest = names.Manifest(0, 1);
  TF_EMBED_RETURN_IF_ERROR(folder.Replace(manifest, joined.Encode()));
  for (uint32_t rank = 0; rank < place.processes; ++rank) {
    // After the joined manifest is in place: until then the parts are the save. With a single
    // process, both manifests have the same name.
    if (place.processes > 1) folder.Remove(names.Manifest(rank, place.processes));
  }
  *save = joined.save;
  return Status();
}

}  // namespace tf_embed
