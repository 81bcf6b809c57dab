// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/host/host_store.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <type_traits>

#include "cc/core/base/hash.h"
#include "cc/core/loops/row_stepper.h"
#include "cc/core/loops/sum_rows.h"
#include "cc/core/rows/row_copy.h"
#include "cc/stores/host/host_store_inl.h"

namespace tf_embed {
namespace {

// Rough costs in nanoseconds, used to split work over threads.
constexpr size_t kFindCost = 60;
constexpr size_t kWriteCost = 120;
constexpr size_t kWalkCost = 5;  // of a key that is passed over

// a + b in the compute type; integers wrap around.
template <typename T>
T Sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return Number<T>::Store(Number<T>::Load(a) + Number<T>::Load(b));
  }
}

// a - b in the compute type.
template <typename T>
T Difference(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  } else {
    return Number<T>::Store(Number<T>::Load(a) - Number<T>::Load(b));
  }
}

// The first position of a group whose `exists` is false.
size_t FirstAbsent(const KeyGroup& group, const bool* exists) {
  size_t first = 0;
  while (first < group.count && exists[group.positions[first]]) ++first;
  return first;
}

}  // namespace

HostStore::HostStore(const StoreOptions& options, const RuleSlots& rule)
    : options_(options),
      loops_(LoopsOf(options.instruction_set)),
      planner_(options_.policy, options.allocator, &planned_) {
  options_.policy = options.policy.WithNeeds();
  notes_uses_ = options_.policy.statistics.OfUse().size() > 0;
  if (options_.policy.statistics.Has(Statistic::kChange)) {
    changes_ =
        options.changes != nullptr ? options.changes : std::make_shared<ChangeLog>(options.name);
  }
  content_.reset(
      new Content(options.allocator, options.init_size, LayoutOf(rule), options.initializer, rule));
}

std::unique_ptr<HostStore> HostStore::Create(const StoreOptions& options, const RuleSlots& rule) {
  try {
    return std::unique_ptr<HostStore>(new HostStore(options, rule));
  } catch (const std::bad_alloc&) {  // null means that memory is short, which the caller reports
    return nullptr;
  }
}

RowLayout HostStore::LayoutOf(const RuleSlots& rule) const {
  RowLayout layout(options_.value_type, options_.dim, rule, options_.policy.statistics.size());
  layout.has_marks = options_.is_cache;
  return layout;
}

RowInitializer HostStore::initializer() const {
  Shared lock(locks_.content);
  return content_->initializer;
}

size_t HostStore::size() const {
  Shared lock(locks_.content);
  return content_->index.size();
}

RuleSlots HostStore::rule() const {
  Shared lock(locks_.content);
  return content_->rule;
}

Status HostStore::NoMemory(size_t keys_held) const {
  return NoMemoryForRow(options_.name, keys_held);
}

Status HostStore::OtherRule() const { return RuleWasChanged(options_.name); }

Status HostStore::InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const {
  const size_t bytes = LayoutOf(rule).slot_bytes;
  TF_EMBED_RETURN_IF_ERROR(slots->Resize(bytes));
  std::fill_n(slots->data(), bytes, char{0});  // also clears the padding between groups
  DispatchSlots(options_.value_type, [&](auto tag) {
    StoreInitialSlots<typename decltype(tag)::Type>(rule, slots->data());
  });
  return Status();
}

Status HostStore::NewScratch(const Content& content, RowScratch* scratch) const {
  TF_EMBED_RETURN_IF_ERROR(scratch->row.Resize(content.rows.layout().stride));
  return InitialSlots(content.rule, &scratch->initial_slots);
}

