// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/bag_split.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "cc/core/base/allocator.h"

namespace tf_embed {
namespace {

constexpr size_t kKeyBytes = sizeof(int64_t);
constexpr size_t kLengthBytes = sizeof(int32_t);

// begins[i] is the sum of the counts before i.
std::vector<int64_t> BeginsOf(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

}  // namespace

// The keys and bags sent for one table, in worker order.
struct BagSplit::OfTable {
  AskBy asked_by;
  std::vector<int64_t> keys;
  std::vector<int64_t> positions;  // of the keys, by bags
  std::vector<int32_t> lengths;
  std::vector<int64_t> keys_to;  // of each worker
  std::vector<int64_t> bags_to;
  std::vector<int64_t> rows;    // for each source, the number of its bag among the bags sent
  std::vector<int32_t> counts;  // sources of each bag, in the order of the runs
};

AskCost AskCost::OfBags(size_t dim, size_t bytes_of_number) {
  const uint64_t bag = kLengthBytes + 2 * dim * bytes_of_number;
  return {kKeyBytes + bag, kKeyBytes, bag};
}

Status BagSplit::Build(const ExecContext& context, const BagBatch& batch, const BagOwners& owners,
                       AskBy ask_by, const std::vector<AskCost>& costs) {
  std::vector<OfTable> parts(batch.dims.size());
  asked_by_.clear();
  for (size_t table = 0; table < parts.size(); ++table) {
    TF_EMBED_RETURN_IF_ERROR(
        BuildTable(context, batch, owners, ask_by, costs[table], table, &parts[table]));
    asked_by_.push_back(parts[table].asked_by);
  }
  Assemble(batch, owners.num_workers, parts);
  return Status();
}

Status BagSplit::BuildTable(const ExecContext& context, const BagBatch& batch,
                            const BagOwners& owners, AskBy ask_by, const AskCost& cost,
                            size_t table, OfTable* part) {
  const size_t num_workers = owners.num_workers;
  // The keys of the table and their given owners, and the sizes of its bags, over all its runs.
  std::vector<int64_t> keys;
  std::vector<int32_t> chosen;
  std::vector<size_t> sizes;  // of bags
  for (const BagRun& run : batch.runs) {
    if (run.table != table) continue;
    const int64_t* const offsets = batch.offsets + run.first_bag;
    keys.insert(keys.end(), batch.keys + offsets[0], batch.keys + offsets[run.num_bags]);
    if (owners.owners != nullptr) {
      chosen.insert(chosen.end(), owners.owners + offsets[0],
                    owners.owners + offsets[run.num_bags]);
    }
    for (size_t bag = 0; bag < run.num_bags; ++bag) {
      sizes.push_back(static_cast<size_t>(offsets[bag + 1] - offsets[bag]));
    }
  }
  part->keys_to.assign(num_workers, 0);
  part->bags_to.assign(num_workers, 0);
  part->counts.assign(sizes.size(), 0);

  const size_t size = keys.size();
  KeyRoute route(HostAllocator());
  TF_EMBED_RETURN_IF_ERROR(route.Build(context, keys.data(), size,
                                       owners.owners == nullptr ? nullptr : chosen.data(),
                                       owners.rule, owners.unsigned_keys, num_workers));
  // Distinct keys are grouped by worker, so a key's place gives its owner.
  std::vector<int32_t> places(size);
  route.WritePlaces(context, places.data());
  std::vector<int32_t> owner_of_distinct(route.size());
  for (size_t worker = 0, at = 0; worker < num_workers; ++worker) {
    const size_t count = static_cast<size_t>(route.counts()[worker]);
    std::fill_n(owner_of_distinct.begin() + static_cast<std::ptrdiff_t>(at), count,
                static_cast<int32_t>(worker));
    at += count;
  }
  const auto owner_of = [&](size_t i) {
    return static_cast<size_t>(owner_of_distinct[static_cast<size_t>(places[i])]);
  };

  // Counts the keys and bags of each owner first, for the comparison of costs and for the offsets
  // below. `last_bag` tells whether an owner already has a part of this bag, without a set that
  // would have to be cleared for each bag.
  if (ask_by != AskBy::kKeys) {
    std::vector<size_t> last_bag(num_workers, 0);  // by worker, the last bag with its keys; from 1
    size_t at = 0;
    for (size_t bag = 0; bag < sizes.size(); ++bag) {
      for (const size_t end = at + sizes[bag]; at < end; ++at) {
        const size_t owner = owner_of(at);
        ++part->keys_to[owner];
        if (last_bag[owner] == bag + 1) continue;
        last_bag[owner] = bag + 1;
        ++part->bags_to[owner];
        ++part->counts[bag];
      }
    }
  }
  // By bags, each occurrence of a key is sent, but an owner returns a single row for all its keys
  // of a bag. By keys, a repeated key is sent once, and its row is returned once. This worker's own
  // part is never sent, so it does not count.
  if (ask_by == AskBy::kLess) {
    uint64_t by_bags = 0, by_keys = 0;
    for (size_t worker = 0; worker < num_workers; ++worker) {
      if (worker == owners.rank) continue;
      by_bags += static_cast<uint64_t>(part->keys_to[worker]) * cost.key_in_bag +
                 static_cast<uint64_t>(part->bags_to[worker]) * cost.bag;
      by_keys += static_cast<uint64_t>(route.counts()[worker]) * cost.key;
    }
    ask_by = by_bags < by_keys ? AskBy::kBags : AskBy::kKeys;
  }

  part->asked_by = ask_by;
  if (ask_by == AskBy::kKeys) {
    // Each distinct key is a bag of one key, so a key's place is also the number of its bag, and
    // equal keys share it.
    part->keys.resize(route.size());
    route.WriteKeys(part->keys.data());
    part->lengths.assign(route.size(), 1);
    part->rows.assign(places.begin(), places.end());
    for (size_t worker = 0; worker < num_workers; ++worker) {
      part->keys_to[worker] = part->bags_to[worker] = route.counts()[worker];
    }
    for (size_t bag = 0; bag < sizes.size(); ++bag) {
      part->counts[bag] = static_cast<int32_t>(sizes[bag]);
    }
    return Status();
  }

  // A counting sort by owner. It goes through the batch in order, so an owner pools the keys of a
  // bag in batch order, and sums do not depend on threads.
  std::vector<int64_t> next_key = BeginsOf(part->keys_to);
  std::vector<int64_t> next_bag = BeginsOf(part->bags_to);
  part->keys.resize(size);
  part->positions.resize(size);
  part->lengths.resize(static_cast<size_t>(next_bag.back()));
  part->rows.reserve(part->lengths.size());
  std::vector<size_t> last_bag(num_workers, 0);
  size_t at = 0;
  for (size_t bag = 0; bag < sizes.size(); ++bag) {
    for (const size_t end = at + sizes[bag]; at < end; ++at) {
      const size_t owner = owner_of(at);
      const size_t place = static_cast<size_t>(next_key[owner]++);
      part->keys[place] = keys[at];
      part->positions[place] = static_cast<int64_t>(at);
      if (last_bag[owner] != bag + 1) {
        last_bag[owner] = bag + 1;
        part->rows.push_back(next_bag[owner]++);
        part->lengths[static_cast<size_t>(part->rows.back())] = 0;
      }
      ++part->lengths[static_cast<size_t>(next_bag[owner] - 1)];
    }
  }
  return Status();
}

void BagSplit::Assemble(const BagBatch& batch, size_t num_workers,
                        const std::vector<OfTable>& parts) {
  const size_t num_tables = parts.size();
  keys_to_.assign(num_workers, 0);
  bags_to_.assign(num_workers, 0);
  values_from_.assign(num_workers, 0);
  bags_.clear();
  keys_.clear();
  positions_.clear();
  lengths_.clear();
  // The offset of a table's values to a worker, minus the values of its bags to earlier workers.
  std::vector<std::vector<int64_t>> begins(num_tables), first_bags(num_tables);
  std::vector<int64_t> at_key(num_tables, 0), at_bag(num_tables, 0);
  int64_t values = 0;
  for (size_t worker = 0; worker < num_workers; ++worker) {
    for (size_t table = 0; table < num_tables; ++table) {
      const OfTable& part = parts[table];
      const int64_t num_keys = part.keys_to[worker], num_bags = part.bags_to[worker];
      const auto keys = part.keys.begin() + at_key[table];
      const auto lengths = part.lengths.begin() + at_bag[table];
      keys_.insert(keys_.end(), keys, keys + num_keys);
      if (part.asked_by == AskBy::kBags) {
        const auto positions = part.positions.begin() + at_key[table];
        positions_.insert(positions_.end(), positions, positions + num_keys);
      }
      lengths_.insert(lengths_.end(), lengths, lengths + num_bags);
      bags_.push_back(static_cast<int32_t>(num_bags));
      begins[table].push_back(values);
      first_bags[table].push_back(at_bag[table]);
      at_key[table] += num_keys;
      at_bag[table] += num_bags;
      keys_to_[worker] += num_keys;
      bags_to_[worker] += num_bags;
      const int64_t of_table = num_bags * static_cast<int64_t>(batch.dims[table]);
      values_from_[worker] += of_table;
      values += of_table;
    }
  }

  std::vector<size_t> next_bag(num_tables, 0), next_source(num_tables, 0);
  splits_.assign(batch.num_bags + 1, 0);
  for (const BagRun& run : batch.runs) {
    for (size_t bag = 0; bag < run.num_bags; ++bag) {
      splits_[run.first_bag + bag + 1] = parts[run.table].counts[next_bag[run.table]++];
    }
  }
  std::partial_sum(splits_.begin(), splits_.end(), splits_.begin());
  sources_.resize(static_cast<size_t>(splits_.back()));
  for (const BagRun& run : batch.runs) {
    const OfTable& part = parts[run.table];
    const std::vector<int64_t>& firsts = first_bags[run.table];
    const int64_t dim = static_cast<int64_t>(batch.dims[run.table]);
    const size_t end = static_cast<size_t>(splits_[run.first_bag + run.num_bags]);
    for (size_t at = static_cast<size_t>(splits_[run.first_bag]); at < end; ++at) {
      const int64_t row = part.rows[next_source[run.table]++];
      // The last worker whose bags begin at or before the row. A worker without bags, which begins
      // there too, precedes it.
      const size_t worker = static_cast<size_t>(
          std::upper_bound(firsts.begin(), firsts.end(), row) - firsts.begin() - 1);
      sources_[at] = begins[run.table][worker] + (row - firsts[worker]) * dim;
    }
  }
}

namespace {

float ScaleOf(const BagJoin& join, size_t bag) {
  if (join.divisors == nullptr) return 1.0f;
  const int64_t size = join.divisors[bag + 1] - join.divisors[bag];
  return size == 0 ? 0.0f : 1.0f / static_cast<float>(size);
}

float WeightOf(const BagJoin& join, size_t source) {
  return join.weights == nullptr ? 1.0f : join.weights[source];
}

// Nanoseconds for a bag of a run, roughly.
size_t CostOf(const BagJoin& join, const PooledRun& run) {
  const BagRun& bags = run.bags;
  const size_t sources = static_cast<size_t>(join.splits[bags.first_bag + bags.num_bags] -
                                             join.splits[bags.first_bag]);
  return 5 + (sources / std::max<size_t>(bags.num_bags, 1) + 1) * (5 + run.dim / 4);
}

}  // namespace

void JoinBags(const ExecContext& context, const BagJoin& join, const float* values, float* pooled) {
  for (const PooledRun& run : join.runs) {
    const auto some = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t bag = run.bags.first_bag + i;
        float* const row = pooled + run.begin + i * run.stride;
        std::fill_n(row, run.dim, 0.0f);
        const size_t last = static_cast<size_t>(join.splits[bag + 1]);
        for (size_t at = static_cast<size_t>(join.splits[bag]); at < last; ++at) {
          const float* const value = values + join.sources[at];
          const float weight = WeightOf(join, at);
          for (size_t j = 0; j < run.dim; ++j) row[j] += weight * value[j];
        }
        if (join.divisors == nullptr) continue;
        const float scale = ScaleOf(join, bag);
        for (size_t j = 0; j < run.dim; ++j) row[j] *= scale;
      }
    };
    context.parallel_for(run.bags.num_bags, CostOf(join, run), std::cref(some));
  }
}

