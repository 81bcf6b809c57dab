// SPDX-License-Identifier: Apache-2.0
// How fast a DeviceStore is, key by key and in a step of training.
//
//     device_store_benchmark [--only=hkv|dynamicemb] [--keys=N] [--capacity=N] [--dims=8,32,...]
//                            [--loads=0.5,0.75,1] [--rounds=N] [--ids=N] [--streams=N]
//                            [--max_row_bytes=N]
//
// The first part follows the method of HierarchicalKV's benchmark: a table with room for `capacity`
// rows holds a share of them (the load), 2^20 distinct keys an operation, of which 0.6 are present
// in lookups and all in training. Here present keys are drawn from the whole table, in
// HierarchicalKV's own from the latest inserts. The best of the rounds counts, as there. Built with
// -DTF_EMBED_HKV and the folder of HierarchicalKV's headers (make cuda-benchmark HKV_DIR=checkout),
// its table takes the same keys in turn.
//
// A full table of ours grows, while HierarchicalKV's evicts. So at load 1, inserts are timed after
// the growth, and insert_and_evict is an insert_or_assign on a table that is bounded to `capacity`
// rows, least recently used first.
//
// Rows that are more than `max_row_bytes` bytes of a table, 0 for all, are in pinned memory of the
// host, HierarchicalKV's (its max_hbm_for_vectors) as well.
//
// The second part has DynamicEmb's shape: 10 tables of dim 128, Adam, 104,857 ids a table by a
// power law of 1.05 over 1,677,721 keys. Forward looks all ids up and inserts those that are
// absent; backward sums their gradients by key and steps. The median of the rounds counts.
//
// Beside it the same batches in arrays of fixed ids (static_array.h): `step / static array's` is
// the quotient of both medians. Tables, and arrays, have streams of their own, which a pass forks
// from one stream and joins again; with --streams=1 they take turns on one.
//
// `of copy`: the bytes that the operation has to move at least (keys; reads and writes of each row;
// rows and gradients of the caller), by time, over the rate of a copy on the device, which reads
// and writes each byte and is measured first. `with index`: the same and a line of 128 bytes for
// each key, the least that a lookup reads.
//
// Our index has up to twice the places that a load says, as it doubles. `find, index 3/4 full` is a
// find when the index is as full as it gets.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>

#include "benchmarks/device_machine.h"
#include "benchmarks/rule.h"
#include "benchmarks/static_array.h"

#if defined(TF_EMBED_HKV)
#include "benchmarks/hkv_table.h"
#endif

namespace tf_embed {
namespace {

using Random = std::mt19937_64;

struct Settings {
  std::string only;
  size_t keys = Machine::kGpu ? 1 << 20 : 1 << 12;
  size_t capacity = 0;  // 0: by dim
  std::vector<double> dims = {8, 32, 64, 128};
  std::vector<double> loads = {0.5, 0.75, 1.0};
  size_t rounds = Machine::kGpu ? 10 : 2;
  size_t tables = 10;
  size_t streams = 10;
  size_t ids = Machine::kGpu ? 104857 : 1000;  // a table
  size_t range = Machine::kGpu ? 1677721 : 16000;
  DeviceOptions device;
};

double copy_rate = 0;  // bytes a second, read and written

void MeasureCopy() {
  const size_t bytes = Machine::kGpu ? size_t{1} << 30 : size_t{1} << 24;
  MachineArray<char> from(bytes), to(bytes);
  double best = 1e9;
  for (int round = 0; round < 10; ++round) {
    best = std::min(best, SecondsOf([&] { Machine::CopyWithin(from.data(), bytes, to.data()); }));
  }
  copy_rate = 2.0 * static_cast<double>(bytes) / best;
  std::printf("copy on the device: %.1f GB/s read and written\n", copy_rate / 1e9);
}

void Report(const char* who, size_t dim, double load, const char* what, size_t keys, double bytes,
            double seconds) {
  constexpr double kLine = 128;
  const double lines = kLine * static_cast<double>(keys);
  std::printf("| %-8s | %4zu | %4.2f | %-26s | %9.3f | %9.4f | %5.1f%% | %9.1f%% |\n", who, dim,
              load, what, 1e3 * seconds, static_cast<double>(keys) / seconds / 1e9,
              100.0 * bytes / seconds / copy_rate, 100.0 * (bytes + lines) / seconds / copy_rate);
  std::fflush(stdout);
}

// The i-th key: no order, and none twice.
int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * 0x9e3779b97f4a7c15u); }

