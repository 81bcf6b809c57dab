// What the ops that save and restore whole tables share.
#ifndef TF_EMBED_CC_KERNELS_WHOLE_TABLE_H_
#define TF_EMBED_CC_KERNELS_WHOLE_TABLE_H_

#include "cc/core/table_meta.h"
#include "cc/kernels/table_resource.h"

namespace tf_embed {

// Keeps writers out of all shards while it lives.
class WritersPaused {
 public:
  explicit WritersPaused(const TableResource& table) : table_(table) {
    for (size_t i = 0; i < table_.num_shards(); ++i) table_.shard(i)->PauseWriters();
  }
  ~WritersPaused() {
    for (size_t i = 0; i < table_.num_shards(); ++i) table_.shard(i)->ResumeWriters();
  }
  WritersPaused(const WritersPaused&) = delete;
  WritersPaused& operator=(const WritersPaused&) = delete;

 private:
  const TableResource& table_;
};

// What the table is besides its rows; without slots, as if it had no rule. Nobody writes meanwhile.
absl::Status MetaOf(const TableResource& table, bool with_slots, TableMeta* meta);

// What the table's policy keeps besides the rows.
absl::Status PolicyOf(TableResource* table, SavedPolicy* policy);

// Rows beyond a shard's bound leave as they would have to when the next one comes. Of a table of
// strings the text gate is held alone.
absl::Status KeepBounds(const ExecContext& exec, TableResource* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_KERNELS_WHOLE_TABLE_H_
