// SPDX-License-Identifier: Apache-2.0
// All verbs of a store at once, in threads that share a pool, for stores of each policy and type.
// `bazel test --config=locks` also checks the order of locks.
#include <array>
#include <map>
#include <set>

#include "cc/core/policy/rank_list.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/table/restrict.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 4;
constexpr size_t kBatch = 300;
constexpr int64_t kKeys = 4000;
constexpr size_t kMaxRows = 1500;
constexpr size_t kStores = 3;

struct Kind {
  std::string name;
  DataType type = DataType::kFloat;
  RowPolicy policy;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  const auto add = [&](const char* name) -> Kind& {
    kinds.emplace_back();
    kinds.back().name = name;
    for (const Statistic statistic : kAllStatistics) {
      kinds.back().policy.statistics = kinds.back().policy.statistics.With(statistic);
    }
    return kinds.back();
  };
  add("Plain").policy.statistics = StatisticSet();
  add("Half").type = DataType::kHalf;
  for (const auto order : {EvictionOrder::kLru, EvictionOrder::kLfu, EvictionOrder::kScore}) {
    Kind& kind = add(order == EvictionOrder::kLru   ? "Lru"
                     : order == EvictionOrder::kLfu ? "Lfu"
                                                    : "Score");
    kind.policy.max_rows = kMaxRows;
    kind.policy.eviction = order;
  }
  add("Ttl").policy.ttl_milliseconds = 20;
  add("Counter").policy.admission = Admission::NewCounter(HostAllocator(), 2, 0);
  Kind& all = add("AllAtOnce");
  all.type = DataType::kBFloat16;
  all.policy.max_rows = kMaxRows;
  all.policy.eviction = EvictionOrder::kLfu;
  all.policy.ttl_milliseconds = 50;
  all.policy.admission = Admission::NewBloom(HostAllocator(), 2, 0.01, 0);
  return kinds;
}

class VerbsAtOnce : public testing::TestWithParam<std::tuple<StoreKind, size_t>> {
 protected:
  void SetUp() override {
    const Kind kind = Kinds()[std::get<1>(GetParam())];
    for (auto& store : stores_) {
      StoreOptions options;
      options.dim = kDim;
      options.value_type = kind.type;
      options.policy = kind.policy;
      options.initializer = UniformInitializer();
      store = std::get<0>(GetParam()).create(options);
      ASSERT_NE(nullptr, store);
    }
  }

  // A thread that calls verbs.
  class Caller {
   public:
    Caller(VerbsAtOnce* test, size_t number)
        : test_(test), random_(number), rows_(kBatch * kDim * sizeof(double)) {
      for (std::vector<char>& pooled : pooled_) pooled.resize(rows_.size());
    }

    void CallOne() {
      context_ = test_->pool_.Context();
      context_.now.step = ++test_->step_;
      context_.now.milliseconds = 1000 + context_.now.step / 4;
      context_.training = random_() % 2 == 0;
      keys_ = RandomKeys(kBatch, 0, kKeys, &random_);
      store_ = test_->stores_[random_() % kStores].get();
      const Status status = Call(random_() % kVerbs);
      // If another thread has just changed the rule, the verb is refused.
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition)
          << status.message();
    }

   private:
    static constexpr size_t kVerbs = 24;
    Store* store() const { return store_; }

    Status Call(size_t verb) {
      size_t removed = 0;
      switch (verb) {
        case 0:
        case 1:
          return store()->Find(context_, keys_, DefaultRows(), rows_.data(), flags_.data(), {});
        case 2:
          return store()->FindOrInsert(context_, keys_, DefaultRows(), rows_.data(), nullptr);
        case 3:
        case 4:
        case 5:
          return store()->InsertOrAssign(context_, keys_, rows_.data(), {});
        case 6:
          return store()->Accum(context_, keys_, rows_.data(), rows_.data(), flags_.data());
        case 7:
        case 8:
        case 9:
          return store()->Apply(context_, keys_, rows_.data(), store()->options().value_type,
                                Momentum());
        case 10:
          return store()->UpdateAllRows(context_, Momentum());
        case 11:
          return store()->maintenance()->LargestSlot(context_, Momentum().slots, 0, &largest_);
        case 12:
          return store()->Erase(context_, keys_);
        case 13:
          return random_() % 8 == 0 ? store()->Clear() : Status();
        case 14:
          return store()->maintenance()->Shrink(context_);
        case 15:
          return test_->keeps_statistics() ? RestrictRows(context_, &store_, 1, EvictionOrder::kLfu,
                                                          kMaxRows / 2, &removed)
                                           : Status();
        case 16:
          return store()->eviction()->EvictExpired(context_, &removed);
        case 17:
          return FindPooledInAll();
        case 18:
          return ApplyToAll();
        case 19:
          return Export();
        case 20:
          return Replace();
        case 21:
          store()->maintenance()->SetInitializer(UniformInitializer(random_()));
          return Status();
        case 22:
          return store()->maintenance()->SetRule(
              FusedSlots(random_() % 2 == 0 ? RuleKind::kMomentum : RuleKind::kSgd, kDim));
        default:
          (void)store()->Stats();
          return AssignStatistics();
      }
    }