// ---- By operation ----

// The keys of an operation: `present` of the first `rows` keys, each once, the others new.
std::vector<int64_t> KeysOf(size_t size, double present, uint64_t rows, uint64_t* next_new,
                            Random* random) {
  const size_t there = static_cast<size_t>(present * static_cast<double>(size));
  std::vector<int64_t> keys;
  // One of each of as many equal parts of the table.
  const double part = static_cast<double>(rows) / static_cast<double>(std::max<size_t>(1, there));
  std::uniform_real_distribution<double> within(0.0, 1.0);
  for (size_t i = 0; i < there; ++i) {
    const double begin = std::floor(part * static_cast<double>(i));
    const double end = std::floor(part * static_cast<double>(i + 1));
    keys.push_back(
        KeyOf(static_cast<uint64_t>(begin + std::floor(within(*random) * (end - begin)))));
  }
  while (keys.size() < size) keys.push_back(KeyOf((*next_new)++));
  std::shuffle(keys.begin(), keys.end(), *random);
  return keys;
}

struct Shape {
  size_t dim;
  double load;
  size_t capacity;
  uint64_t rows() const { return static_cast<uint64_t>(load * static_cast<double>(capacity)); }
};

// Puts the first keys into a table by `insert`.
void FillTable(uint64_t rows, size_t part, MachineArray<int64_t>* keys,
               const std::function<void(size_t count)>& insert) {
  std::vector<int64_t> host;
  for (uint64_t first = 0; first < rows; first += part) {
    host.clear();
    for (uint64_t i = first; i < std::min<uint64_t>(rows, first + part); ++i) {
      host.push_back(KeyOf(i));
    }
    keys->Write(host);
    insert(host.size());
    Machine::Wait();
  }
}

// Times one operation on fresh keys each round.
double Best(const Settings& settings, const Shape& shape, double present, uint64_t* next_new,
            Random* random, MachineArray<int64_t>* keys, const std::function<void()>& run,
            const std::function<void()>& undo) {
  double best = 1e9;
  for (size_t round = 0; round <= settings.rounds; ++round) {
    keys->Write(KeysOf(settings.keys, present, shape.rows(), next_new, random));
    const double seconds = SecondsOf(run);
    if (round > 0) best = std::min(best, seconds);  // the first one warms up
    undo();
  }
  return best;
}

