// SPDX-License-Identifier: Apache-2.0
// Measures a table over disk: training steps beside those of other tables, resident memory, and
// the cost of overwriting on disk and in steps.
//
//     tiers_benchmark --folder=FOLDER [--json] [--measure=steps] [--tables=memory,disk,...]
//                     [--hits=1,0.99,...] [--hot=apart|together] [rows] [dim] [batch] [threads]
//                     [steps]
//
// Default: 1000000 64 65536 2 20. The cache has room for a quarter of the rows. With --json the
// last line is an object of JSON.
//
// --measure=steps: at each share of hits in turn. All rows are written first, with the slots of
// Adam. A batch has distinct keys: a share of hot ones, which half of the cache has room for, and
// others that are drawn from all the rest. Hot are every eighth row or, with --hot=together, the
// rows that were written first. In a table in memory these lie side by side, which no user's hot
// rows do, and the processor reads ahead along them. A step looks the batch up, as a part of
// training, and applies Adam. The tables take turns, of ten steps each, on the same batches:
//
//     memory            a table in memory
//     disk              a cache over DiskTier
//     disk+prefetch     the same; two threads bring rows up ahead of the steps
//     rocksdb           the same cache over RocksDB (rocksdb_store.h), if it is linked
//     rocksdb+prefetch
//     mapped            an array mapped from a file (mapped_array.h), in as much memory as `disk`
//
// --measure=resident: resident memory beyond that of the caller's arrays, over bound and index of
// the table `disk`, after steps at 90% hits.
//
// --measure=overwrites: `steps` rounds that assign all rows of the table `disk` in random order.
// After each batch, bytes on disk are compared with the live ones.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/mapped_array.h"
#include "benchmarks/pool.h"
#include "benchmarks/rule.h"
#include "cc/core/rows/row_layout.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/new_store.h"
#include "cc/stores/tiered/tiered_store.h"
#if defined(TF_EMBED_WITH_ROCKSDB)
#include "benchmarks/rocksdb_store.h"
#endif

