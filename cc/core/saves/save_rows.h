// SPDX-License-Identifier: Apache-2.0
// Saves all rows of a table at one moment, and prepares a table for saved rows.
#ifndef TF_EMBED_CC_CORE_SAVES_SAVE_ROWS_H_
#define TF_EMBED_CC_CORE_SAVES_SAVE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/saves/save_place.h"
#include "cc/core/saves/saved_rows.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// The format of the files of a save.
struct SaveForm {
  size_t block_bytes = 0;
  bool with_slots = true;
  bool links = false;  // rows on disk are linked, if they can be
};

// Replaces the save in a place. Writers wait while rows are copied, and run while the disk flushes.
Status SaveRows(Table* table, SavePlace place, const SaveForm& form);

// Prepares a table for the rows of a save: sets their rule and, if the table is empty, their seed
// and the admission counts of all processes that saved. `waiting` receives the keys that now wait
// for admission.
Status PrepareForRows(const SavedRows& rows, Table* table, std::vector<int64_t>* waiting);

// Loads the rows of a block, which ReadBlock(number) gave. `owners`: one for each row (SavedBatch),
// or null.
Status LoadBlock(const ExecContext& context, const SavedRows& rows, size_t number,
                 const RowBlock& block, const int32_t* owners, Table* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SAVE_ROWS_H_
