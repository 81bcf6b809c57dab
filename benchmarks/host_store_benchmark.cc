// SPDX-License-Identifier: Apache-2.0
// Times the verbs of HostStore beside two floors, in turn, each on fresh batches of its own:
//   gather          the same rows copied from an array by known numbers
//   gather + line   the same, but each number is read from a random cache line of an index, by the
//                   hash of the key: the least work of any hash table
//
//     host_store_benchmark [--json] [--set plain|avx2|avx512] [keys] [dim] [batch] [threads]
//
// Default: 1000000 64 65536 2. With --json the last line is one JSON object of the medians and of
// lookup_share_of_floor, the median of each round's (gather + line) / find.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/pool.h"
#include "benchmarks/rule.h"
#include "cc/core/base/hash.h"
#include "cc/core/rows/row_copy.h"
#include "cc/stores/host/host_store.h"

namespace tf_embed {
namespace {

constexpr int kRounds = 15;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory on huge pages, as the table's.
template <typename T>
struct Array {
  explicit Array(size_t size) : buffer(HostAllocator()) {
    Check(buffer.Resize(size));
    std::memset(static_cast<void*>(buffer.data()), 0, size * sizeof(T));
  }
  T& operator[](size_t i) { return buffer[i]; }
  T* data() { return buffer.data(); }
  Buffer<T> buffer;
};

// Numbers from 0 to n - 1: uniform, or by Zipf's law (the inverse of its integral, shuffled by a
// hash), as the tables of a recommender are asked; with an exponent below 0 all of them, far
// from each other, before one comes again.
class Draw {
 public:
  Draw(size_t n, double exponent)
      : n_(n), exponent_(exponent), stride_(static_cast<uint64_t>(0.618 * static_cast<double>(n))) {
    while (std::gcd(stride_, n_) != 1) ++stride_;
  }
  uint64_t operator()() {
    if (exponent_ == 0.0) return random_() % n_;
    if (exponent_ < 0.0) return last_ = (last_ + stride_) % n_;
    const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
    const double rest = 1.0 - exponent_;
    const double most = std::pow(static_cast<double>(n_), rest) - 1.0;
    const double rank = std::pow(u * most + 1.0, 1.0 / rest);
    return Mix64(static_cast<uint64_t>(rank)) % n_;
  }

 private:
  size_t n_;
  double exponent_;
  uint64_t stride_;
  uint64_t last_ = 0;
  std::mt19937_64 random_{1};
};

struct alignas(64) Line {
  uint32_t row_ids[16];
};

struct Bench {
  size_t keys, dim, batch;
  ExecContext context;
  std::map<std::string, double> results;
  std::vector<int64_t> ids = std::vector<int64_t>(batch);
  std::vector<uint64_t> numbers = std::vector<uint64_t>(batch);
  Array<float> rows{batch * dim};

  // Keys are spread over all integers: key i is i times an odd number.
  static int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * kGolden64); }
  KeyBatch Ids() const { return KeyBatch{ids.data(), batch, nullptr}; }

  // Runs every work once a round, the order turning from round to round; prints medians in
  // nanoseconds a key.
  struct Work {
    std::string name;
    std::function<void()> run;
  };
  std::map<std::string, std::vector<double>> Rounds(const std::string& title, Draw* draw,
                                                    const std::vector<Work>& works) {
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < kRounds; ++round) {
      for (size_t i = 0; i < works.size(); ++i) {
        const Work& work = works[(i + static_cast<size_t>(round + 1)) % works.size()];
        // A batch of its own for each: one that another has just read would be in the caches.
        for (uint64_t& number : numbers) number = (*draw)();
        for (size_t j = 0; j < batch; ++j) ids[j] = KeyOf(numbers[j]);
        const double ns = Seconds(work.run) * 1e9 / static_cast<double>(batch);
        if (round >= 0) times[work.name].push_back(ns);
      }
    }
    for (const Work& work : works) {
      const double median = Median(times[work.name]);
      results[title + ", " + work.name] = median;
      std::printf("%-10s %-28s %8.1f ns/key\n", title.c_str(), work.name.c_str(), median);
    }
    return times;
  }
};

