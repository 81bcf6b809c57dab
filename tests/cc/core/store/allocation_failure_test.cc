// SPDX-License-Identifier: Apache-2.0
// Every allocation of every verb fails once: first alone, then together with all later allocations.
// Allocations are by the store's Allocator or by operator new. Then a process really runs out of
// memory.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <new>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/failing_new.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 3;
const RuleSlots kRule = FusedSlots(RuleKind::kMomentum, kDim, 0.5);

// Weights and slots by key, and the rule.
struct Content {
  std::map<int64_t, std::pair<std::vector<float>, std::vector<float>>> rows;
  RuleSlots rule;
};

Content ContentOf(const Store& store) {
  Content content;
  content.rule = store.rule();
  const size_t slots_per_row = content.rule.slots_per_row();
  WholeRows rows(HostAllocator());
  for (ExportCursor cursor; !cursor.done;) {
    EXPECT_TRUE(store.maintenance()->ExportBatch(1000, &cursor, &rows).ok());
    const float* const weights = reinterpret_cast<const float*>(rows.weights.data());
    const float* const slots = reinterpret_cast<const float*>(rows.slots.data());
    for (size_t i = 0; i < rows.size; ++i) {
      auto& row = content.rows[rows.keys[i]];
      row.first.assign(weights + i * kDim, weights + (i + 1) * kDim);
      if (slots_per_row > 0) {
        row.second.assign(slots + i * slots_per_row, slots + (i + 1) * slots_per_row);
      }
    }
  }
  EXPECT_EQ(store.size(), content.rows.size());
  return content;
}

// A verb on a batch with present and absent keys. Only the store allocates memory in it.
struct Verb {
  const char* name;
  bool repeatable;  // running it twice equals running it once
  std::function<Status(Store*)> run;
};

class Verbs {
 public:
  explicit Verbs(size_t new_keys) : present(KeysFrom(0, 60)) {
    present.insert(present.end(), {INT64_MIN, -1});
    keys = KeysFrom(30, 30 + new_keys);
    keys.insert(keys.end(), {-1, INT64_MAX});
    values.resize(3 * keys.size() * kDim);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    weights.resize(keys.size() * kDim);
    slots.resize(3 * keys.size() * kDim);
    exists = std::make_unique<bool[]>(keys.size());
  }

  std::unique_ptr<Store> NewStore(const StoreKind& kind, Allocator* allocator) const {
    StoreOptions options;
    options.dim = kDim;
    options.initializer = UniformInitializer();
    options.allocator = allocator;
    std::unique_ptr<Store> store = kind.create(options);
    EXPECT_TRUE(store->maintenance()->SetRule(kRule).ok());
    std::vector<float> rows;
    for (int64_t key : present) rows.insert(rows.end(), kDim, static_cast<float>(key % 1000));
    EXPECT_TRUE(
        store->InsertOrAssign(serial, Batch(present), rows.data(), {&kRule, rows.data()}).ok());
    EXPECT_TRUE(store->Erase(serial, Batch{3, 5}).ok());
    return store;
  }

