// SPDX-License-Identifier: Apache-2.0
// How a table follows another table, whose rows are published as full saves and as changes.
//
// Concurrent lookups see the old or the new version of a row. A row that stays is never removed and
// inserted again.
#ifndef TF_EMBED_CC_CORE_SAVES_PUBLICATION_H_
#define TF_EMBED_CC_CORE_SAVES_PUBLICATION_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/saves/saved_rows.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// Finds the keys of a table that are not in a published save any more, after which LoadBlock brings
// the rows. `strings` has the scope of a table of strings, for reading.
Status KeysToRemove(const ExecContext& context, SavedRows* rows, const Table& table,
                    StringScope* strings, std::vector<int64_t>* left);

// Takes over the clock and the seed: absent keys now get the initial rows of the saved table.
Status TakePublishedState(const SavedRows& rows, Table* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_PUBLICATION_H_