namespace tf_embed {
namespace {

using Clock = std::chrono::steady_clock;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

[[noreturn]] void Refuse(const std::string& message) {
  std::fprintf(stderr, "tiers_benchmark: %s\n", message.c_str());
  std::exit(1);
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double Longest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

size_t ResidentBytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// `"name": value` of an object of JSON.
template <typename Value>
std::string Field(const char* name, const Value& value) {
  std::ostringstream field;
  field.precision(6);
  field << '"' << name << "\": " << value;
  return field.str();
}

std::string Milliseconds(const std::vector<double>& seconds) {
  std::ostringstream list;
  list.precision(6);
  for (const double one : seconds) list << (list.tellp() == 0 ? "[" : ", ") << one * 1e3;
  return list.str() + "]";
}

struct Subject {
  std::string name;
  bool prefetches = false;
  std::unique_ptr<Store> table;
  std::unique_ptr<MappedArray> array;  // in place of a table
  std::vector<double> steps;           // seconds
  std::vector<double> dropping;        // of these, for dropped pages of the array
  StoreStats before;
};

class Benchmark {
 public:
  Benchmark(const std::string& folder, bool hot_together, const std::vector<double>& numbers)
      : folder_(folder),
        hot_together_(hot_together),
        rows_(static_cast<size_t>(numbers[0]) / kHotDivisor * kHotDivisor),
        dim_(static_cast<size_t>(numbers[1])),
        batch_(static_cast<size_t>(numbers[2])),
        steps_(static_cast<size_t>(numbers[4])),
        pool_(static_cast<size_t>(numbers[3])),
        rule_(RuleOf(RuleKind::kAdam, dim_)),
        layout_(DataType::kFloat, dim_, rule_.slots, 1),
        cache_bytes_(rows_ / 4 * (layout_.stride + sizeof(uint64_t))),
        hot_rows_(rows_ / kHotDivisor) {
    if (batch_ == 0 || batch_ > hot_rows_) Refuse("a batch must have 1 to rows / 8 keys.");
    options_.dim = dim_;
    options_.initializer.kind = InitializerKind::kConstant;  // as a file's, which is zeros
    context_ = pool_.Context();
    context_.training = true;
    keys_.resize(batch_);
    weights_.assign(batch_ * dim_, 0.0f);
    gradients_.assign(batch_ * dim_, 0.01f);
    std::printf("%zu rows of %zu bytes, a cache of %zu, dim %zu, batches of %zu\n", rows_,
                layout_.stride, rows_ / 4, dim_, batch_);
  }

  // Each returns the fields of an object of JSON.
  std::string MeasureSteps(const std::string& tables, const std::string& hits);
  std::string MeasureResident();
  std::string MeasureOverwrites();

 private:
  Subject Make(const std::string& name);
  Status NewRocksdbTable(const std::string& name, std::unique_ptr<Store>* table);
  size_t MappedBytes() const { return cache_bytes_ + rows_ * kIndexBytesPerRow; }

  void Step(Subject* subject, const std::vector<int64_t>& keys, size_t count);
  // All rows in the order of their keys, in batches.
  void StepAll(std::vector<Subject>* subjects) {
    StepThrough(subjects, rows_, [](size_t i) { return i; });
  }
  // The rows that the cache keeps.
  void StepHot(std::vector<Subject>* subjects) {
    StepThrough(subjects, hot_rows_, [this](size_t i) { return KeyOfHot(i); });
  }
  template <typename KeyOf>
  void StepThrough(std::vector<Subject>* subjects, size_t count, const KeyOf& key_of);
  size_t KeyOfHot(size_t i) const { return hot_together_ ? i : i * kHotDivisor; }
  size_t KeyOfCold(size_t i) const {
    return hot_together_ ? hot_rows_ + i : i + i / (kHotDivisor - 1) + 1;
  }
  // Distinct keys, a share of them from the rows that the cache keeps.
  void Draw(double share, std::vector<int64_t>* keys);
  void MeasureShare(double share, std::vector<Subject>* subjects);
  void StepsOf(Subject* subject, const std::vector<std::vector<int64_t>>& batches);
  // Fails unless all tables have the same rows of the last batch, to the last bit.
  void CompareRows(std::vector<Subject>* subjects);
  std::string Report(double share, const Subject& subject, const Subject& first);
  void BeginStep() {
    ++context_.now.step;
    ++rule_.step;
  }

  // One row in kHotDivisor is hot.
  static constexpr size_t kHotDivisor = 8;
  // Steps that a table makes in a turn.
  static constexpr size_t kTurn = 10;
  // Memory of a mapped array in place of the index, which it does not need.
  static constexpr size_t kIndexBytesPerRow = 24;

  const std::string folder_;
  const bool hot_together_;
  const size_t rows_, dim_, batch_, steps_;
  Pool pool_;
  Rule rule_;
  const RowLayout layout_;
  const size_t cache_bytes_, hot_rows_;
  StoreOptions options_;
  ExecContext context_;
  std::mt19937_64 random_{1};
  std::vector<int64_t> keys_;
  std::vector<float> weights_, gradients_;
};

Status Benchmark::NewRocksdbTable(const std::string& name, std::unique_ptr<Store>* table) {
#if defined(TF_EMBED_WITH_ROCKSDB)
  TierOptions tiers;
  tiers.cache_bytes = cache_bytes_;
  tiers.new_cache = [](const StoreOptions& of_cache, std::unique_ptr<Store>* cache) {
    *cache = HostStore::Create(of_cache);
    return *cache != nullptr ? Status() : NoMemoryForRow(of_cache.name, 0);
  };
  tiers.new_lower = [path = folder_ + "/" + name, dim = dim_](StatisticSet,
                                                              std::unique_ptr<LowerTier>* made) {
    return NewRocksdbStore(path, dim, made);
  };
  std::unique_ptr<TieredStore> made;
  TF_EMBED_RETURN_IF_ERROR(TieredStore::Create(options_, tiers, &made));
  *table = std::move(made);
  return Status();
#else
  (void)table;
  return Status::InvalidArgument("RocksDB is not linked: '" + name +
                                 "' needs tiers_benchmark_rocksdb.");
#endif
}

Subject Benchmark::Make(const std::string& name) {
  Subject subject;
  subject.name = name;
  subject.prefetches = name.find("+prefetch") != std::string::npos;
  options_.name = name;
  if (name == "mapped") {
    subject.array = std::make_unique<MappedArray>(rows_, dim_, layout_.slots_per_row);
    Check(subject.array->Open(folder_));
    return subject;
  }
  if (name.rfind("rocksdb", 0) == 0) {
    Check(NewRocksdbTable(name, &subject.table));
    return subject;
  }
  StorageOptions storage;
  if (name.rfind("disk", 0) == 0) {
    storage.tiers.path = folder_;
    storage.tiers.name = name;
    storage.tiers.cache_bytes = cache_bytes_;
  } else if (name != "memory") {
    Refuse("there is no table '" + name + "'.");
  }
  MadeStore made;
  Check(NewStore(options_, storage, &made));
  subject.table = std::move(made.store);
  return subject;
}

void Benchmark::Step(Subject* subject, const std::vector<int64_t>& keys, size_t count) {
  if (subject->array != nullptr) {
    subject->array->Gather(context_, keys.data(), count, weights_.data());
    subject->array->Step(context_, keys.data(), count, rule_, gradients_.data());
    const auto begin = Clock::now();
    subject->array->KeepWithin(MappedBytes(), keys.data(), count);
    subject->dropping.push_back(Seconds(begin));
    return;
  }
  const KeyBatch batch{keys.data(), count, nullptr};
  Check(subject->table->Find(context_, batch, {}, weights_.data(), nullptr, {}));
  Check(subject->table->Apply(context_, batch, gradients_.data(), DataType::kFloat, rule_));
}

template <typename KeyOf>
void Benchmark::StepThrough(std::vector<Subject>* subjects, size_t count, const KeyOf& key_of) {
  for (size_t begin = 0; begin < count; begin += batch_) {
    const size_t size = std::min(batch_, count - begin);
    for (size_t i = 0; i < size; ++i) keys_[i] = static_cast<int64_t>(key_of(begin + i));
    BeginStep();
    for (Subject& subject : *subjects) Step(&subject, keys_, size);
  }
}

void Benchmark::Draw(double share, std::vector<int64_t>* keys) {
  const auto draw_some = [&](size_t range, size_t count, int64_t* to, const auto& key_of) {
    // Each from a slice of its own, so that no key comes twice.
    for (size_t i = 0; i < count; ++i) {
      const size_t low = range * i / count, high = range * (i + 1) / count;
      to[i] = static_cast<int64_t>(key_of(low + random_() % std::max<size_t>(1, high - low)));
    }
  };
  const size_t hot = static_cast<size_t>(static_cast<double>(batch_) * share);
  draw_some(hot_rows_, hot, keys->data(), [this](size_t i) { return KeyOfHot(i); });
  draw_some(rows_ - hot_rows_, batch_ - hot, keys->data() + hot,
            [this](size_t i) { return KeyOfCold(i); });
  std::shuffle(keys->begin(), keys->end(), random_);
}

// Brings up the rows of batches, some of them at once, ahead of the steps that use them.
class Prefetcher {
 public:
  Prefetcher(const Store& table, const ExecContext& context,
             const std::vector<std::vector<int64_t>>& batches)
      : table_(table), context_(context), batches_(batches), done_(batches.size(), false) {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Prefetcher() {
    for (std::thread& thread : threads_) thread.join();
  }

  // Waits until the rows of a batch are up. Batches are waited for in order.
  void Wait(size_t batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    used_ = batch;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_[batch]; });
  }

 private:
  static constexpr int kThreads = 2;
  static constexpr size_t kAhead = 2;

  void Run() {
    for (;;) {
      size_t batch;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (next_ == batches_.size()) return;
        batch = next_++;
        changed_.wait(lock, [&] { return batch <= used_ + kAhead; });
      }
      const std::vector<int64_t>& keys = batches_[batch];
      Check(table_.tiers()->Prefetch(context_, {keys.data(), keys.size(), nullptr}));
      const std::lock_guard<std::mutex> lock(mutex_);
      done_[batch] = true;
      changed_.notify_all();
    }
  }