  std::vector<Verb> All() {
    const KeyBatch batch{keys.data(), keys.size(), nullptr};
    return {
        {"Find", true,
         [=](Store* t) {
           return t->Find(serial, batch, DefaultRows(), weights.data(), exists.get(), {});
         }},
        {"FindOrInsert", true,
         [=](Store* t) {
           return t->FindOrInsert(serial, batch, DefaultRows(), weights.data(), exists.get());
         }},
        {"FindOrInsert without exists", true,
         [=](Store* t) {
           return t->FindOrInsert(serial, batch, DefaultRows(), weights.data(), nullptr);
         }},
        {"Find with slots", true,
         [=](Store* t) {
           const RuleSlots rule = t->rule();
           return t->Find(serial, batch, DefaultRows(), weights.data(), exists.get(),
                          {&rule, slots.data()});
         }},
        {"InsertOrAssign", true,
         [=](Store* t) { return t->InsertOrAssign(serial, batch, values.data(), {}); }},
        {"InsertOrAssign with slots", true,
         [=](Store* t) {
           const RuleSlots rule = t->rule();
           return t->InsertOrAssign(serial, batch, values.data(), {&rule, values.data()});
         }},
        {"Accum", false,
         [=](Store* t) {
           std::fill_n(exists.get(), keys.size() / 2, true);
           std::fill_n(exists.get() + keys.size() / 2, keys.size() - keys.size() / 2, false);
           return t->Accum(serial, batch, values.data(), values.data(), exists.get());
         }},
        {"Apply", false,
         [=](Store* t) {
           return t->Apply(serial, batch, values.data(), DataType::kFloat,
                           MakeRule(kRule.kind, kDim, 0.5));
         }},
        {"Apply of another rule", false,
         [=](Store* t) {
           return t->Apply(serial, batch, values.data(), DataType::kFloat,
                           MakeRule(RuleKind::kAdagrad, kDim, 0.25));
         }},
        {"Erase", true, [=](Store* t) { return t->Erase(serial, batch); }},
        {"Clear", true, [=](Store* t) { return t->Clear(); }},
        {"Shrink", true, [=](Store* t) { return t->maintenance()->Shrink(ExecContext::Serial()); }},
        {"SetRule", true,
         [=](Store* t) {
           return t->maintenance()->SetRule(FusedSlots(RuleKind::kAdagrad, kDim, 0.25));
         }},
        {"ExportBatch", true,
         [=](Store* t) {
           WholeRows rows(t->options().allocator);
           ExportCursor cursor;
           return t->maintenance()->ExportBatch(10, &cursor, &rows);
         }},
    };
  }

  const ExecContext serial = ExecContext::Serial();
  std::vector<int64_t> present;
  std::vector<int64_t> keys;
  std::vector<float> values;
  mutable std::vector<float> weights;
  mutable std::vector<float> slots;
  std::unique_ptr<bool[]> exists;
};

enum class Memory { kAllocator, kOperatorNew };

// Tries every n-th allocation.
int64_t Stride() { return TakesFewCases() ? 11 : 1; }

void FailAfter(Memory memory, FailingAllocator* allocator, int64_t count, bool for_good) {
  if (memory == Memory::kAllocator) {
    allocator->FailAfter(count, for_good);
  } else {
    news_fail_for_good = for_good;
    news_to_pass = count;
  }
}

class AllocationFailure : public testing::TestWithParam<StoreKind> {
 protected:
  // The stride of the calls of operator new that fail. With tiers, a verb makes many calls.
  static int64_t OperatorNewStep() { return GetParam().has_tiers ? 997 : 1; }

  // Each row equals the row before the verb, after it, or after the change of rule that precedes
  // it.
  static void ExpectBetween(const Content& before, const Content& middle, const Content& after,
                            const Content& found) {
    for (const auto& [key, row] : found.rows) {
      bool known = false;
      for (const Content* content : {&before, &middle, &after}) {
        const auto place = content->rows.find(key);
        known = known || (place != content->rows.end() && SameRule(content->rule, found.rule) &&
                          place->second == row);
      }
      EXPECT_TRUE(known) << "key " << key << " has a row that it never had";
    }
    for (const auto& [key, row] : before.rows) {
      EXPECT_TRUE(after.rows.count(key) == 0 || found.rows.count(key) > 0) << "lost key " << key;
    }
  }

