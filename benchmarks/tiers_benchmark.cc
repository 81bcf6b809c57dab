// SPDX-License-Identifier: Apache-2.0
// Times training steps of a table over disk, beside those of a table in memory, at given shares of
// keys that the cache has.
//
//     tiers_benchmark --folder=FOLDER [--json] [rows] [dim] [batch] [threads] [steps]
//
// Default: 1000000 64 65536 2 20. All rows are written first, with the slots of Adam. The cache has
// room for a quarter of them. A batch has distinct keys: a share of hot ones, which half of the
// cache has room for, and others that are drawn from all the rest. A step looks the batch up, as a
// part of training, and applies Adam. With prefetch, another thread brings the rows of the next
// batch up during the step. The tables take turns on the same batches.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/pool.h"
#include "benchmarks/rule.h"
#include "cc/core/rows/row_layout.h"
#include "cc/stores/new_store.h"

namespace {

using tf_embed::KeyBatch;
using tf_embed::Status;
using tf_embed::Table;
using tf_embed::TableStats;
using Clock = std::chrono::steady_clock;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

struct Subject {
  const char* name;
  bool prefetches;
  std::unique_ptr<Table> table;
  std::vector<double> steps;  // seconds
  TableStats before;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::string folder;
  std::vector<double> numbers = {1e6, 64, 65536, 2, 20};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument.rfind("--folder=", 0) == 0) {
      folder = argument.substr(9);
    } else if (given < numbers.size()) {
      numbers[given++] = std::atof(argv[i]);
    }
  }
  if (folder.empty()) {
    std::fprintf(stderr, "tiers_benchmark: say --folder=, where the rows on disk may be.\n");
    return 1;
  }
  const auto number = [&](size_t i) { return static_cast<size_t>(numbers[i]); };
  const size_t rows = number(0), dim = number(1), batch = number(2);
  const size_t threads = number(3), steps = number(4);

  tf_embed::Rule rule = tf_embed::RuleOf(tf_embed::RuleKind::kAdam, dim);
  tf_embed::TableOptions options;
  options.dim = dim;
  options.initializer.kind = tf_embed::InitializerKind::kUniform;
  options.initializer.a = -0.05;
  options.initializer.b = 0.05;
  const tf_embed::RowLayout layout(options.value_type, dim, rule.slots, 1);
  const size_t cache_rows = rows / 4;
  const size_t hot_rows = cache_rows / 2;

  std::vector<Subject> subjects;
  for (const char* const name : {"memory", "disk", "disk, prefetch"}) {
    subjects.push_back({name, std::string(name) == "disk, prefetch", nullptr, {}, {}});
    tf_embed::StorageOptions storage;
    if (std::string(name) != "memory") {
      storage.tiers.path = folder;
      storage.tiers.name = subjects.back().prefetches ? "prefetch" : "plain";
      storage.tiers.cache_bytes = cache_rows * (layout.stride + sizeof(uint64_t));
    }
    options.name = name;
    tf_embed::Store store;
    Check(tf_embed::NewStore(options, storage, &store));
    subjects.back().table = std::move(store.table);
  }

  tf_embed::Pool pool(threads);
  tf_embed::ExecContext context = pool.Context();
  context.training = true;
  std::vector<int64_t> keys(batch), next(batch);
  std::vector<float> weights(batch * dim), gradients(batch * dim, 0.01f);
  const auto apply = [&](Table* table, const std::vector<int64_t>& of, size_t count) {
    const KeyBatch key_batch{of.data(), count, nullptr};
    Check(table->Find(context, key_batch, {}, weights.data(), nullptr, {}));
    Check(table->Apply(context, key_batch, gradients.data(), tf_embed::DataType::kFloat, rule));
  };
  for (size_t begin = 0; begin < rows; begin += batch) {
    const size_t count = std::min(batch, rows - begin);
    std::iota(keys.begin(), keys.end(), static_cast<int64_t>(begin));
    ++context.now.step;
    ++rule.step;
    for (Subject& subject : subjects) apply(subject.table.get(), keys, count);
  }

  std::printf(
      "%zu rows of %zu bytes, a cache of %zu, dim %zu, batches of %zu, %zu threads, %zu "
      "steps\n",
      rows, layout.stride, cache_rows, dim, batch, threads, steps);
  std::printf("%6s  %-16s %9s %9s %10s %9s %10s %10s\n", "hits", "table", "ms/step", "worst ms",
              "in memory", "hit rate", "reads/s", "MB/s down");
  std::mt19937_64 random(1);
  std::string objects;
  // A batch of distinct keys, the first `hot` of them from the rows that the cache keeps.
  const auto draw = [&](double share, std::vector<int64_t>* drawn) {
    const size_t hot = static_cast<size_t>(static_cast<double>(batch) * share);
    const size_t cold = batch - hot;
    const auto draw_some = [&](size_t first, size_t range, size_t count, int64_t* to) {
      // Each from a slice of its own, so that no key comes twice.
      for (size_t i = 0; i < count; ++i) {
        const size_t low = first + range * i / count, high = first + range * (i + 1) / count;
        to[i] = static_cast<int64_t>(low + random() % std::max<size_t>(1, high - low));
      }
    };
    draw_some(0, hot_rows, hot, drawn->data());
    draw_some(hot_rows, rows - hot_rows, cold, drawn->data() + hot);
    std::shuffle(drawn->begin(), drawn->end(), random);
  };
  for (const double share : {1.0, 0.99, 0.95, 0.9, 0.5}) {
    // The hot rows come up and stay.
    for (size_t begin = 0; begin < hot_rows; begin += batch) {
      const size_t count = std::min(batch, hot_rows - begin);
      std::iota(keys.begin(), keys.end(), static_cast<int64_t>(begin));
      ++context.now.step;
      ++rule.step;
      for (Subject& subject : subjects) apply(subject.table.get(), keys, count);
    }
    for (Subject& subject : subjects) {
      subject.steps.clear();
      subject.before = subject.table->Stats();
    }
    draw(share, &next);
    for (size_t step = 0; step < steps; ++step) {
      keys.swap(next);
      draw(share, &next);
      ++context.now.step;
      ++rule.step;
      for (size_t i = 0; i < subjects.size(); ++i) {
        Subject& subject = subjects[(i + step) % subjects.size()];
        const auto begin = Clock::now();
        std::thread prefetcher;
        if (subject.prefetches) {
          prefetcher = std::thread([&] {
            Check(subject.table->tiers()->Prefetch(context.InSerial(), {next.data(), batch}));
          });
        }
        apply(subject.table.get(), keys, batch);
        if (prefetcher.joinable()) prefetcher.join();
        subject.steps.push_back(Seconds(begin));
      }
    }
    const double in_memory = Median(subjects[0].steps);
    for (const Subject& subject : subjects) {
      const TableStats stats = subject.table->Stats();
      const double median = Median(subject.steps);
      const double worst = *std::max_element(subject.steps.begin(), subject.steps.end());
      const double sum = std::accumulate(subject.steps.begin(), subject.steps.end(), 0.0);
      const double hits = static_cast<double>(stats.cache_hits - subject.before.cache_hits);
      const double below = static_cast<double>(stats.cache_misses - subject.before.cache_misses);
      const double rate = hits + below == 0 ? 1.0 : hits / (hits + below);
      const double reads =
          static_cast<double>(stats.disk_read_requests - subject.before.disk_read_requests) / sum;
      const double down =
          static_cast<double>(stats.disk_written_bytes - subject.before.disk_written_bytes) / sum;
      std::printf("%5.0f%%  %-16s %9.2f %9.2f %9.2fx %9.4f %10.0f %10.1f\n", share * 100,
                  subject.name, median * 1e3, worst * 1e3, in_memory / median, rate, reads,
                  down / 1e6);
      char object[320];
      std::snprintf(object, sizeof(object),
                    "{\"hits\": %.2f, \"table\": \"%s\", \"step_ms\": %.4g, \"worst_ms\": %.4g, "
                    "\"of_memory\": %.4g, \"hit_rate\": %.4g, \"reads_per_second\": %.6g}",
                    share, subject.name, median * 1e3, worst * 1e3, in_memory / median, rate,
                    reads);
      objects += (objects.empty() ? "" : ", ") + std::string(object);
    }
  }
  if (json) std::printf("[%s]\n", objects.c_str());
  return 0;
}
