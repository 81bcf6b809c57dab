// SPDX-License-Identifier: Apache-2.0
// Times training steps on a stream of ids that drifts, with tables that are bounded to a tenth of
// the ids, with a bound that no row reaches, and without one; and says how often the ids of a batch
// were there.
//
//     policy_benchmark [--json] [ids] [dim] [batch] [threads] [steps]
//
// Default: 1000000 64 65536 2 2000. With --json the last line is one JSON object, with an object of
// numbers for each table.
//
// Ids are drawn by Zipf's law, the k-th with a chance proportional to 1 / k^1.05, and the k-th is
// another id every step: the ids of all ranks move on by one. A step looks a batch up, as a part of
// training, and applies Adam. Steps of all tables take turns on the same batches.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/pool.h"
#include "benchmarks/rule.h"
#include "cc/stores/host/host_store.h"

namespace {

using tf_embed::EvictionOrder;
using tf_embed::HostStore;
using tf_embed::RowPolicy;
using tf_embed::Status;
using Clock = std::chrono::steady_clock;

struct Subject {
  const char* name;
  RowPolicy policy;
  std::unique_ptr<HostStore> table;
  double seconds = 0;
  double worst = 0;
  size_t most_rows = 0;
};

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

RowPolicy Bounded(size_t max_rows, EvictionOrder order) {
  RowPolicy policy;
  policy.max_rows = max_rows;
  policy.eviction = order;
  return policy;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::vector<double> numbers = {1e6, 64, 65536, 2, 2000};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      json = true;
    } else if (given < numbers.size()) {
      numbers[given++] = std::atof(argv[i]);
    }
  }
  const auto number = [&](size_t i) { return static_cast<size_t>(numbers[i]); };
  const size_t ids = number(0), dim = number(1), batch = number(2);
  const size_t threads = number(3), steps = number(4);

  std::vector<double> chances(ids);
  double sum = 0;
  for (size_t k = 0; k < ids; ++k) {
    chances[k] = sum += std::pow(static_cast<double>(k + 1), -1.05);
  }

  std::vector<Subject> subjects;
  subjects.push_back({"unbounded", RowPolicy(), nullptr});
  subjects.push_back({"roomy", Bounded(ids * 2, EvictionOrder::kLru), nullptr});
  subjects.push_back({"lru", Bounded(ids / 10, EvictionOrder::kLru), nullptr});
  subjects.push_back({"lfu", Bounded(ids / 10, EvictionOrder::kLfu), nullptr});
  subjects.push_back({"ttl", Bounded(ids / 10, EvictionOrder::kTtl), nullptr});
  subjects.push_back({"score", Bounded(ids / 10, EvictionOrder::kScore), nullptr});
  for (Subject& subject : subjects) {
    tf_embed::StoreOptions options;
    options.dim = dim;
    options.initializer.kind = tf_embed::InitializerKind::kUniform;
    options.initializer.a = -0.05;
    options.initializer.b = 0.05;
    options.policy = subject.policy;
    subject.table = HostStore::Create(options);
    if (subject.table == nullptr) return 1;
  }

  tf_embed::Pool pool(threads);
  tf_embed::ExecContext context = pool.Context();
  context.training = true;
  tf_embed::Rule rule = tf_embed::RuleOf(tf_embed::RuleKind::kAdam, dim);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, sum);
  std::vector<int64_t> keys(batch);
  std::vector<float> rows(batch * dim), gradients(batch * dim, 0.01f);
  for (size_t step = 1; step <= steps; ++step) {
    for (int64_t& key : keys) {
      const auto k = std::lower_bound(chances.begin(), chances.end(), uniform(random));
      key = static_cast<int64_t>(static_cast<size_t>(k - chances.begin()) + step);
    }
    context.now = {step, step};
    rule.step = static_cast<int64_t>(step);
    for (size_t i = 0; i < subjects.size(); ++i) {
      Subject& subject = subjects[(i + step) % subjects.size()];
      const auto begin = Clock::now();
      const tf_embed::KeyBatch key_batch{keys.data(), batch, nullptr};
      Check(subject.table->Find(context, key_batch, {}, rows.data(), nullptr, {}));
      Check(subject.table->Apply(context, key_batch, gradients.data(), tf_embed::DataType::kFloat,
                                 rule));
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      subject.seconds += seconds;
      subject.worst = std::max(subject.worst, seconds);
      subject.most_rows = std::max(subject.most_rows, subject.table->size());
    }
  }

  std::printf("%zu ids, dim %zu, batches of %zu, %zu threads, %zu steps\n", ids, dim, batch,
              threads, steps);
  std::printf("%-10s %9s %9s %7s %9s %9s %9s %10s\n", "table", "ms/step", "worst ms", "ratio",
              "most rows", "hit rate", "evicted", "MB");
  std::string objects;
  for (const Subject& subject : subjects) {
    const tf_embed::StoreStats stats = subject.table->Stats();
    const double step_ms = subject.seconds / static_cast<double>(steps) * 1e3;
    const double worst_ms = subject.worst * 1e3;
    const double ratio = subject.seconds / subjects[0].seconds;
    const double hit_rate =
        static_cast<double>(stats.hits) / static_cast<double>(stats.hits + stats.misses);
    const double megabytes =
        static_cast<double>(stats.payload_bytes + stats.slack_bytes + stats.index_bytes) / 1e6;
    std::printf("%-10s %9.2f %9.2f %7.2f %9zu %9.4f %9zu %10.1f\n", subject.name, step_ms, worst_ms,
                ratio, subject.most_rows, hit_rate, static_cast<size_t>(stats.evicted), megabytes);
    char object[256];
    std::snprintf(object, sizeof(object),
                  "\"%s\": {\"step_ms\": %.4g, \"worst_ms\": %.4g, \"over_unbounded\": %.4g, "
                  "\"most_rows\": %zu, \"hit_rate\": %.4g, \"megabytes\": %.4g}",
                  subject.name, step_ms, worst_ms, ratio, subject.most_rows, hit_rate, megabytes);
    objects += (objects.empty() ? "" : ", ") + std::string(object);
  }
  if (json) std::printf("{%s}\n", objects.c_str());
  return 0;
}