  // Lets allocation 0, `step`, 2 * `step`, ... of the verb fail, until the verb makes fewer
  // allocations.
  static void FailEach(Memory memory, bool for_good, size_t new_keys, int64_t step) {
    step *= Stride();
    Verbs verbs(new_keys);
    for (const Verb& verb : verbs.All()) {
      SCOPED_TRACE(verb.name);
      FailingAllocator calm;
      const auto twin = verbs.NewStore(GetParam(), &calm);
      const Content before = ContentOf(*twin);
      ASSERT_TRUE(twin->maintenance()->SetRule(FusedSlots(RuleKind::kAdagrad, kDim, 0.25)).ok());
      const Content middle = ContentOf(*twin);
      const auto other_twin = verbs.NewStore(GetParam(), &calm);
      ASSERT_TRUE(verb.run(other_twin.get()).ok());
      const Content after = ContentOf(*other_twin);
      int64_t failures = 0;
      for (bool done = false; !done && !HasFailure(); failures += done ? 0 : 1) {
        SCOPED_TRACE("allocation " + std::to_string(failures * step));
        FailingAllocator allocator;
        const auto store = verbs.NewStore(GetParam(), &allocator);
        FailAfter(memory, &allocator, failures * step, for_good);
        const Status status = verb.run(store.get());
        FailAfter(memory, &allocator, INT64_MAX, false);
        done = status.ok();
        EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
        const Content found = ContentOf(*store);
        ExpectBetween(before, middle, after, found);
        // With memory available again, everything works.
        EXPECT_TRUE(done || verb.run(store.get()).ok());
        if (verb.repeatable) {
          const Content in_the_end = ContentOf(*store);
          EXPECT_TRUE(in_the_end.rows == after.rows && SameRule(in_the_end.rule, after.rule));
        }
        for (const Verb& other : verbs.All()) {
          EXPECT_TRUE(other.run(store.get()).ok()) << "afterwards: " << other.name;
        }
      }
      std::printf("%s: %ld allocations\n", verb.name, static_cast<long>(failures * step));
    }
  }
};

TEST_P(AllocationFailure, EachAllocationAlone) { FailEach(Memory::kAllocator, false, 150, 1); }

TEST_P(AllocationFailure, EachAllocationAndAllLaterOnes) {
  FailEach(Memory::kAllocator, true, 150, 1);
}

TEST_P(AllocationFailure, AllocationsOfBatchesOfManyParts) {
  if (GetParam().has_disk) GTEST_SKIP() << "takes long, and shows what a store in memory shows";
  FailEach(Memory::kAllocator, false, 5000, 97);
}

TEST_P(AllocationFailure, EachOperatorNewAlone) { FailEach(Memory::kOperatorNew, false, 150, 1); }

TEST_P(AllocationFailure, EachOperatorNewAndAllLaterOnes) {
  FailEach(Memory::kOperatorNew, true, 5000, OperatorNewStep());
}

TEST_P(AllocationFailure, NewStoresAreNullWithoutMemory) {
  if (GetParam().has_disk) GTEST_SKIP() << "a folder needs memory to be removed";
  for (Memory memory : {Memory::kAllocator, Memory::kOperatorNew}) {
    FailingAllocator allocator;
    StoreOptions options;
    options.name = "a name that is too long to be kept within the string itself";
    options.initializer.row = {1.0};
    options.allocator = &allocator;
    const auto model = GetParam().create(options);
    for (int64_t passes = 0;; ++passes) {
      FailAfter(memory, &allocator, passes, true);
      const auto created = GetParam().create(options);
      FailAfter(memory, &allocator, passes, true);
      const auto empty = model->maintenance()->NewEmpty(100, model->options().initializer);
      FailAfter(memory, &allocator, INT64_MAX, false);
      if (created != nullptr && empty != nullptr) break;
      ASSERT_LT(passes, 100);
    }
  }
}

TEST_P(AllocationFailure, DestructionGivesAllMemoryBack) {
  FailingAllocator allocator;
  {
    Verbs verbs(20000);
    const auto store = verbs.NewStore(GetParam(), &allocator);
    const size_t empty = allocator.live_bytes();  // memory that an empty store keeps
    for (const Verb& verb : verbs.All()) ASSERT_TRUE(verb.run(store.get()).ok());
    ASSERT_TRUE(verbs.All()[1].run(store.get()).ok());
    const size_t bytes = allocator.live_bytes() - empty;
    ASSERT_TRUE(store->Clear().ok());
    const size_t buffers = GetParam().has_disk ? 1 << 20 : 0;  // kept by a log of rows
    EXPECT_LT(allocator.live_bytes(), empty + bytes / 10 + buffers) << "Clear keeps memory";
  }
  EXPECT_EQ(0u, allocator.live_blocks());
}

