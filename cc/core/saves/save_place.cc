// SPDX-License-Identifier: Apache-2.0
#include "cc/core/saves/save_place.h"

#include <algorithm>
#include <random>

namespace tf_embed {

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
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

Status ReadManifest(const SaveFolder& folder, const RowFileNames& names, uint32_t rank,
                    uint32_t processes, RowManifest* manifest) {
  const std::string name = names.Manifest(rank, processes);
  const std::string path = folder.PathOf(name);
  std::string text;
  TF_EMBED_RETURN_IF_ERROR(folder.ReadWhole(name, RowManifest::kMaxBytes, &text));
  TF_EMBED_RETURN_IF_ERROR(RowManifest::Decode(text, path, manifest));
  if (manifest->rank != rank || manifest->processes != processes) {
    return Status::DataLoss("'" + path + "' is the manifest of process " +
                            std::to_string(manifest->rank) + " of " +
                            std::to_string(manifest->processes) + ", and has the name of another.");
  }
  return Status();
}

}  // namespace tf_embed
