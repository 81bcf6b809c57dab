// SPDX-License-Identifier: Apache-2.0
// Splits the bags of a batch by the workers that own their keys, and pools the rows that they
// return.
//
// Each owner receives bags, pools their rows, and returns a row for each bag. A table can be asked
// in two ways, and Build takes the cheaper way, which sends less:
//
//     by bags   an owner gets its keys of a bag as one bag; its sums are added up here
//     by keys   each distinct key is its own bag; rows are pooled here
#ifndef TF_EMBED_CC_CORE_EXCHANGE_BAG_SPLIT_H_
#define TF_EMBED_CC_CORE_EXCHANGE_BAG_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/exchange/key_route.h"

namespace tf_embed {

// A run of bags whose keys are from one table. Bag b has keys offsets[b] to offsets[b + 1].
struct BagRun {
  size_t table;
  size_t first_bag;
  size_t num_bags;
};

// The bags of a batch. A view: it does not own its arrays.
struct BagBatch {
  const int64_t* keys;
  const int64_t* offsets;
  size_t num_bags;
  std::vector<BagRun> runs;  // which do not overlap
  std::vector<size_t> dims;  // of each table
};

struct BagOwners {
  size_t num_workers;
  size_t rank;            // this worker, to which nothing needs to be sent
  const int32_t* owners;  // of each key; null: by the rule
  OwnerRule rule;
  bool unsigned_keys;
};

// The way to ask for the bags of each table.
enum class AskBy : uint8_t { kLess, kBags, kKeys };

// Bytes that a table sends, both ways and with gradients.
struct AskCost {
  uint64_t key;         // by keys, for a distinct key
  uint64_t key_in_bag;  // by bags, for a key
  uint64_t bag;         // by bags, for a bag

  // A bag costs a row in reply and later its gradient. Distinct keys are bags too.
  static AskCost OfBags(size_t dim, size_t bytes_of_number);
};

// Deterministic for any number of threads.
class BagSplit {
 public:
  // `costs` has an entry for each table. Fails if an owner is out of range, or if equal keys of a
  // table have different owners. May throw std::bad_alloc.
  Status Build(const ExecContext& context, const BagBatch& batch, const BagOwners& owners,
               AskBy ask_by, const std::vector<AskCost>& costs);

  // The way to ask each table: by bags or by keys.
  const std::vector<AskBy>& asked_by() const { return asked_by_; }

  // The keys sent, by worker and then by table.
  const std::vector<int64_t>& keys() const { return keys_; }
  // For each key sent in a bag, its position among the keys of its table, which are ordered by run.
  const std::vector<int64_t>& positions() const { return positions_; }
  // Number of keys of each bag that is sent.
  const std::vector<int32_t>& lengths() const { return lengths_; }
  // Number of bags [workers, tables].
  const std::vector<int32_t>& bags() const { return bags_; }
  // For each worker: the number of keys, bags and returned values. Each bag returns `dim` values,
  // consecutively.
  const std::vector<int64_t>& keys_to() const { return keys_to_; }
  const std::vector<int64_t>& bags_to() const { return bags_to_; }
  const std::vector<int64_t>& values_from() const { return values_from_; }

  // The pooled row of bag b is the sum of the rows that begin at values sources[splits[b]] up to
  // sources[splits[b + 1]]. By keys, there is one source for each key of the batch, in their order.
  const std::vector<int64_t>& sources() const { return sources_; }
  const std::vector<int64_t>& splits() const { return splits_; }

 private:
  struct OfTable;

  Status BuildTable(const ExecContext& context, const BagBatch& batch, const BagOwners& owners,
                    AskBy ask_by, const AskCost& cost, size_t table, OfTable* part);
  void Assemble(const BagBatch& batch, size_t num_workers, const std::vector<OfTable>& parts);

  std::vector<AskBy> asked_by_;
  std::vector<int64_t> keys_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> bags_;
  std::vector<int64_t> keys_to_;
  std::vector<int64_t> bags_to_;
  std::vector<int64_t> values_from_;
  std::vector<int64_t> sources_;
  std::vector<int64_t> splits_;
};

// Locations of the pooled rows of a batch. The row of bag i of a run is at begin + i * stride.
struct PooledRun {
  BagRun bags;
  size_t begin;
  size_t stride;
  size_t dim;
};

// The pooling of the returned rows. A view: it does not own its arrays.
struct BagJoin {
  const int64_t* sources;  // each is at most `num_values` - dim
  const int64_t* splits;
  size_t num_values;
  const float* weights;     // of each source; null: 1
  const int64_t* divisors;  // offsets of the bags, whose sums are divided by their sizes; null: not
  std::vector<PooledRun> runs;
};

// Writes the pooled row of each bag; zeros for an empty bag.
void JoinBags(const ExecContext& context, const BagJoin& join, const float* values, float* pooled);
// Writes the gradient of all values, given the gradient of the pooled rows.
void GradientOfValues(const ExecContext& context, const BagJoin& join, const float* gradient,
                      float* of_values);
// Writes the gradient of each weight.
void GradientOfWeights(const ExecContext& context, const BagJoin& join, const float* gradient,
                       const float* values, float* of_weights);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_EXCHANGE_BAG_SPLIT_H_