int Main(int argc, char** argv) {
  bool json = false;
  InstructionSet set = BestInstructionSet();
  std::vector<size_t> numbers = {1000000, 64, 65536, 2};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--set" && i + 1 < argc) {
      const std::string name = argv[++i];
      set = name == "plain"  ? InstructionSet::kPlain
            : name == "avx2" ? InstructionSet::kAvx2
                             : InstructionSet::kAvx512;
    } else if (given < numbers.size()) {
      numbers[given++] = static_cast<size_t>(std::atoll(argument.c_str()));
    }
  }
  Pool pool(numbers[3]);
  Bench bench{numbers[0], numbers[1], numbers[2], pool.Context(), {}};
  const size_t keys = bench.keys, dim = bench.dim;
  std::printf("%zu keys, dim %zu, batches of %zu, %zu threads, %s, medians of %d\n", keys, dim,
              bench.batch, numbers[3], NameOf(set), kRounds);

  StoreOptions options;
  options.dim = dim;
  options.initializer = {InitializerKind::kUniform, -0.05, 0.05, {}, 1, 2};
  options.instruction_set = set;
  const std::unique_ptr<HostStore> table = HostStore::Create(options);
  for (size_t first = 0; first < keys; first += bench.batch) {
    const size_t count = std::min(bench.batch, keys - first);
    for (size_t i = 0; i < count; ++i) bench.ids[i] = Bench::KeyOf(first + i);
    Check(table->InsertOrAssign(bench.context, KeyBatch{bench.ids.data(), count, nullptr},
                                bench.rows.data(), {}));
  }

  {
    Array<float> array(keys * dim);
    const size_t num_lines = keys / 4 + 1;  // an index at a load of 0.8
    Array<Line> lines(num_lines);
    for (uint64_t i = 0; i < keys; ++i) {
      Line& line = lines[Mix64(i) % num_lines];
      line.row_ids[i % 16] = static_cast<uint32_t>(i);
    }
    const auto gather = [&](size_t begin, size_t end) {
      constexpr size_t kAhead = 12;
      for (size_t i = begin; i < end; ++i) {
        if (i + kAhead < end) {
          PrefetchRow<false>(reinterpret_cast<char*>(&array[bench.numbers[i + kAhead] * dim]),
                             dim * sizeof(float));
        }
        std::memcpy(&bench.rows[i * dim], &array[bench.numbers[i] * dim], dim * sizeof(float));
      }
    };
    // The line is asked for first; the number that it holds is replaced by the one that is known,
    // so that rows are the same and the line's is a true dependency all the same.
    const auto gather_by_line = [&](size_t begin, size_t end) {
      constexpr size_t kRow = 12, kBucket = 24, kRing = 32;
      struct InFlight {
        const Line* line;
        const char* row;
      } ring[kRing];
      for (size_t i = begin; i < end + kBucket; ++i) {
        if (i < end) {
          InFlight& flight = ring[i % kRing];
          flight.line = &lines[(HashKey(bench.ids[i]) >> 32) * num_lines >> 32];
          __builtin_prefetch(flight.line);
        }
        if (i >= begin + kBucket - kRow && i < end + kBucket - kRow) {
          const size_t j = i - (kBucket - kRow);
          InFlight& flight = ring[j % kRing];
          const uint64_t zero =
              flight.line->row_ids[15] >> 31;  // always 0, unknown to the compiler
          flight.row = reinterpret_cast<char*>(&array[(bench.numbers[j] + zero) * dim]);
          PrefetchRow<false>(flight.row, dim * sizeof(float));
        }
        if (i >= begin + kBucket) {
          const size_t j = i - kBucket;
          std::memcpy(&bench.rows[j * dim], ring[j % kRing].row, dim * sizeof(float));
        }
      }
    };
    const auto parallel = [&](const ExecContext::Work& work) {
      bench.context.parallel_for(bench.batch, 60, work);
    };
    Array<float> old_rows(bench.batch * dim);
    Array<bool> exists(bench.batch);
    std::memset(exists.data(), 1, bench.batch);
    const std::vector<Bench::Work> works = {
        {"gather", [&] { parallel(std::cref(gather)); }},
        {"gather + line", [&] { parallel(std::cref(gather_by_line)); }},
        {"find",
         [&] {
           Check(table->Find(bench.context, bench.Ids(), {}, bench.rows.data(), nullptr, {}));
         }},
        {"insert_or_assign",
         [&] { Check(table->InsertOrAssign(bench.context, bench.Ids(), bench.rows.data(), {})); }},
        {"accum", [&] {
           Check(table->Accum(bench.context, bench.Ids(), old_rows.data(), bench.rows.data(),
                              exists.data()));
         }}};
    for (const double exponent : {0.0, 1.2}) {
      Draw draw(keys, exponent);
      const std::string title = exponent == 0.0 ? "uniform" : "Zipf 1.2";
      auto times = bench.Rounds(title, &draw, works);
      std::vector<double> shares;
      for (int round = 0; round < kRounds; ++round) {
        shares.push_back(times["gather + line"][round] / times["find"][round]);
      }
      if (exponent == 0.0) {
        bench.results["lookup_share_of_floor"] = Median(shares);
        std::printf("find reaches %.0f%% of gather + line\n", 100.0 * Median(shares));
      }
    }
  }
  {
    // Batches without equal keys, of which the table is told and not told.
    Draw draw(keys, -1.0);
    const auto assign = [&](bool distinct) {
      KeyBatch batch = bench.Ids();
      batch.distinct = distinct;
      Check(table->InsertOrAssign(bench.context, batch, bench.rows.data(), {}));
    };
    bench.Rounds("distinct", &draw,
                 {{"insert_or_assign", [&] { assign(false); }},
                  {"insert_or_assign, told", [&] { assign(true); }}});
  }
  {
    Draw draw(keys, 0.0);
    bench.Rounds("uniform", &draw, {{"find, absent", [&] {
                                       for (int64_t& id : bench.ids) id = ~id;
                                       Check(table->Find(bench.context, bench.Ids(), {},
                                                         bench.rows.data(), nullptr, {}));
                                     }}});
  }
  if (keys * dim <= size_t{200} << 20) {
    for (const auto& [name, kind] :
         {std::pair{"SGD", RuleKind::kSgd},
          std::pair{"row-wise Adagrad", RuleKind::kRowwiseAdagrad},
          std::pair{"Adagrad", RuleKind::kAdagrad}, std::pair{"Adam", RuleKind::kAdam}}) {
      const Rule rule = RuleOf(kind, dim);
      Check(table->maintenance()->SetRule(rule.slots));
      for (const double exponent : {0.0, 1.2}) {
        Draw draw(keys, exponent);
        bench.Rounds(exponent == 0.0 ? "uniform" : "Zipf 1.2", &draw,
                     {{std::string("apply, ") + name, [&] {
                         Check(table->Apply(bench.context, bench.Ids(), bench.rows.data(),
                                            DataType::kFloat, rule));
                       }}});
      }
    }
  }
  if (json) {
    std::printf("{");
    const char* separator = "";
    for (const auto& [name, value] : bench.results) {
      std::printf("%s\"%s\": %.4g", separator, name.c_str(), value);
      separator = ", ";
    }
    std::printf("}\n");
  }
  return 0;
}

}  // namespace
}  // namespace tf_embed

int main(int argc, char** argv) { return tf_embed::Main(argc, argv); }