void RunOurs(const Settings& settings, const Shape& shape) {
  const size_t n = settings.keys, dim = shape.dim;
  const double row = static_cast<double>(dim * sizeof(float));
  const double key = sizeof(int64_t);
  ExecContext context = Machine::Context();
  Random random(1);
  MachineArray<int64_t> keys(n);
  MachineArray<float> rows(n * dim);
  MachineArray<uint8_t> flags(n);
  bool* const exists = reinterpret_cast<bool*>(flags.data());
  KeyBatch batch;
  batch.keys = keys.data();
  batch.size = n;
  batch.distinct = true;
  uint64_t next_new = shape.capacity;

  StoreOptions options;
  options.dim = dim;
  // Room for the keys of a round, so that no growth is timed.
  options.init_size = shape.capacity + n;
  std::unique_ptr<Store> table;
  Check(Machine::NewStore(options, settings.device, &table));
  const auto fill = [&](Store* into) {
    FillTable(shape.rows(), n, &keys, [&](size_t count) {
      KeyBatch part = batch;
      part.size = count;
      Check(into->InsertOrAssign(context, part, rows.data(), {}));
    });
  };
  fill(table.get());
  const auto nothing = [] {};
  const auto report = [&](const char* what, double present, double bytes,
                          const std::function<void()>& run, const std::function<void()>& undo) {
    const double seconds = Best(settings, shape, present, &next_new, &random, &keys, run, undo);
    Report("tf_embed", dim, shape.load, what, n, static_cast<double>(n) * bytes, seconds);
  };
  report(
      "contains", 0.6, key, [&] { Check(table->Contains(context, batch, exists)); }, nothing);
  report(
      "find", 0.6, key + 1.6 * row,
      [&] { Check(table->Find(context, batch, DefaultRows(), rows.data(), exists, {})); }, nothing);
  MachineArray<const void*> pointers(n);
  report(
      "find, pointers", 0.6, key + sizeof(void*),
      [&] {
        Check(static_cast<DeviceStore&>(*table).FindPointers(context, batch, pointers.data()));
      },
      nothing);
  report(
      "insert_or_assign, present", 1.0, key + 2 * row,
      [&] { Check(table->InsertOrAssign(context, batch, rows.data(), {})); }, nothing);
  for (const RuleKind kind : {RuleKind::kSgd, RuleKind::kRowwiseAdagrad, RuleKind::kAdam}) {
    const Rule rule = RuleOf(kind, dim);
    const char* const name = kind == RuleKind::kSgd    ? "apply SGD"
                             : kind == RuleKind::kAdam ? "apply Adam"
                                                       : "apply row-wise Adagrad";
    Check(table->maintenance()->SetRule(rule.slots));
    const double slots = static_cast<double>(rule.slots.slots_per_row() * sizeof(float));
    report(
        name, 1.0, key + 3 * row + 2 * slots,
        [&] { Check(table->Apply(context, batch, rows.data(), DataType::kFloat, rule)); }, nothing);
  }
  Check(table->maintenance()->SetRule(RuleSlots()));
  // The keys that came in a round leave after it.
  const auto leave = [&] {
    std::vector<int64_t> last;
    for (uint64_t i = next_new - std::min<uint64_t>(next_new, n); i < next_new; ++i) {
      if (i >= shape.capacity) last.push_back(KeyOf(i));
    }
    keys.Write(last);
    KeyBatch part = batch;
    part.size = last.size();
    Check(table->Erase(context, part));
  };
  report(
      "insert_or_assign", 0.6, key + 2 * row,
      [&] { Check(table->InsertOrAssign(context, batch, rows.data(), {})); }, leave);
  report(
      "find_or_insert", 0.6, key + 2 * row,
      [&] { Check(table->FindOrInsert(context, batch, DefaultRows(), rows.data(), exists)); },
      leave);
  table.reset();

  options.init_size = shape.capacity;
  options.policy.max_rows = shape.capacity;
  options.policy.eviction = EvictionOrder::kLru;
  const Status bounded = Machine::NewStore(options, settings.device, &table);
  if (!bounded.ok()) {
    std::printf("| tf_embed | %4zu | %4.2f | insert_and_evict: %s |\n", dim, shape.load,
                bounded.message().c_str());
    return;
  }
  fill(table.get());
  // Rows that the present step uses stay, so each round is a step of its own.
  const auto next_step = [&] { ++context.now.step; };
  next_step();
  report(
      "insert_and_evict", 0.6, key + 2 * row,
      [&] { Check(table->InsertOrAssign(context, batch, rows.data(), {})); }, next_step);
  const uint64_t refused = table->Stats().refused;
  if (refused > 0) std::printf("refused: %.0f of these\n", static_cast<double>(refused));
}

// The most rows, up to `capacity`, for which the index is as full as it gets.
size_t RowsOfFullIndex(size_t capacity) {
  constexpr double kRowsOfBucket = 0.75 * 7;
  double buckets = 2;
  while (2 * buckets * kRowsOfBucket <= static_cast<double>(capacity)) buckets *= 2;
  return static_cast<size_t>(buckets * kRowsOfBucket);
}

void RunFullIndex(const Settings& settings, const Shape& shape) {
  const size_t n = settings.keys;
  const double row = static_cast<double>(shape.dim * sizeof(float));
  const ExecContext context = Machine::Context();
  Random random(1);
  MachineArray<int64_t> keys(n);
  MachineArray<float> rows(n * shape.dim);
  KeyBatch batch;
  batch.keys = keys.data();
  batch.distinct = true;
  uint64_t next_new = shape.capacity;
  StoreOptions options;
  options.dim = shape.dim;
  options.init_size = shape.capacity;
  std::unique_ptr<Store> table;
  Check(Machine::NewStore(options, settings.device, &table));
  FillTable(shape.rows(), n, &keys, [&](size_t count) {
    batch.size = count;
    Check(table->InsertOrAssign(context, batch, rows.data(), {}));
  });
  batch.size = n;
  const double seconds = Best(
      settings, shape, 0.6, &next_new, &random, &keys,
      [&] { Check(table->Find(context, batch, DefaultRows(), rows.data(), nullptr, {})); }, [] {});
  const StoreStats stats = table->Stats();
  Report("tf_embed", shape.dim, shape.load, "find, index 3/4 full", n,
         static_cast<double>(n) * (sizeof(int64_t) + 1.6 * row), seconds);
  if (4 * stats.rows < 3 * stats.index_places - stats.index_places / 100) {
    std::printf("the index is less full: %.0f of %.0f places\n", static_cast<double>(stats.rows),
                static_cast<double>(stats.index_places));
  }
}

