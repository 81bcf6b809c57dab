// SPDX-License-Identifier: Apache-2.0
// Where a save is, and which processes have written to it.
#ifndef TF_EMBED_CC_CORE_SAVES_SAVE_PLACE_H_
#define TF_EMBED_CC_CORE_SAVES_SAVE_PLACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/files/row_manifest.h"
#include "cc/core/saves/save_folder.h"

namespace tf_embed {

// A number that no process has twice, and no two processes have in common.
uint64_t RandomNumber();

// The location of a save, and this process's part in it.
struct SavePlace {
  // Limit on the processes of one save.
  static constexpr int64_t kMaxParts = RowManifest::kMaxFiles;

  std::unique_ptr<SaveFolder> folder;
  std::string file_name;
  uint32_t rank = 0;  // this process's rank
  uint32_t processes = 1;
  // The number of the save that JoinSaves makes of all processes' files; 0: each process has its
  // own save.
  uint64_t joint_save = 0;
};

// Ranks with a manifest in a folder, by the number of processes.
using SavedRanks = std::map<uint32_t, std::vector<uint32_t>>;
SavedRanks RanksIn(const RowFileNames& names, const std::vector<std::string>& files);
bool IsComplete(const SavedRanks::value_type& ranks);

Status ReadManifest(const SaveFolder& folder, const RowFileNames& names, uint32_t rank,
                    uint32_t processes, RowManifest* manifest);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SAVE_PLACE_H_