void HostStore::DefaultRow(const Content& content, const DefaultRows& defaults, int64_t key,
                           size_t position, void* weights) const {
  if (defaults.kind != DefaultRows::Kind::kInitializer) {
    const size_t bytes = content.rows.layout().weight_bytes;
    std::memcpy(weights, defaults.Row(position, bytes), bytes);
    return;
  }
  const RowInitializer& initializer = content.initializer;
  if (options_.value_type == DataType::kFloat && initializer.is_random()) {
    return loops_.initialize(initializer.kind, initializer.a, initializer.b,
                             InitialState(initializer.seed, initializer.table_id, key),
                             options_.dim, static_cast<float*>(weights));
  }
  DispatchDataType(options_.value_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    InitializeWeights(initializer, key, options_.dim, static_cast<T*>(weights));
  });
}

Status HostStore::Find(const ExecContext& context, const KeyBatch& batch,
                       const DefaultRows& defaults, void* weights, bool* exists,
                       const SlotsOut& slots) const {
  const bool uses = context.training && notes_uses_;
  const ReadLocks reading(locks_, context, uses);
  const RowLayout& layout = content_->rows.layout();
  Buffer<char> initial_slots(options_.allocator);
  Buffer<char> narrow_slots(options_.allocator);
  const bool widens = slots.slots != nullptr && layout.narrow_slots;
  if (slots.rule != nullptr) {
    if (!SameRule(*slots.rule, content_->rule)) return OtherRule();
    TF_EMBED_RETURN_IF_ERROR(InitialSlots(content_->rule, &initial_slots));
    if (widens)
      TF_EMBED_RETURN_IF_ERROR(narrow_slots.Resize(batch.NumPositions() * layout.slot_bytes));
  }
  struct Caller {
    const HostStore* store;
    const DefaultRows* defaults;
    const char* initial_slots;
    const Moment* now;
    size_t misses;
  } const caller{this, &defaults, initial_slots.data(), &context.now, 0};
  FindRequest request;
  request.index = &content_->index;
  request.rows = &content_->rows;
  request.batch = batch;
  request.weights = static_cast<char*>(weights);
  request.exists = exists;
  request.slots = widens ? narrow_slots.data() : static_cast<char*>(slots.slots);
  request.absent = [](const FindRequest& request, int64_t key, size_t position) {
    Caller& caller = *static_cast<Caller*>(request.caller);
    const RowLayout& layout = request.rows->layout();
    ++caller.misses;
    caller.store->DefaultRow(*caller.store->content_, *caller.defaults, key, position,
                             request.weights + position * layout.weight_bytes);
    if (request.slots != nullptr) {
      std::memcpy(request.slots + position * layout.slot_bytes, caller.initial_slots,
                  layout.slot_bytes);
    }
  };
  request.marks = layout.has_marks && context.training;
  request.tick = tick();
  request.use = nullptr;
  if (uses) {
    request.use = [](const FindRequest& request, int64_t key, uint32_t row_id) {
      const Caller& caller = *static_cast<const Caller*>(request.caller);
      const HostStore& store = *caller.store;
      return store.UseUnlessExpired(*store.content_, key, row_id, *caller.now);
    };
  }
  const auto find = [&](size_t begin, size_t end) {
    Caller mine = caller;
    FindRequest part = request;
    part.caller = &mine;
    loops_.find(part, begin, end);
    if (widens) {
      for (size_t i = begin; i < end; ++i) {
        const size_t position = batch.Position(i);
        WidenSlots(content_->rule, layout.value_type,
                   narrow_slots.data() + position * layout.slot_bytes,
                   static_cast<char*>(slots.slots) + position * layout.wide_slot_bytes);
      }
    }
    counters_.hits.fetch_add(end - begin - mine.misses, std::memory_order_relaxed);
    counters_.misses.fetch_add(mine.misses, std::memory_order_relaxed);
  };
  const size_t read_bytes = slots.slots == nullptr ? layout.weight_bytes : layout.stride;
  context.parallel_for(batch.size, kFindCost + read_bytes / 8, std::cref(find));
  return Status();
}

Status HostStore::Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const {
  const ReadLocks reading(locks_, context);
  const auto look = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kBucketAhead < end) {
        __builtin_prefetch(content_->index.HomeOf(HashKey(batch.keys[i + kBucketAhead])));
      }
      const int64_t key = batch.keys[i];
      exists[batch.Position(i)] = content_->index.Find(key, HashKey(key)).found();
    }
  };
  context.parallel_for(batch.size, kFindCost, std::cref(look));
  return Status();
}