#if defined(TF_EMBED_HKV)

void RunHkv(const Settings& settings, const Shape& shape) {
  const size_t n = settings.keys, dim = shape.dim;
  const double row = static_cast<double>(dim * sizeof(float));
  const double key = sizeof(int64_t);
  Random random(1);
  HkvTable table(shape.capacity, dim, settings.device.max_row_bytes);
  MachineArray<int64_t> keys(n), evicted_keys(n);
  MachineArray<uint64_t> evicted_scores(n);
  MachineArray<float> rows(n * dim), evicted_rows(n * dim);
  MachineArray<float*> pointers(n);
  MachineArray<uint8_t> flags(n);
  bool* const exists = reinterpret_cast<bool*>(flags.data());
  uint64_t next_new = shape.capacity;
  FillTable(shape.rows(), n, &keys,
            [&](size_t count) { table.InsertOrAssign(count, keys.data(), rows.data()); });
  const auto report = [&](const char* what, double present, double bytes,
                          const std::function<void()>& run) {
    const double seconds = Best(settings, shape, present, &next_new, &random, &keys, run, [] {});
    Report("HKV", dim, shape.load, what, n, static_cast<double>(n) * bytes, seconds);
  };
  report("contains", 0.6, key, [&] { table.Contains(n, keys.data(), exists); });
  report("find", 0.6, key + 1.6 * row, [&] { table.Find(n, keys.data(), rows.data(), exists); });
  report("find, pointers", 0.6, key + sizeof(float*),
         [&] { table.FindPointers(n, keys.data(), pointers.data(), exists); });
  report("insert_or_assign, present", 1.0, key + 2 * row,
         [&] { table.InsertOrAssign(n, keys.data(), rows.data()); });
  report("insert_or_assign", 0.6, key + 2 * row,
         [&] { table.InsertOrAssign(n, keys.data(), rows.data()); });
  report("find_or_insert", 0.6, key + 2 * row,
         [&] { table.FindOrInsert(n, keys.data(), rows.data()); });
  report("insert_and_evict", 0.6, key + 2 * row, [&] {
    table.InsertAndEvict(n, keys.data(), rows.data(), evicted_keys.data(), evicted_rows.data(),
                         evicted_scores.data());
  });
}

#endif

// HierarchicalKV's capacities; for dim 128 one that leaves room for Adam's slots.
size_t CapacityOf(const Settings& settings, size_t dim) {
  if (settings.capacity > 0) return settings.capacity;
  if (!Machine::kGpu) return 1 << 14;
  return dim <= 32 ? size_t{128} << 20 : dim <= 64 ? size_t{64} << 20 : size_t{32} << 20;
}

void RunOperations(const Settings& settings) {
  std::printf("\n%zu keys an operation\n", settings.keys);
  std::printf(
      "| table    |  dim | load | operation                  |        ms |  G keys/s | of copy "
      "| with index |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const double given : settings.dims) {
    const size_t dim = static_cast<size_t>(given);
    const size_t capacity = CapacityOf(settings, dim);
    for (const double load : settings.loads) {
      const Shape shape{dim, load, capacity};
      RunOurs(settings, shape);
#if defined(TF_EMBED_HKV)
      RunHkv(settings, shape);
#endif
    }
    RunFullIndex(settings, {dim, 1.0, RowsOfFullIndex(capacity)});
  }
}

// ---- A step of many tables ----