    static Rule Momentum() { return MakeRule(RuleKind::kMomentum, kDim); }

    std::array<const Store*, kStores> All() const {
      std::array<const Store*, kStores> all;
      for (size_t i = 0; i < kStores; ++i) all[i] = test_->stores_[i].get();
      return all;
    }

    Status FindPooledInAll() {
      Bags bags(HostAllocator());
      bags.OfLines(kBatch / 3, 3);
      const auto all = All();
      PooledFind finds[kStores];
      for (size_t i = 0; i < kStores; ++i) {
        finds[i].keys = {keys_.keys.data(), nullptr, false, &all[i], 1};
        finds[i].bags = &bags;
        finds[i].pooled = pooled_[i].data();
        finds[i].stride = kDim;
      }
      return FindPooled(context_, finds, 1 + random_() % kStores);
    }

    // A step of all stores at once, each in a pool thread.
    Status ApplyToAll() {
      const auto all = All();
      HeldStores held(HostAllocator());
      TF_EMBED_RETURN_IF_ERROR(held.Take(all.data(), all.size(), Held::kWriting));
      const ExecContext holding = context_.Holding(Held::kWriting).InSerial();
      const auto apply = [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          (void)test_->stores_[i]->Apply(holding, keys_, rows_.data(),
                                         test_->stores_[i]->options().value_type, Momentum());
        }
      };
      context_.parallel_for(all.size(), 1000000, apply);
      return Status();
    }

    Status Export() {
      const auto all = All();
      HeldStores paused(HostAllocator());
      TF_EMBED_RETURN_IF_ERROR(paused.Take(all.data(), all.size(), Held::kPaused));
      WholeRows rows(HostAllocator());
      std::set<int64_t> seen;
      size_t count = 0;
      for (ExportCursor cursor; !cursor.done; count += rows.size) {
        TF_EMBED_RETURN_IF_ERROR(store()->maintenance()->ExportBatch(500, &cursor, &rows));
        seen.insert(rows.keys.data(), rows.keys.data() + rows.size);
      }
      EXPECT_EQ(count, seen.size()) << "a key twice";
      EXPECT_EQ(count, store()->size());
      const size_t most = store()->options().policy.max_rows;
      EXPECT_TRUE(most == 0 || count <= most) << count;
      return Status();
    }

    Status Replace() {
      std::unique_ptr<Store> fresh = store()->maintenance()->NewEmpty(0, UniformInitializer());
      TF_EMBED_RETURN_IF_ERROR(fresh->InsertOrAssign(context_, keys_, rows_.data(), {}));
      return store()->maintenance()->TakeContent(fresh.get());
    }

    Status AssignStatistics() {
      const StatisticSet set = store()->options().policy.statistics;
      const std::vector<uint64_t> words(kBatch * set.size(), 1);
      return store()->eviction()->AssignStatistics(context_, keys_, set, words.data());
    }

    VerbsAtOnce* const test_;
    Random random_;
    ExecContext context_;
    Batch keys_{0};
    Store* store_ = nullptr;
    std::vector<char> rows_;
    std::array<std::vector<char>, kStores> pooled_;
    std::array<bool, kBatch> flags_{};
    double largest_ = 0.0;
  };

  bool keeps_statistics() const { return stores_[0]->options().policy.statistics.size() > 0; }

  std::unique_ptr<Store> stores_[kStores];
  PoolOfThreads pool_{2};
  std::atomic<uint64_t> step_{1};
};

TEST_P(VerbsAtOnce, LeaveWholeStores) {
#if defined(TF_EMBED_THREAD_SANITIZER)
  constexpr int kRounds = 60;
#else
  constexpr int kRounds = 250;
#endif
  InThreads(4, [&](size_t thread) {
    Caller caller(this, thread + 1);
    for (int round = 0; round < kRounds; ++round) caller.CallOne();
  });
  for (auto& store : stores_) {
    WholeRows rows(HostAllocator());
    size_t count = 0;
    std::set<int64_t> seen;
    for (ExportCursor cursor; !cursor.done; count += rows.size) {
      ASSERT_TRUE(store->maintenance()->ExportBatch(500, &cursor, &rows).ok());
      seen.insert(rows.keys.data(), rows.keys.data() + rows.size);
    }
    EXPECT_EQ(count, seen.size());
    EXPECT_EQ(count, store->size());
    std::vector<int64_t> keys(seen.begin(), seen.end());
    const auto exists = std::make_unique<bool[]>(keys.size());
    ASSERT_TRUE(store->Contains(ExecContext::Serial(), Batch(keys), exists.get()).ok());
    EXPECT_EQ(static_cast<ptrdiff_t>(keys.size()),
              std::count(exists.get(), exists.get() + keys.size(), true));
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, VerbsAtOnce,
                         testing::Combine(testing::ValuesIn(std::vector<StoreKind>{
                                              HostStores().back(), AllStores().back()}),
                                          testing::Range(size_t{0}, Kinds().size())),
                         [](const testing::TestParamInfo<std::tuple<StoreKind, size_t>>& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  Kinds()[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace tf_embed