Status HostStore::Group(const ExecContext& context, const KeyBatch& batch, const bool* skip,
                        KeyGroups* groups) const {
  KeyBatch taken = batch;
  // A plan counts new keys, so it can't rely on the caller's hint.
  if (options_.policy.plans_writes()) taken.distinct = false;
  return groups->Build(context, taken, skip);
}

template <typename Work>
Status HostStore::RunPlanned(const ExecContext& context, const KeyBatch& batch,
                             const KeyGroups& groups, Admits admits, size_t key_cost,
                             const Work& work) {
  const auto write_groups = [&](size_t cost, WritePlan* plan, const KeyGroups::Keeps* keeps) {
    const Write write{content_.get(), context.now, plan, batch.scores, batch.absent, tick()};
    return groups.ForEachRange(
        context, cost, [&](KeyGroups::Range* range) { return work(write, range); }, keeps);
  };
  if (!options_.policy.plans_writes()) return write_groups(key_cost, nullptr, nullptr);
  assert(batch.absent == nullptr || context.restoring);  // the caller makes the plan
  std::unique_lock<OrderedMutex> turn;
  if (context.held != Held::kWriting) turn = std::unique_lock<OrderedMutex>(locks_.policy);
  if (context.restoring) return write_groups(key_cost, nullptr, nullptr);
  const auto write_present = [&](WritePlan* plan) { return write_groups(key_cost, plan, nullptr); };
  const auto insert = [&](const WritePlan& plan) {
    if (plan.num_inserts == 0) return Status();
    const KeyGroups::Keeps inserts = [&](const KeyGroup& group) {
      return plan.decisions[group.positions[0]] == Decision::kInsert;
    };
    const size_t cost = kWalkCost + key_cost * plan.num_inserts / batch.size;
    return write_groups(cost, nullptr, &inserts);
  };
  return planner_.Run(context, batch, admits, std::cref(write_present), std::cref(insert));
}

template <typename Work>
Status HostStore::ForEachRange(const ExecContext& context, const KeyBatch& batch, const bool* skip,
                               const RuleSlots* expected, Admits admits, const Work& work) {
  KeyGroups groups(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, skip, &groups));
  Status status;
  bool outgrown;
  {
    const WriteLocks writing(locks_, context);
    if (expected != nullptr && !SameRule(*expected, content_->rule)) return OtherRule();
    status = RunPlanned(context, batch, groups, admits, kWriteCost, work);
    outgrown = content_->index.has_retired();
  }
  if (outgrown && context.held == Held::kNothing) DropOutgrown();
  return status;
}

template <typename Present>
bool HostStore::ChangeRow(const Write& write, const KeyGroup& group, const Probe& probe,
                          const Present& present) {
  const StripedIndex::Entry& entry = probe.entry;
  if (!entry.bucket->TryLock(entry.word)) return false;
  NoteChange(*write.content, group.key, entry.row_id);
  present(write.content->rows.Row(entry.row_id));
  write.NoteChange(probe.mark);
  Use(*write.content, entry.row_id, write.now);
  SetScore(write, group, entry.row_id);
  entry.bucket->Unlock(entry.word);
  return true;
}

template <typename Present>
Status HostStore::VisitPresentRow(const Write& write, const KeyGroup& group, Probe probe,
                                  const Present& present) {
  for (; probe.entry.found(); probe.FindAgain(*write.content, group.key)) {
    if (LeavesExpired(write, group, probe.entry.row_id, Decision::kExpiredUnwanted) ||
        ChangeRow(write, group, probe, present)) {
      return Status();
    }
  }
  write.LeaveAbsent(group);
  return Status();
}

