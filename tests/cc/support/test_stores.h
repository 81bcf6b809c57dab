// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of the core: the stores under test, thread pools, batches, values.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_TEST_STORES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_TEST_STORES_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/host/host_store.h"
#include "gtest/gtest.h"
#include "tests/cc/support/tiered_stores.h"

namespace tf_embed {

// A kind of store. Add a line to AllStores for a new kind.
struct StoreKind {
  const char* name;
  std::function<std::unique_ptr<Store>(const StoreOptions& options)> create;
  bool takes_threads = true;  // whether several threads may call verbs at once
  bool same_powers = true;    // whether x^y has the same bits as on the host
  bool on_device = false;     // victims are chosen by eviction set
  bool has_tiers = false;     // few rows are in the cache
  bool has_disk = false;      // and some other rows are in files
};

// Stores in host memory, one for each instruction set. Under ThreadSanitizer, all sets copy rows by
// the same words, so only the best set is tested.
inline std::vector<StoreKind> HostStores() {
#if defined(TF_EMBED_THREAD_SANITIZER)
  const std::vector<InstructionSet> sets = {BestInstructionSet()};
#else
  const std::vector<InstructionSet> sets = InstructionSetsHere();
#endif
  std::vector<StoreKind> kinds;
  for (const InstructionSet set : sets) {
    static constexpr const char* kNames[] = {"HostStorePlain", "HostStoreAvx2", "HostStoreAvx512"};
    const auto create = [set](const StoreOptions& given) -> std::unique_ptr<Store> {
      try {
        StoreOptions options = given;
        options.instruction_set = set;
        return HostStore::Create(options);
      } catch (const std::bad_alloc&) {
        return nullptr;
      }
    };
    kinds.push_back({kNames[static_cast<int>(set)], create});
  }
  return kinds;
}

// A cache of few rows over a lower tier.
inline StoreKind TieredStores(size_t cache_rows = 64, const char* name = "TieredStore",
                              NewCache new_cache = NewHostCache,
                              NewLower new_lower = NewHostLower) {
  const auto create = [=](const StoreOptions& options) -> std::unique_ptr<Store> {
    return NewTieredStore(options, cache_rows, nullptr, new_cache, new_lower);
  };
  StoreKind kind{name, create};
  kind.has_tiers = true;
  return kind;
}

// All stores of this program. The store in the memory of a device is the last.
inline std::vector<StoreKind> AllStores() {
  std::vector<StoreKind> kinds = HostStores();
  kinds.push_back(TieredStores());
  kinds.push_back(TieredStores(64, "TieredStoreOnDevice", NewDeviceCache));
  kinds.push_back(TieredStores(64, "ThreeTiers", NewDeviceCache, NewHostOverDisk));
  kinds.back().has_disk = true;
  const auto create = [](const StoreOptions& options) {
    std::unique_ptr<Store> store;
    (void)NewEmulatedDeviceStore(options, DeviceOptions(), &store);
    return store;
  };
  kinds.push_back({"EmulatedDeviceStore", create, true, true, /*on_device=*/true});
  return kinds;
}

inline std::vector<StoreKind> WithoutTiers(std::vector<StoreKind> kinds) {
  const auto has_tiers = [](const StoreKind& kind) { return kind.has_tiers; };
  kinds.erase(std::remove_if(kinds.begin(), kinds.end(), has_tiers), kinds.end());
  return kinds;
}

inline void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string NameOfStore(const testing::TestParamInfo<StoreKind>& info) {
  return info.param.name;
}

using Random = std::mt19937_64;

// Whether long tests run only a few of their cases, as in `make test`. Other runs have all cases.
inline bool TakesFewCases() { return std::getenv("TF_EMBED_TEST_FEW_CASES") != nullptr; }

// The seeds of a random test: a few fixed seeds, or the seed in TF_EMBED_TEST_SEED.
inline std::vector<uint64_t> Seeds(size_t count) {
  if (const char* given = std::getenv("TF_EMBED_TEST_SEED")) return {std::stoull(given)};
  std::vector<uint64_t> seeds(TakesFewCases() ? 1 : count);
  std::iota(seeds.begin(), seeds.end(), 1);
  return seeds;
}

// The sizes of a long test, or the first two if it runs few cases.
inline std::vector<size_t> Sizes(std::vector<size_t> sizes) {
  if (TakesFewCases()) sizes.resize(2);
  return sizes;
}

// Real threads, which take many small pieces of the work in an unspecified order.
inline ExecContext Threads(size_t count) {
  const auto parallel_for = [count](size_t total, size_t, const ExecContext::Work& work) {
    const size_t piece = std::max<size_t>(1, total / (3 * count));
    std::atomic<size_t> next{0};
    const auto run = [&] {
      for (size_t begin; (begin = next.fetch_add(piece)) < total;) {
        work(begin, std::min(begin + piece, total));
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < count && i * piece < total; ++i) others.emplace_back(run);
    run();
    for (std::thread& thread : others) thread.join();
  };
  ExecContext context;
  context.parallel_for = parallel_for;
  return context;
}

// A few threads with a common queue. A caller waits for its pieces, as TensorFlow's kernels do. So
// a piece that waits for a lock blocks a thread for everyone.
class PoolOfThreads {
 public:
  explicit PoolOfThreads(size_t count) {
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~PoolOfThreads() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  ExecContext Context() {
    ExecContext context;
    context.parallel_for = [this](size_t total, size_t, const ExecContext::Work& work) {
      const size_t piece = total / (threads_.size() + 1) + 1;
      size_t left = 0;  // under the mutex
      for (size_t begin = piece; begin < total; begin += piece) {
        std::lock_guard<std::mutex> lock(mutex_);
        ++left;
        queue_.push_back([this, &work, &left, begin, end = std::min(begin + piece, total)] {
          work(begin, end);
          std::lock_guard<std::mutex> done(mutex_);
          --left;
          changed_.notify_all();
        });
      }
      changed_.notify_all();
      if (total > 0) work(0, std::min(piece, total));
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return left == 0; });
    };
    return context;
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stops_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

// Runs `body(i)` in `count` threads at once and waits for them.
template <typename Body>
void InThreads(size_t count, const Body& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// A KeyBatch that owns its keys. `places` is the length of the arrays beside the batch.
struct Batch {
  std::vector<int64_t> keys;
  std::vector<uint32_t> positions;
  size_t places = 0;

  Batch(std::vector<int64_t> keys) : keys(std::move(keys)), places(this->keys.size()) {}
  Batch(std::initializer_list<int64_t> keys) : Batch(std::vector<int64_t>(keys)) {}
  operator KeyBatch() const {
    return {keys.data(), keys.size(), positions.empty() ? nullptr : positions.data()};
  }
  size_t size() const { return keys.size(); }
  size_t Position(size_t i) const { return positions.empty() ? i : positions[i]; }
};

// The batch with its keys at random positions of arrays that are twice as long.
inline Batch Scattered(Batch batch, Random* random) {
  batch.places = 2 * batch.size();
  batch.positions.resize(batch.places);
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  std::shuffle(batch.positions.begin(), batch.positions.end(), *random);
  batch.positions.resize(batch.size());
  return batch;
}

// first, first + step, ...
inline std::vector<int64_t> KeysFrom(int64_t first, size_t count, int64_t step = 1) {
  std::vector<int64_t> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = first + static_cast<int64_t>(i) * step;
  return keys;
}

inline std::vector<int64_t> RandomKeys(size_t count, int64_t smallest, int64_t largest,
                                       Random* random) {
  std::uniform_int_distribution<int64_t> uniform(smallest, largest);
  std::vector<int64_t> keys(count);
  for (int64_t& key : keys) key = uniform(*random);
  return keys;
}

// Keys that a careless store would confuse with its special values.
inline std::vector<int64_t> ExtremeKeys() {
  std::vector<int64_t> keys = {
      0,         -1,       1, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, 0xffffffffll,
      INT32_MIN, INT32_MAX};
  for (int64_t i = 1; i <= 40; ++i) {
    keys.push_back(i << 32);
    keys.push_back(-(i << 32));
    keys.push_back(static_cast<int64_t>(static_cast<uint64_t>(i) << 56));
  }
  return keys;
}

template <typename T>
std::vector<T> RandomValues(size_t count, Random* random) {
  std::uniform_real_distribution<double> uniform(-4.0, 4.0);
  std::vector<T> values(count);
  for (T& value : values) value = Number<T>::FromDouble(uniform(*random));
  return values;
}

// Fails at the first value that differs in any bit. All NaNs count as equal, because the sign of a
// NaN that a sum makes differs between processors and GPUs.
template <typename T>
void ExpectSameBits(const std::vector<T>& expected, const std::vector<T>& actual,
                    const char* what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  if (expected.empty()) return;
  if (std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(T)) == 0) return;
  const auto is_nan = [](const T& x) { return Number<T>::Load(x) != Number<T>::Load(x); };
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is_nan(expected[i]) && is_nan(actual[i])) continue;
    ASSERT_EQ(0, std::memcmp(&expected[i], &actual[i], sizeof(T)))
        << what << "[" << i << "] is " << +Number<T>::Load(actual[i]) << ", expected "
        << +Number<T>::Load(expected[i]);
  }
}

// Calls `check(TypeTag<T>())` for each type T that can be summed.
template <typename Check>
void ForEachType(const Check& check) {
  const auto check_all = [&](auto... tags) { (check(tags), ...); };
  check_all(TypeTag<float>(), TypeTag<Half>(), TypeTag<BFloat16>(), TypeTag<double>(),
            TypeTag<int8_t>(), TypeTag<int32_t>(), TypeTag<int64_t>());
}

template <typename T>
constexpr DataType TypeOf() {
  if (std::is_same_v<T, Half>) return DataType::kHalf;
  if (std::is_same_v<T, BFloat16>) return DataType::kBFloat16;
  if (std::is_same_v<T, double>) return DataType::kDouble;
  if (std::is_same_v<T, int8_t>) return DataType::kInt8;
  if (std::is_same_v<T, int32_t>) return DataType::kInt32;
  if (std::is_same_v<T, int64_t>) return DataType::kInt64;
  return DataType::kFloat;
}

inline RowInitializer UniformInitializer(uint64_t seed = 7, uint64_t table_id = 11) {
  RowInitializer initializer;
  initializer.kind = InitializerKind::kUniform;
  initializer.a = -3.0;
  initializer.b = 3.0;
  initializer.seed = seed;
  initializer.table_id = table_id;
  return initializer;
}

// A hyper-parameter of a rule; 0 if the rule does not name it.
inline double HyperOf(const Rule& rule, std::string_view name) {
  const int place = FindHyper(rule.slots.kind, name);
  return place < 0 ? 0.0 : rule.hyper[place];
}

// Sets the hyper-parameters that the rule names, and ignores others.
inline void SetHyper(Rule* rule,
                     std::initializer_list<std::pair<std::string_view, double>> numbers) {
  for (const auto& [name, number] : numbers) {
    const int place = FindHyper(rule->slots.kind, name);
    if (place >= 0) rule->hyper[place] = number;
  }
}

// Calls change(hyper) with the hyper-parameters of a rule of the type `Unit`.
template <class Unit, typename Change>
void ChangeHyper(Rule* rule, const Change& change) {
  ASSERT_EQ(KindOf<Unit>(), rule->slots.kind);
  auto hyper = rule->Get<typename Unit::Hyper>();
  change(hyper);
  rule->Set(hyper);
}

inline Rule MakeRule(RuleKind kind, size_t dim, double initial_value = 0.0) {
  Rule rule;
  rule.slots = FusedSlots(kind, dim, initial_value);
  rule.learning_rate = 0.05;
  SetHyper(&rule, {{"momentum", 0.9},
                   {"epsilon", 1e-7},
                   {"beta_1", 0.9},
                   {"beta_2", 0.999},
                   {"rho", 0.9},
                   {"learning_rate_power", -0.5},
                   {"counter_rate_mode", -1.0},
                   {"max_counter", 1.0},
                   {"keeps_average", 1.0}});
  return rule;
}

// Whether steps of the rule compute powers of variables.
inline bool TakesPowers(const Rule& rule) {
  switch (rule.slots.kind) {
    case RuleKind::kFtrl:
      return rule.Get<FtrlRule::Hyper>().learning_rate_power != -0.5;
    case RuleKind::kRowwiseAdagradGlobal:
    case RuleKind::kRowwiseAdagradCounter:
    case RuleKind::kRowAdamCounter:
    case RuleKind::kSmartDecayAdam:
      return true;
    default:
      return false;
  }
}

// The slots of an external optimizer.
inline RuleSlots ExternalSlots(uint64_t id, std::initializer_list<SlotGroup> groups) {
  RuleSlots slots;
  slots.kind = RuleKind::kExternal;
  slots.id = id;
  for (const SlotGroup& group : groups) {
    slots.AddGroup(group.width, group.initial_value, group.type);
  }
  return slots;
}

// The rule with a stored type for each group.
inline RuleSlots Stored(RuleSlots slots, std::initializer_list<SlotType> types) {
  uint32_t i = 0;
  for (const SlotType type : types) slots.groups[i++].type = type;
  return slots;
}

// Row-wise Adagrad with all modes of its counter.
inline std::vector<Rule> CountingRules(size_t dim) {
  using Hyper = RowwiseAdagradCounterRule::Hyper;
  std::vector<Rule> rules;
  const auto begin = [](DecayMode mode, double inner, double half_life) {
    Hyper hyper{};
    hyper.epsilon = 1e-7;
    hyper.decay = 0.3;
    hyper.decay_mode = static_cast<double>(mode);
    hyper.counter_decay_mode = inner;
    hyper.counter_half_life = half_life;
    hyper.counter_rate_mode = -1.0;
    hyper.max_counter = 1.0;
    return hyper;
  };
  const auto add = [&](const Hyper& hyper) {
    rules.push_back(Rule::Of<RowwiseAdagradCounterRule>(dim, hyper, 0.05));
  };
  for (const double inner : {1.0, 0.0, 2.0}) {
    Hyper hyper = begin(DecayMode::kCowClip, inner, 3.0);
    hyper.norm_coefficient = 0.1;
    hyper.lower_bound = 0.2;
    add(hyper);
  }
  for (const double half_life : {3.0, 0.0, -1.0, -2.0}) {
    for (const double inner : {0.0, 1.0, 2.0, 3.0}) {
      for (const double rates : {-1.0, 0.0, 1.0, 2.0}) {
        Hyper hyper = begin(DecayMode::kCounter, inner, half_life);
        hyper.counter_rate_mode = rates;
        hyper.adjustment_step = inner;
        hyper.adjustment_bound = 0.7;
        hyper.max_counter = 4.0;
        hyper.tail_threshold = 1.0;
        add(hyper);
      }
    }
  }
  return rules;
}

// The rules that read whole rows, with their options, but only the first counting rule.
inline std::vector<Rule> RowRules(size_t dim) {
  std::vector<Rule> rules;
  for (const RuleKind kind :
       {RuleKind::kExactAdagrad, RuleKind::kRowwiseAdagrad, RuleKind::kEnsembleRowwiseAdagrad,
        RuleKind::kEmaRowwiseAdagrad, RuleKind::kRowAdam, RuleKind::kRowAdamCounter,
        RuleKind::kPartialRowwiseAdam, RuleKind::kLamb, RuleKind::kPartialRowwiseLamb,
        RuleKind::kLars}) {
    if (kind == RuleKind::kEmaRowwiseAdagrad && dim % 2 != 0) continue;
    for (const double decay : {0.0, 0.3}) {
      rules.push_back(MakeRule(kind, dim));
      SetHyper(&rules.back(),
               {{"decay", decay}, {"decay_mode", decay == 0.0 ? 0.0 : 1.0}, {"eta", 0.01}});
    }
  }
  const auto mode = [](DecayMode mode) { return static_cast<double>(mode); };
  rules.push_back(
      Rule::Of<RowwiseAdagradRule>(dim, {0.0, 1e-7, 0.3, mode(DecayMode::kDecoupled), 1.5}, 0.05));
  rules.push_back(MakeRule(RuleKind::kEnsembleRowwiseAdagrad, dim, std::nan("")));
  rules.push_back(Rule::Of<RowwiseAdagradGlobalRule>(
      dim, {1e-7, 0.3, mode(DecayMode::kDecoupledGlobal), 0.0, 2.0, 0.0}, 0.05));
  rules.push_back(CountingRules(dim).front());
  return rules;
}

// A fused rule of each kind, with its options.
inline std::vector<Rule> AllRules(size_t dim) {
  std::vector<Rule> rules = {MakeRule(RuleKind::kNone, dim),
                             MakeRule(RuleKind::kSgd, dim),
                             MakeRule(RuleKind::kMomentum, dim),
                             MakeRule(RuleKind::kAdagrad, dim, 0.1),
                             MakeRule(RuleKind::kRowwiseAdagrad, dim, 0.25),
                             MakeRule(RuleKind::kAdam, dim),
                             MakeRule(RuleKind::kAdamAmsgrad, dim),
                             MakeRule(RuleKind::kRmsprop, dim),
                             MakeRule(RuleKind::kRmspropMomentum, dim),
                             MakeRule(RuleKind::kRmspropCentered, dim),
                             MakeRule(RuleKind::kRmspropCenteredMomentum, dim),
                             MakeRule(RuleKind::kFtrl, dim, 0.1)};
  rules.push_back(Rule::Of<MomentumRule>(dim, {0.9, 1.0}, 0.05));
  rules.push_back(MakeRule(RuleKind::kAdam, dim));
  rules.back().weight_decay = 0.01;
  rules.push_back(MakeRule(RuleKind::kSgd, dim));
  rules.back().weight_decay = 0.1;
  rules.push_back(Rule::Of<FtrlRule>(dim, {0.25, -0.3, 0.5, 0.25, 0.125, 0.75, 0.2}, 0.05));
  rules.back().weight_decay = 0.01;
  rules.push_back(MakeRule(RuleKind::kSmartDecayAdam, dim));
  rules.push_back(Rule::Of<SmartDecayAdamRule>(dim, {0.9, 0.5, 1e-3}, 0.05));  // moves can grow
  for (const Rule& rule : RowRules(dim)) rules.push_back(rule);
  return rules;
}

// The result of Store's LargestSlot, which must succeed.
inline double LargestSlot(const Store& store, const ExecContext& context, const RuleSlots& rule,
                          size_t slot) {
  double largest = -1.0;
  EXPECT_TRUE(store.maintenance()->LargestSlot(context, rule, slot, &largest).ok());
  return largest;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_TEST_STORES_H_
