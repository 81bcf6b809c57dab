// Times the verbs of HostTable in one thread, beside the floor of any table: the same rows copied
// from an array by known numbers.
//
//     host_table_benchmark [keys] [dim] [batch]        default: 1000000 64 65536
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "cc/core/host_table.h"

namespace {

using tf_embed::ExecContext;
using tf_embed::HostTable;
using tf_embed::KeyBatch;
using tf_embed::Rule;
using tf_embed::RuleKind;
using tf_embed::Status;

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

struct Bench {
  size_t keys;
  size_t dim;
  size_t batch;
  std::mt19937_64 random{1};
  ExecContext serial = ExecContext::Serial();
  std::vector<int64_t> ids = std::vector<int64_t>(batch);
  std::vector<float> rows = std::vector<float>(batch * dim, 0.01f);

  // Keys are spread over all integers: key i is i times an odd number.
  static int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * 0x9e3779b97f4a7c15u); }

  KeyBatch Draw(uint64_t first) {
    for (int64_t& id : ids) id = KeyOf(first + random() % keys);
    return KeyBatch{ids.data(), batch, nullptr};
  }

  // Prints the median of a fresh batch a round, in nanoseconds a key.
  double Report(const char* name, double floor, const std::function<void()>& work,
                const std::function<void()>& prepare) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      prepare();
      times.push_back(Seconds(work) * 1e9 / static_cast<double>(batch));
    }
    std::sort(times.begin(), times.end());
    const double median = times[kRounds / 2];
    std::printf("%-28s %8.1f ns/key", name, median);
    if (floor > 0) std::printf("   %5.2f x gather", median / floor);
    std::printf("\n");
    return median;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, size_t otherwise) {
    return argc > i ? static_cast<size_t>(std::atoll(argv[i])) : otherwise;
  };
  Bench bench{argument(1, 1000000), argument(2, 64), argument(3, 65536)};
  std::printf("%zu keys, dim %zu, batches of %zu, 1 thread, medians of %d\n", bench.keys, bench.dim,
              bench.batch, kRounds);

  tf_embed::TableOptions options;
  options.dim = bench.dim;
  options.initializer = {tf_embed::InitializerKind::kUniform, -0.05, 0.05, {}, 1, 2};
  const std::unique_ptr<HostTable> table = HostTable::Create(options);

  const double insert = Seconds([&] {
    for (size_t first = 0; first < bench.keys; first += bench.batch) {
      const size_t count = std::min(bench.batch, bench.keys - first);
      for (size_t i = 0; i < count; ++i) bench.ids[i] = Bench::KeyOf(first + i);
      Check(table->InsertOrAssign(bench.serial, KeyBatch{bench.ids.data(), count, nullptr},
                                  bench.rows.data(), {}));
    }
  });
  std::printf("%-28s %8.1f ns/key\n", "insert new, growing",
              insert * 1e9 / static_cast<double>(bench.keys));

  std::vector<float> array(bench.keys * bench.dim, 0.5f);
  std::vector<size_t> numbers(bench.batch);
  KeyBatch batch;
  const auto draw_numbers = [&] {
    for (size_t& number : numbers) number = bench.random() % bench.keys;
  };
  const auto draw_present = [&] { batch = bench.Draw(0); };
  const auto draw_absent = [&] { batch = bench.Draw(bench.keys); };
  const double floor = bench.Report(
      "gather from an array", 0,
      [&] {
        for (size_t i = 0; i < bench.batch; ++i) {
          std::copy_n(&array[numbers[i] * bench.dim], bench.dim, &bench.rows[i * bench.dim]);
        }
      },
      draw_numbers);
  const auto find = [&] {
    Check(table->Find(bench.serial, batch, {}, bench.rows.data(), nullptr, {}));
  };
  bench.Report("find, present", floor, find, draw_present);
  bench.Report("find, absent (uniform row)", floor, find, draw_absent);
  bench.Report(
      "insert_or_assign, present", floor,
      [&] { Check(table->InsertOrAssign(bench.serial, batch, bench.rows.data(), {})); },
      draw_present);
  for (const auto& [name, kind] :
       {std::pair{"apply, SGD", RuleKind::kSgd},
        std::pair{"apply, row-wise Adagrad", RuleKind::kRowwiseAdagrad},
        std::pair{"apply, Adagrad", RuleKind::kAdagrad}, std::pair{"apply, Adam", RuleKind::kAdam},
        std::pair{"apply, RMSprop", RuleKind::kRmsprop},
        std::pair{"apply, Ftrl", RuleKind::kFtrl}}) {
    Rule rule;
    rule.slots = tf_embed::FusedSlots(kind, bench.dim, 0.1);
    rule.learning_rate = 0.01;
    rule.epsilon = 1e-7;
    rule.beta_1 = 0.9;
    rule.beta_2 = 0.999;
    rule.rho = 0.9;
    rule.learning_rate_power = -0.5;
    Check(table->SetRule(rule.slots));
    bench.Report(
        name, floor,
        [&] {
          Check(table->Apply(bench.serial, batch, bench.rows.data(), tf_embed::DataType::kFloat,
                             rule));
        },
        draw_present);
  }
  return 0;
}