// ---- A process that has no more memory ----

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr size_t kRealDim = 64;

constexpr int kUnlimited = 2;  // the exit status if a limit has no effect

class SmallProcess {
 public:
  explicit SmallProcess(const StoreKind& kind) {
    StoreOptions options;
    options.dim = kRealDim;
    store = kind.create(options);
  }

  // Returns the first error, or nullptr.
  const char* Run() {
    size_t pages = 0;
    std::FILE* const statm = std::fopen("/proc/self/statm", "r");
    if (statm == nullptr || std::fscanf(statm, "%zu", &pages) != 1) return "no /proc/self/statm";
    std::fclose(statm);
    const rlim_t limit = pages * static_cast<size_t>(getpagesize()) + (size_t{80} << 20);
    const rlimit limits{limit, limit};
    if (setrlimit(RLIMIT_AS, &limits) != 0) return "setrlimit";
    // QEMU does not limit the process that it emulates.
    void* const more = mmap(nullptr, limit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more != MAP_FAILED) _exit(kUnlimited);

    int64_t inserted = 0;
    Status status;
    while ((status = Insert(inserted)).ok()) inserted += kBatch;
    if (status.code() != StatusCode::kResourceExhausted) return "refused with another code";
    if (inserted < 100000) return "refused too early";
    if (static_cast<int64_t>(store->size()) < inserted) return "lost keys";
    for (int again = 0; again < 3; ++again) {
      if (Insert(inserted).ok()) return "memory came from nowhere";
      if (!Holds(0, inserted)) return "rows wrong after a refusal";
    }
    for (int64_t first = 0; first < 20 * kBatch; first += kBatch) {
      if (!Erase(first)) return "erase refused";
    }
    if (!Insert(int64_t{1} << 40).ok()) return "no insertion after erasing";
    if (!Holds(20 * kBatch, inserted) || !Holds(int64_t{1} << 40, (int64_t{1} << 40) + kBatch)) {
      return "rows wrong after erasing";
    }
    if (!store->Clear().ok() || store->size() != 0) return "clear refused";
    for (int64_t first = 0; first < inserted / 2; first += kBatch) {
      if (!Insert(first).ok()) return "no insertion after clearing";
    }
    return Holds(0, inserted / 2 / kBatch * kBatch) ? nullptr : "rows wrong after clearing";
  }

 private:
  static constexpr int64_t kBatch = 1000;

  void SetKeys(int64_t first) {
    for (int64_t i = 0; i < kBatch; ++i) keys[i] = first + i;
  }
  Status Insert(int64_t first) {
    SetKeys(first);
    for (size_t i = 0; i < kBatch * kRealDim; ++i) {
      rows[i] = static_cast<float>(keys[i / kRealDim] % 65521 + static_cast<int64_t>(i % kRealDim));
    }
    return store->InsertOrAssign(serial, {keys, kBatch, nullptr}, rows, {});
  }
  bool Erase(int64_t first) {
    SetKeys(first);
    return store->Erase(serial, {keys, kBatch, nullptr}).ok();
  }
  bool Holds(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kBatch) {
      SetKeys(first);
      if (!store->Find(serial, {keys, kBatch, nullptr}, DefaultRows(), rows, exists, {}).ok()) {
        return false;
      }
      for (size_t i = 0; i < kBatch * kRealDim; ++i) {
        const int64_t expected = keys[i / kRealDim] % 65521 + static_cast<int64_t>(i % kRealDim);
        if (!exists[i / kRealDim] || rows[i] != static_cast<float>(expected)) return false;
      }
    }
    return true;
  }

  const ExecContext serial = ExecContext::Serial();
  std::unique_ptr<Store> store;
  int64_t keys[kBatch];
  float rows[kBatch * kRealDim];
  bool exists[kBatch];
};