void GradientOfValues(const ExecContext& context, const BagJoin& join, const float* gradient,
                      float* of_values) {
  // The rows pooled here are in many bags. So each unit of work has a range of values and goes
  // through all bags. Sums are then taken in the order of the batch.
  constexpr size_t kFewest = 1 << 14, kUnits = 16;
  const size_t units = std::clamp<size_t>(join.num_values / kFewest, 1, kUnits);
  const size_t in_unit = join.num_values / units + 1;
  const auto some = [&](size_t begin, size_t end) {
    const size_t first = std::min(begin * in_unit, join.num_values);
    const size_t last = std::min(end * in_unit, join.num_values);
    std::fill(of_values + first, of_values + last, 0.0f);
    for (const PooledRun& run : join.runs) {
      for (size_t i = 0; i < run.bags.num_bags; ++i) {
        const size_t bag = run.bags.first_bag + i;
        const float* const row = gradient + run.begin + i * run.stride;
        const float scale = ScaleOf(join, bag);
        const size_t past = static_cast<size_t>(join.splits[bag + 1]);
        for (size_t at = static_cast<size_t>(join.splits[bag]); at < past; ++at) {
          const size_t source = static_cast<size_t>(join.sources[at]);
          const size_t from = std::max(source, first), to = std::min(source + run.dim, last);
          const float factor = scale * WeightOf(join, at);
          for (size_t j = from; j < to; ++j) of_values[j] += factor * row[j - source];
        }
      }
    }
  };
  context.parallel_for(units, in_unit, std::cref(some));
}

void GradientOfWeights(const ExecContext& context, const BagJoin& join, const float* gradient,
                       const float* values, float* of_weights) {
  for (const PooledRun& run : join.runs) {
    const auto some = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t bag = run.bags.first_bag + i;
        const float* const row = gradient + run.begin + i * run.stride;
        const float scale = ScaleOf(join, bag);
        const size_t last = static_cast<size_t>(join.splits[bag + 1]);
        for (size_t at = static_cast<size_t>(join.splits[bag]); at < last; ++at) {
          const float* const value = values + join.sources[at];
          float product = 0.0f;
          for (size_t j = 0; j < run.dim; ++j) product += row[j] * value[j];
          of_weights[at] = scale * product;
        }
      }
    };
    context.parallel_for(run.bags.num_bags, CostOf(join, run), std::cref(some));
  }
}

}  // namespace tf_embed
