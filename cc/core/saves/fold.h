// SPDX-License-Identifier: Apache-2.0
// Makes one save of a chain of incremental saves.
#ifndef TF_EMBED_CC_CORE_SAVES_FOLD_H_
#define TF_EMBED_CC_CORE_SAVES_FOLD_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/status.h"
#include "cc/core/saves/save_place.h"

namespace tf_embed {

// Writes the rows of a save, with those of the saves that it builds on, to another place as a full
// save. `number` receives its number: the same, if one process made the save.
Status FoldSaves(const SavePlace& from, SavePlace to, size_t block_bytes, uint64_t* number);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_FOLD_H_