  const Store& table_;
  const ExecContext context_;
  const std::vector<std::vector<int64_t>>& batches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  size_t used_ = 0;
  std::vector<bool> done_;
  std::vector<std::thread> threads_;
};

void Benchmark::StepsOf(Subject* subject, const std::vector<std::vector<int64_t>>& batches) {
  std::unique_ptr<Prefetcher> prefetcher;
  auto begin = Clock::now();
  if (subject->prefetches) {
    prefetcher = std::make_unique<Prefetcher>(*subject->table, context_, batches);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    if (prefetcher != nullptr) prefetcher->Wait(i);
    BeginStep();
    Step(subject, batches[i], batches[i].size());
    const auto end = Clock::now();
    subject->steps.push_back(std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
}

void Benchmark::MeasureShare(double share, std::vector<Subject>* subjects) {
  StepHot(subjects);  // these come up and stay
  for (Subject& subject : *subjects) {
    subject.steps.clear();
    subject.dropping.clear();
    if (subject.table != nullptr) subject.before = subject.table->Stats();
  }
  for (size_t turn = 0, step = 0; step < steps_; ++turn) {
    std::vector<std::vector<int64_t>> batches(std::min(kTurn, steps_ - step));
    for (std::vector<int64_t>& keys : batches) {
      keys.resize(batch_);
      Draw(share, &keys);
    }
    const Moment now = context_.now;
    const int64_t rule_step = rule_.step;
    for (size_t i = 0; i < subjects->size(); ++i) {
      context_.now = now;
      rule_.step = rule_step;
      StepsOf(&(*subjects)[(i + turn) % subjects->size()], batches);
    }
    step += batches.size();
    keys_ = batches.back();
  }
}

void Benchmark::CompareRows(std::vector<Subject>* subjects) {
  ExecContext reading = context_;
  reading.training = false;
  std::vector<float> expected;
  for (Subject& subject : *subjects) {
    if (subject.array != nullptr) {
      subject.array->Gather(context_, keys_.data(), batch_, weights_.data());
      subject.array->KeepWithin(MappedBytes(), keys_.data(), batch_);
    } else {
      Check(subject.table->Find(reading, {keys_.data(), batch_, nullptr}, {}, weights_.data(),
                                nullptr, {}));
    }
    if (expected.empty()) expected = weights_;
    if (weights_ != expected) Refuse("'" + subject.name + "' has other rows.");
  }
}

std::string Benchmark::Report(double share, const Subject& subject, const Subject& first) {
  const double median = Median(subject.steps);
  std::printf("%5.0f%%  %-16s %9.2f %9.2f %9.2fx", share * 100, subject.name.c_str(), median * 1e3,
              Longest(subject.steps) * 1e3, Median(first.steps) / median);
  std::string fields = "{" + Field("hits", share) + ", \"table\": \"" + subject.name +
                       "\", \"steps_ms\": " + Milliseconds(subject.steps);
  if (subject.array != nullptr) {
    std::printf("  of these %.2f ms to drop pages; %.0f MB resident of %.0f\n",
                Median(subject.dropping) * 1e3,
                static_cast<double>(subject.array->ResidentBytes()) / 1e6,
                static_cast<double>(subject.array->bytes()) / 1e6);
    return fields + ", \"dropping_ms\": " + Milliseconds(subject.dropping) + ", " +
           Field("resident_over_bound", static_cast<double>(subject.array->ResidentBytes()) /
                                            static_cast<double>(MappedBytes())) +
           "}";
  }
  const StoreStats stats = subject.table->Stats();
  const StoreStats& before = subject.before;
  const double sum = std::accumulate(subject.steps.begin(), subject.steps.end(), 0.0);
  const auto rate = [&](uint64_t StoreStats::*number) {
    return static_cast<double>(stats.*number - before.*number) / sum;
  };
  const double hits = rate(&StoreStats::cache_hits), misses = rate(&StoreStats::cache_misses);
  const double hit_rate = hits + misses == 0 ? 1.0 : hits / (hits + misses);
  const double reads = rate(&StoreStats::disk_read_requests);
  const double bytes_per_read = reads == 0 ? 0 : rate(&StoreStats::disk_read_bytes) / reads;
  std::printf(" %9.4f %10.0f %10.0f %10.1f\n", hit_rate, rate(&StoreStats::promoted), reads,
              rate(&StoreStats::disk_written_bytes) / 1e6);
  return fields + ", " + Field("hit_rate", hit_rate) + ", " +
         Field("rows_up_per_second", rate(&StoreStats::promoted)) + ", " +
         Field("reads_per_second", reads) + ", " + Field("bytes_per_read", bytes_per_read) + ", " +
         Field("queue_depth", stats.disk_queue_depth) + "}";
}

std::string Benchmark::MeasureSteps(const std::string& tables, const std::string& hits) {
  std::vector<Subject> subjects;
  std::istringstream names(tables);
  for (std::string name; std::getline(names, name, ',');) subjects.push_back(Make(name));
  if (subjects.empty() || steps_ == 0) Refuse("steps of which tables?");
  StepAll(&subjects);
  std::printf("%6s  %-16s %9s %9s %10s %9s %10s %10s %10s\n", "hits", "table", "ms/step", "worst",
              "of first", "hit rate", "rows up/s", "reads/s", "MB/s down");
  std::string cells;
  std::istringstream shares(hits);
  for (std::string text; std::getline(shares, text, ',');) {
    const double share = std::atof(text.c_str());
    if (share < 0 || share > 1) Refuse("a share of hits is from 0 to 1.");
    MeasureShare(share, &subjects);
    CompareRows(&subjects);
    for (const Subject& subject : subjects) {
      cells += (cells.empty() ? "" : ", ") + Report(share, subject, subjects[0]);
      std::fflush(stdout);
    }
  }
  return Field("row_bytes", layout_.stride + sizeof(int64_t)) + ", \"cells\": [" + cells + "]";
}

std::string Benchmark::MeasureResident() {
  const size_t before = ResidentBytes();
  std::vector<Subject> subjects;
  subjects.push_back(Make("disk"));
  StepAll(&subjects);
  MeasureShare(0.9, &subjects);
  const size_t resident = ResidentBytes() - before;
  const StoreStats stats = subjects[0].table->Stats();
  const double planned = static_cast<double>(cache_bytes_ + stats.index_bytes);
  const double over = static_cast<double>(resident) / planned;
  std::printf("resident %.1f MB, bound %.1f MB and index %.1f MB: %.3f\n",
              static_cast<double>(resident) / 1e6, static_cast<double>(cache_bytes_) / 1e6,
              static_cast<double>(stats.index_bytes) / 1e6, over);
  return Field("resident_bytes", resident) + ", " + Field("cache_bytes", cache_bytes_) + ", " +
         Field("index_bytes", stats.index_bytes) + ", " + Field("over", over);
}

std::string Benchmark::MeasureOverwrites() {
  std::vector<Subject> subjects;
  subjects.push_back(Make("disk"));
  Store* const table = subjects[0].table.get();
  StepAll(&subjects);
  std::vector<int64_t> order(rows_);
  std::iota(order.begin(), order.end(), int64_t{0});
  const std::vector<float> slots(batch_ * layout_.slots_per_row, 0.5f);
  const SlotsIn slots_in{&rule_.slots, slots.data()};
  double most_over_live = 0;
  std::vector<double> steps;
  // The first round leaves the rows in random order on disk, and is not counted in times.
  for (size_t round = 0; round <= steps_; ++round) {
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t begin = 0; begin + batch_ <= rows_; begin += batch_) {
      BeginStep();
      const KeyBatch batch{order.data() + begin, batch_, nullptr};
      const auto start = Clock::now();
      Check(table->InsertOrAssign(context_, batch, weights_.data(), slots_in));
      if (round > 0) steps.push_back(Seconds(start));
      const StoreStats stats = table->Stats();
      most_over_live = std::max(most_over_live, static_cast<double>(stats.disk_bytes) /
                                                    static_cast<double>(stats.disk_live_bytes));
    }
  }
  const StoreStats stats = table->Stats();
  const double median = Median(steps), longest = Longest(steps);
  std::sort(steps.begin(), steps.end());
  const double last_percent = steps[steps.size() * 99 / 100];
  std::printf(
      "%zu rounds: disk at most %.2f x live; a step %.2f ms, 99%% within %.2f, worst %.2f\n",
      steps_, most_over_live, median * 1e3, last_percent * 1e3, longest * 1e3);
  std::printf("%.0f MB written, compaction read and wrote %.0f MB\n",
              static_cast<double>(stats.disk_written_bytes) / 1e6,
              static_cast<double>(stats.disk_compacted_bytes) / 1e6);
  return Field("rounds", steps_) + ", " + Field("disk_over_live", most_over_live) + ", " +
         Field("median_ms", median * 1e3) + ", " + Field("ms_99", last_percent * 1e3) + ", " +
         Field("worst_ms", longest * 1e3) + ", " +
         Field("compacted_bytes", stats.disk_compacted_bytes);
}

int Main(int argc, char** argv) {
  bool json = false;
  std::string folder, measure = "steps", tables = "memory,disk,disk+prefetch";
  std::string hits = "1,0.99,0.95,0.9,0.5", hot = "apart";
  std::vector<double> numbers = {1e6, 64, 65536, 2, 20};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&](const std::string& name, std::string* to) {
      if (argument.rfind(name, 0) != 0) return false;
      *to = argument.substr(name.size());
      return true;
    };
    if (value("--folder=", &folder) || value("--measure=", &measure) ||
        value("--tables=", &tables) || value("--hits=", &hits) || value("--hot=", &hot)) {
      continue;
    }
    if (argument == "--json") {
      json = true;
    } else if (argument.rfind("--", 0) == 0 || given == numbers.size()) {
      Refuse("unknown argument " + argument + ".");
    } else {
      numbers[given++] = std::atof(argv[i]);
    }
  }
  if (folder.empty()) Refuse("say --folder=, where the rows on disk may be.");
  if (hot != "apart" && hot != "together") Refuse("--hot= is apart or together.");
  Benchmark benchmark(folder, hot == "together", numbers);
  std::string fields;
  if (measure == "steps") {
    fields = benchmark.MeasureSteps(tables, hits);
  } else if (measure == "resident") {
    fields = benchmark.MeasureResident();
  } else if (measure == "overwrites") {
    fields = benchmark.MeasureOverwrites();
  } else {
    Refuse("there is no measure '" + measure + "'.");
  }
  if (json) std::printf("{%s}\n", fields.c_str());
  return 0;
}

}  // namespace
}  // namespace tf_embed

int main(int argc, char** argv) { return tf_embed::Main(argc, argv); }