// Ids from 1 to `range`, the k-th with a chance about proportional to k^-alpha.
std::vector<int64_t> PowerLaw(size_t count, size_t range, double alpha, Random* random) {
  const double gamma = 1.0 - alpha;
  const double most = std::pow(static_cast<double>(range) + 1.0, gamma);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < count; ++i) {
    const double x = std::pow(uniform(*random) * (most - 1.0) + 1.0, 1.0 / gamma);
    ids.push_back(std::min<int64_t>(static_cast<int64_t>(range), static_cast<int64_t>(x)));
  }
  return ids;
}

size_t Unique(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return static_cast<size_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void RunSteps(const Settings& settings) {
  constexpr size_t kDim = 128;
  constexpr double kAlpha = 1.05;
  const size_t n = settings.ids, count = settings.tables;
  ExecContext context = Machine::Context();
  context.training = true;
  Random random(2);
  // Arrays take as much as the rows of the tables, less than half of the limit of the tables.
  const bool has_arrays =
      3 * count * settings.range * 3 * kDim * sizeof(float) < Machine::FreeBytes();
  std::vector<std::unique_ptr<Store>> tables(count);
  for (size_t t = 0; t < count; ++t) {
    StoreOptions options;
    options.name = "table " + std::to_string(t);
    options.dim = kDim;
    options.init_size = settings.range;
    options.initializer.kind = InitializerKind::kUniform;
    options.initializer.a = -0.01;
    options.initializer.b = 0.01;
    options.initializer.table_id = t;
    Check(Machine::NewStore(options, settings.device, &tables[t]));
  }
  std::vector<std::unique_ptr<StaticArray>> arrays(count);
  if (has_arrays) {
    for (auto& array : arrays) array = std::make_unique<StaticArray>(settings.range + 1, kDim, n);
  }
  MachineArray<int64_t> keys(count * n), ids_of_arrays(count * n);
  MachineArray<float> rows(count * n * kDim), gradients(count * n * kDim);
  std::vector<int64_t> host, host_ids;
  const auto batch_of = [&](size_t t) {
    KeyBatch batch;
    batch.keys = keys.data() + t * n;
    batch.size = n;
    return batch;
  };
  Rule rule = RuleOf(RuleKind::kAdam, kDim);
  const Machine::Side side(settings.streams);
  // Calls pass(t, context) for each table, with a stream of `side`.
  const auto for_each_table = [&](const auto& pass) {
    side.Fork();
    for (size_t t = 0; t < count; ++t) {
      ExecContext own = context;
      own.stream = side.stream(t % settings.streams);
      pass(t, own);
    }
    side.Join();
  };
  const auto forward = [&] {
    for_each_table([&](size_t t, const ExecContext& own) {
      Check(tables[t]->FindOrInsert(own, batch_of(t), DefaultRows(), rows.data() + t * n * kDim,
                                    nullptr));
    });
  };
  const auto evaluate = [&] {
    for_each_table([&](size_t t, const ExecContext& own) {
      Check(tables[t]->Find(own, batch_of(t), DefaultRows(), rows.data() + t * n * kDim, nullptr,
                            {}));
    });
  };
  const auto backward = [&] {
    for_each_table([&](size_t t, const ExecContext& own) {
      Check(tables[t]->Apply(own, batch_of(t), gradients.data() + t * n * kDim, DataType::kFloat,
                             rule));
    });
  };
  const auto static_forward = [&] {
    for_each_table([&](size_t t, const ExecContext&) {
      arrays[t]->Gather(ids_of_arrays.data() + t * n, rows.data() + t * n * kDim,
                        side.stream(t % settings.streams));
    });
  };
  const auto static_backward = [&] {
    for_each_table([&](size_t t, const ExecContext&) {
      arrays[t]->Step(ids_of_arrays.data() + t * n, gradients.data() + t * n * kDim, rule,
                      side.stream(t % settings.streams));
    });
  };
  std::vector<double> forwards, backwards, steps, evaluations;
  std::vector<double> static_forwards, static_backwards, static_steps;
  size_t unique = 0;
  const size_t rounds = settings.rounds + 5;
  for (size_t round = 0; round < rounds; ++round) {
    host.clear();
    host_ids.clear();
    unique = 0;
    for (size_t t = 0; t < count; ++t) {
      std::vector<int64_t> ids = PowerLaw(n, settings.range, kAlpha, &random);
      unique += Unique(ids);
      for (const int64_t id : ids) host.push_back(KeyOf(static_cast<uint64_t>(id)));
      host_ids.insert(host_ids.end(), ids.begin(), ids.end());
    }
    keys.Write(host);
    ids_of_arrays.Write(host_ids);
    context.now.step = static_cast<uint64_t>(++rule.step);
    if (round % 2 == 0) {
      const double of_forward = SecondsOf(forward), of_backward = SecondsOf(backward);
      if (round < 4) continue;  // most rows come at first
      forwards.push_back(of_forward);
      backwards.push_back(of_backward);
      if (!has_arrays) continue;
      static_forwards.push_back(SecondsOf(static_forward));
      static_backwards.push_back(SecondsOf(static_backward));
    } else {
      const double of_step = SecondsOf([&] {
        forward();
        backward();
      });
      const double of_evaluation = SecondsOf(evaluate);
      if (round < 4) continue;
      steps.push_back(of_step);
      if (has_arrays) {
        static_steps.push_back(SecondsOf([&] {
          static_forward();
          static_backward();
        }));
      }
      evaluations.push_back(of_evaluation);
    }
  }
  const double ids = static_cast<double>(count * n), row = kDim * sizeof(float);
  const double distinct = static_cast<double>(unique);
  std::printf("\n%zu tables of dim %zu, Adam: %.0f ids, %zu of them distinct\n", count, kDim, ids,
              unique);
  std::printf("| part | ms | M ids/s | of copy |\n|---|---|---|---|\n");
  const auto report = [&](const char* what, const std::vector<double>& times, double bytes) {
    const double seconds = Median(times);
    std::printf("| %-15s | %8.3f | %8.1f | %5.1f%% |\n", what, 1e3 * seconds, ids / seconds / 1e6,
                100.0 * bytes / seconds / copy_rate);
  };
  const double of_find = ids * (sizeof(int64_t) + row) + distinct * row;
  const double of_apply = ids * (sizeof(int64_t) + row) + distinct * 6 * row;
  report("forward", forwards, of_find);
  report("backward", backwards, of_apply);
  report("step", steps, of_find + of_apply);
  report("evaluate", evaluations, of_find);
  if (!has_arrays) {
    std::printf("no memory for arrays of fixed ids beside the tables\n");
    return;
  }
  report("static forward", static_forwards, of_find);
  report("static backward", static_backwards, of_apply);
  report("static step", static_steps, of_find + of_apply);
  std::printf("step / static array's: %.2f\n", Median(steps) / Median(static_steps));
}

std::vector<double> Numbers(const std::string& text) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    numbers.push_back(std::stod(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

bool Read(const std::string& argument, Settings* settings) {
  const size_t at = argument.find('=');
  if (at == std::string::npos) return false;
  const std::string name = argument.substr(0, at), value = argument.substr(at + 1);
  if (name == "--only") return settings->only = value, value == "hkv" || value == "dynamicemb";
  const std::vector<double> numbers = Numbers(value);
  if (numbers.empty()) return false;
  const size_t number = static_cast<size_t>(numbers[0]);
  if (name == "--keys") return settings->keys = number, number > 0;
  if (name == "--capacity") return settings->capacity = number, number > 0;
  if (name == "--rounds") return settings->rounds = number, number > 0;
  if (name == "--streams") return settings->streams = number, number > 0;
  if (name == "--ids") return settings->ids = number, number > 0;
  if (name == "--max_row_bytes") {
    settings->device.max_row_bytes = number;
    settings->device.max_host_bytes = UINT64_MAX;
    return true;
  }
  if (name == "--dims") return settings->dims = numbers, true;
  if (name == "--loads") return settings->loads = numbers, true;
  return false;
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    if (Read(argv[i], &settings)) continue;
    std::fprintf(stderr, "unknown argument %s; device_store_benchmark.cu names them\n", argv[i]);
    return 2;
  }
  if (!Machine::IsHere()) {
    std::printf("skipped: there is no GPU here that CUDA can use\n");
    return 77;
  }
  std::printf("%s, %.1f GB free\n", Machine::Name().c_str(),
              static_cast<double>(Machine::FreeBytes()) / 1e9);
  MeasureCopy();
  if (settings.only != "dynamicemb") RunOperations(settings);
  if (settings.only != "hkv") RunSteps(settings);
  return 0;
}

}  // namespace
}  // namespace tf_embed

int main(int argc, char** argv) { return tf_embed::Main(argc, argv); }