template <typename Present, typename Absent>
Status HostStore::VisitRow(const Write& write, const KeyGroup& group, Probe probe,
                           const Present& present, const Absent& absent) {
  Content* const content = write.content;
  StripedIndex& index = content->index;
  for (;; probe.FindAgain(*content, group.key)) {
    if (probe.entry.found()) {
      if (LeavesExpired(write, group, probe.entry.row_id, Decision::kExpired) ||
          ChangeRow(write, group, probe, present)) {
        return Status();
      }
      continue;
    }
    if (write.LeaveAbsent(group) || write.LeaveToPlan(group, Decision::kAbsent)) return Status();
    const size_t stripe = StripedIndex::StripeOf(probe.hash);
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
    if (index.Find(group.key, probe.hash).found()) continue;
    const uint32_t row_id = content->rows.Take(&content->pools[stripe]);
    if (row_id == kNoRowId) return NoMemory(content->index.size());
    // Order the erasure before the new row: a reader that sees the reused row's new bytes also sees
    // the erasure in the bucket's word, and retries.
    std::atomic_thread_fence(std::memory_order_release);
    absent(content->rows.Row(row_id));
    if (content->rows.layout().statistics_per_row > 0) {
      StatisticsOf(*content, row_id).Begin(write.now);
      SetScore(write, group, row_id);
      NoteCame(*content, row_id);
    }
    write.NoteChange(content->MarkOf(row_id));
    Status status = index.Insert(group.key, probe.hash, row_id);
    if (!status.ok()) {
      content->rows.Free(&content->pools[stripe], row_id);
      return status;
    }
    return Status();
  }
}

Status HostStore::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                               const DefaultRows& defaults, void* weights, bool* exists) {
  Buffer<bool> held(options_.allocator);
  if (exists == nullptr) {
    TF_EMBED_RETURN_IF_ERROR(held.Resize(batch.NumPositions()));
    exists = held.data();
  }
  TF_EMBED_RETURN_IF_ERROR(Find(context, batch, defaults, weights, exists, {}));
  const auto insert_absent = [&](const Write& write, KeyGroups::Range* range) {
    const RowLayout& layout = write.content->rows.layout();
    const size_t row_bytes = layout.weight_bytes;
    RowScratch scratch(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(NewScratch(*write.content, &scratch));
    return ForEachGroup(
        *write.content, range, [](const KeyGroup&) {},
        [&](const KeyGroup& group, const Probe& probe) {
          // Find put the default at the first position; the other positions get the new row.
          const auto out = [&](size_t k) {
            return static_cast<char*>(weights) + group.positions[k] * row_bytes;
          };
          TF_EMBED_RETURN_IF_ERROR(VisitRow(
              write, group, probe, [&](char* row) { loops_.load_row(row, row_bytes, out(0)); },
              [&](char* row) {
                loops_.store_row(out(0), row_bytes, row);
                StoreRow(scratch.initial_slots.data(), layout.slot_bytes, row + layout.slot_offset);
              }));
          for (size_t k = 1; k < group.count; ++k) std::memcpy(out(k), out(0), row_bytes);
          return Status();
        });
  };
  return ForEachRange(context, batch, exists, nullptr,
                      context.training ? Admits::kPeeked : Admits::kAll, insert_absent);
}

Status HostStore::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                 const void* weights, const SlotsIn& slots) {
  const char* const given_weights = static_cast<const char*>(weights);
  const char* const given_slots = static_cast<const char*>(slots.slots);
  const auto assign = [&](const Write& write, KeyGroups::Range* range) {
    const RowLayout& layout = write.content->rows.layout();
    RowScratch scratch(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(NewScratch(*write.content, &scratch));
    const auto last = [](const KeyGroup& group) -> size_t {
      return group.positions[group.count - 1];
    };
    const auto stored_slots = [&](size_t position) -> const char* {
      const char* const given = given_slots + position * layout.wide_slot_bytes;
      if (!layout.narrow_slots) return given;
      char* const narrow = scratch.row.data() + layout.slot_offset;
      NarrowSlots(write.content->rule, layout.value_type, given, narrow);
      return narrow;
    };
    const auto store = [&](size_t position, const char* initial_slots, char* row) {
      loops_.store_row(given_weights + position * layout.weight_bytes, layout.weight_bytes, row);
      const char* const from = given_slots == nullptr ? initial_slots : stored_slots(position);
      if (from != nullptr) loops_.store_row(from, layout.slot_bytes, row + layout.slot_offset);
    };
    return ForEachGroup(
        *write.content, range,
        [&](const KeyGroup& group) {
          PrefetchRow<false>(given_weights + last(group) * layout.weight_bytes,
                             layout.weight_bytes);
          if (given_slots != nullptr) {
            PrefetchRow<false>(given_slots + last(group) * layout.wide_slot_bytes,
                               layout.wide_slot_bytes);
          }
        },
        [&](const KeyGroup& group, const Probe& probe) {
          return VisitRow(
              write, group, probe, [&](char* row) { store(last(group), nullptr, row); },
              [&](char* row) { store(last(group), scratch.initial_slots.data(), row); });
        });
  };
  return ForEachRange(context, batch, nullptr, slots.rule,
                      context.training ? Admits::kCounted : Admits::kAll, assign);
}

Status HostStore::Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                        const void* new_rows, const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  const auto accumulate = [&](const Write& write, KeyGroups::Range* range) {
    return DispatchDataType(options_.value_type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      return AccumRange<T>(write, range, static_cast<const T*>(old_rows),
                           static_cast<const T*>(new_rows), exists);
    });
  };
  return ForEachRange(context, batch, nullptr, nullptr, Admits::kAll, accumulate);
}