TEST_P(AllocationFailure, AProcessWithoutMemoryRefusesAndGoesOn) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need an address space without a limit";
  if (GetParam().has_tiers) GTEST_SKIP() << "a find of cold rows needs memory for their blocks";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto process = std::make_unique<SmallProcess>(GetParam());
    const char* const wrong = process->Run();
    if (wrong != nullptr) std::fprintf(stderr, "in the small process: %s\n", wrong);
    _exit(wrong == nullptr ? 0 : 1);
  }
  int result = 0;
  ASSERT_EQ(child, waitpid(child, &result, 0));
  ASSERT_TRUE(WIFEXITED(result)) << "killed by signal " << WTERMSIG(result);
  if (WEXITSTATUS(result) == kUnlimited) GTEST_SKIP() << "setrlimit has no effect";
  EXPECT_EQ(0, WEXITSTATUS(result));
}

// Rows that leave a bounded store go to the sink first, whichever allocation fails.
class BoundedAllocationFailure : public AllocationFailure {};

TEST_P(BoundedAllocationFailure, ABoundedStoreLosesNothingButWhatTheSinkKnows) {
  struct Log : EvictionSink {
    Status Evict(const WholeRows& rows, const RuleSlots&) override {
      try {
        std::set<int64_t> with_these = keys;
        with_these.insert(rows.keys.data(), rows.keys.data() + rows.size);
        keys.swap(with_these);
        return Status();
      } catch (const std::bad_alloc&) {
        return Status::ResourceExhausted([] { return "No memory for the log."; });
      }
    }
    std::set<int64_t> keys;
  };
  const Batch old_keys = KeysFrom(0, 3000), new_keys = KeysFrom(2500, 1500);
  const std::vector<float> gradients(old_keys.size() * kDim, 1.0f);
  const std::vector<int64_t> scores(old_keys.size(), 3);
  ExecContext context = ExecContext::Serial();
  const auto apply = [&](Store* store, const Batch& keys) {
    KeyBatch batch = keys;
    if (store->options().policy.eviction == EvictionOrder::kScore) batch.scores = scores.data();
    return store->Apply(context, batch, gradients.data(), DataType::kFloat,
                        MakeRule(kRule.kind, kDim, 0.5));
  };
  for (const auto& [memory, eviction] :
       {std::pair(Memory::kAllocator, EvictionOrder::kLru),
        std::pair(Memory::kAllocator, EvictionOrder::kScore),
        std::pair(Memory::kOperatorNew, EvictionOrder::kEpochLfu)}) {
    bool done = false;
    // With tiers, a batch is processed in many parts, and each part allocates memory.
    const int64_t allocator_step = GetParam().has_tiers ? 7 : 1;
    const int64_t step = memory == Memory::kOperatorNew ? OperatorNewStep() : allocator_step;
    for (int64_t failure = 0; !done && !HasFailure(); failure += step * Stride()) {
      SCOPED_TRACE("allocation " + std::to_string(failure));
      FailingAllocator allocator;
      Log log;
      StoreOptions options;
      options.dim = kDim;
      options.allocator = &allocator;
      options.policy.max_rows = 3000;
      options.policy.eviction = eviction;
      options.policy.ttl_milliseconds = 1000;
      options.policy.admission = Admission::NewCounter(&allocator, 1, 0);
      options.policy.sink = &log;
      const auto store = GetParam().create(options);
      context.now = {1, 1000};
      ASSERT_TRUE(apply(store.get(), old_keys).ok());
      context.now = {2, 1001};
      FailAfter(memory, &allocator, failure, true);
      const Status status = apply(store.get(), new_keys);
      FailAfter(memory, &allocator, INT64_MAX, false);
      done = status.ok();
      EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
      const Content found = ContentOf(*store);
      EXPECT_LE(found.rows.size(), 3000u);
      for (const int64_t key : old_keys.keys) {
        EXPECT_NE(found.rows.count(key), log.keys.count(key)) << "key " << key;
      }
      EXPECT_TRUE(apply(store.get(), new_keys).ok());
      EXPECT_EQ(3000u, store->size());
    }
    EXPECT_TRUE(done);
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, AllocationFailure, testing::ValuesIn(AllStores()), NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, BoundedAllocationFailure, testing::ValuesIn(AllStores()),
                         NameOfStore);

}  // namespace
}  // namespace tf_embed