template <typename T>
Status HostStore::AccumRange(const Write& write, KeyGroups::Range* range, const T* old_rows,
                             const T* new_rows, const bool* exists) {
  const RowLayout& layout = write.content->rows.layout();
  const size_t dim = layout.dim;
  RowScratch scratch(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(NewScratch(*write.content, &scratch));
  // Adds the differences at the group's positions, starting at `first`, that say the key exists.
  const auto add = [&](const KeyGroup& group, size_t first, char* row) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      loops_.AddDifferences<T>()(old_rows, new_rows, exists, group.positions + first,
                                 group.count - first, dim, reinterpret_cast<T*>(row));
    } else {
      T* const sum = reinterpret_cast<T*>(scratch.row.data());
      LoadRow(row, layout.weight_bytes, sum);
      for (size_t k = first; k < group.count; ++k) {
        if (!exists[group.positions[k]]) continue;
        const T* const from = old_rows + group.positions[k] * dim;
        const T* const to = new_rows + group.positions[k] * dim;
        for (size_t j = 0; j < dim; ++j) sum[j] = Sum(sum[j], Difference(to[j], from[j]));
      }
      StoreRow(sum, layout.weight_bytes, row);
    }
  };
  return ForEachGroup(
      *write.content, range,
      [&](const KeyGroup& group) {
        GradientRows<T>(old_rows, dim).Prefetch(group.positions, group.count);
        GradientRows<T>(new_rows, dim).Prefetch(group.positions, group.count);
      },
      [&](const KeyGroup& group, const Probe& probe) {
        const auto present = [&](char* row) { add(group, 0, row); };
        // An absent key is inserted if at least one of its positions says that it is absent.
        const size_t first = FirstAbsent(group, exists);
        if (first == group.count) return VisitPresentRow(write, group, probe, present);
        return VisitRow(write, group, probe, present, [&](char* row) {
          loops_.store_row(new_rows + group.positions[first] * dim, layout.weight_bytes, row);
          StoreRow(scratch.initial_slots.data(), layout.slot_bytes, row + layout.slot_offset);
          add(group, first + 1, row);
        });
      });
}

template <typename Stepper, typename G>
Status HostStore::ApplyRange(const Write& write, KeyGroups::Range* range,
                             const Gradients& gradients, const Rule& rule) {
  using Compute = typename Stepper::Compute;
  static_assert(std::is_same_v<Compute, typename Number<G>::Compute>);
  const Content& content = *write.content;
  const RowLayout& layout = content.rows.layout();
  const GradientRows<G> rows(gradients, layout.dim);
  const RoundingNoise noise(content.initializer, rule.step, RoundingNoise::Of::kStep);
  Stepper stepper(layout, content.rule, loops_.StepOf<Compute>(rule), rule, noise,
                  options_.allocator);
  RowScratch scratch(options_.allocator);
  Buffer<Compute> sum(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(stepper.MakeRoom());
  TF_EMBED_RETURN_IF_ERROR(NewScratch(content, &scratch));
  TF_EMBED_RETURN_IF_ERROR(sum.Resize(layout.dim));
  return ForEachGroup(
      content, range, [&](const KeyGroup& group) { rows.Prefetch(group.positions, group.count); },
      [&](const KeyGroup& group, const Probe& probe) {
        const Compute* const gradient =
            SumRows(loops_, rows, group.positions, group.count, sum.data());
        return VisitRow(
            write, group, probe, [&](char* row) { stepper.Step(group.key, gradient, row); },
            [&](char* row) {
              DefaultRow(content, DefaultRows(), group.key, 0, scratch.row.data());
              StoreRow(scratch.row.data(), layout.weight_bytes, row);
              StoreRow(scratch.initial_slots.data(), layout.slot_bytes, row + layout.slot_offset);
              stepper.Step(group.key, gradient, row);
            });
      });
}

Status HostStore::Apply(const ExecContext& context, const KeyBatch& batch,
                        const Gradients& gradients, const Rule& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckApply(options_, gradients.type, rule));
  KeyGroups groups(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, nullptr, &groups));
  Status status;
  bool outgrown = false;
  for (bool done = false; !done;) {
    WriteLocks writing(locks_, context);
    if (!SameRuleAndInitialValues(content_->rule, rule.slots)) {
      if (context.held != Held::kNothing) return OtherRule();
      writing.Release();
      TF_EMBED_RETURN_IF_ERROR(SetRule(ExecContext::Serial(), rule.slots));
      continue;  // another thread may have set yet another rule
    }
    const size_t key_cost = kWriteCost + content_->rows.layout().stride / 4;
    const auto apply = [&](const Write& write, KeyGroups::Range* range) {
      return DispatchFloating(options_.value_type, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        return DispatchStepper<T>(content_->rows.layout(), [&](auto stepper) {
          using Stepper = typename decltype(stepper)::Type;
          if constexpr (!std::is_same_v<T, typename Number<T>::Compute>) {
            if (gradients.type == DataType::kFloat) {
              return ApplyRange<Stepper, float>(write, range, gradients, rule);
            }
          }
          return ApplyRange<Stepper, T>(write, range, gradients, rule);
        });
      });
    };
    status = RunPlanned(context, batch, groups, Admits::kCounted, key_cost, apply);
    outgrown = content_->index.has_retired();
    done = true;
  }
  if (outgrown && context.held == Held::kNothing) DropOutgrown();
  return status;
}

Status HostStore::Erase(const ExecContext& context, const KeyBatch& batch) {
  KeyGroups groups(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, nullptr, &groups));
  const WriteLocks writing(locks_, context);
  std::unique_lock<OrderedMutex> turn;
  if (options_.policy.plans_writes() && context.held != Held::kWriting) {
    turn = std::unique_lock<OrderedMutex>(locks_.policy);
  }
  StripedIndex& index = content_->index;
  return groups.ForEachRange(context, kWriteCost, [&](KeyGroups::Range* range) {
    return ForEachGroup(
        *content_, range, [](const KeyGroup&) {},
        [&](const KeyGroup& group, const Probe& probe) {
          const size_t stripe = StripedIndex::StripeOf(probe.hash);
          std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
          NoteLeaves(*content_, group.key, probe.hash);
          const uint32_t row_id = index.Erase(group.key, probe.hash);
          if (row_id != kNoRowId) content_->rows.Free(&content_->pools[stripe], row_id);
          return Status();
        });
  });
}

}  // namespace tf_embed
