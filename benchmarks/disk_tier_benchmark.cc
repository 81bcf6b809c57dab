// SPDX-License-Identifier: Apache-2.0
// Times Put and Get of DiskTier on rows of Adam at dim 64 (776 bytes with their key), in a folder
// of the disk to measure. Compare with fio's rate there:
//
//     fio --name=read --directory=FOLDER --size=2g --rw=randread --bs=4k --direct=1
//         --ioengine=io_uring --iodepth=256 --runtime=10 --time_based
//
//     disk_tier_benchmark --folder=FOLDER [--gigabytes=2] [--rounds=20] [--pread] [--buffered]
//                          [--json]
//
// Prints, for batches of several sizes at random: rows a second, blocks a second, and the most
// requests under way. With --json the last line is one JSON object of the medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/rules/rule_list.h"
#include "cc/tiers/disk/disk_tier.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 64;
constexpr size_t kWeightBytes = kDim * sizeof(float);
constexpr size_t kSlotBytes = 2 * kWeightBytes;
constexpr size_t kRowBytes = sizeof(int64_t) + kWeightBytes + kSlotBytes;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * kGolden64); }

struct Bench {
  std::unique_ptr<DiskTier> tier;
  uint64_t num_rows = 0;
  int rounds = 20;
  bool json = false;
  std::string results;
  std::mt19937_64 random{1};
  WholeRows rows{HostAllocator()};

  void Note(const std::string& what, double value) {
    results += (results.empty() ? "\"" : ", \"") + what + "\": " + std::to_string(value);
  }

  void PutRows(const std::vector<uint64_t>& numbers) {
    Check(rows.Resize(numbers.size(), kWeightBytes, kSlotBytes, 0));
    rows.size = numbers.size();
    for (size_t i = 0; i < numbers.size(); ++i) {
      rows.keys[i] = KeyOf(numbers[i]);
      std::memset(rows.weights.data() + i * kWeightBytes, static_cast<int>(numbers[i]),
                  kWeightBytes);
      std::memset(rows.slots.data() + i * kSlotBytes, static_cast<int>(numbers[i]), kSlotBytes);
    }
  }

  // Distinct ones.
  std::vector<uint64_t> Draw(size_t count) {
    std::vector<uint64_t> numbers;
    while (numbers.size() < count) {
      while (numbers.size() < count) numbers.push_back(random() % num_rows);
      std::sort(numbers.begin(), numbers.end());
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    }
    std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
  }

  void Fill() {
    constexpr uint64_t kBatch = 65536;
    double seconds = 0;
    for (uint64_t begin = 0; begin < num_rows; begin += kBatch) {
      std::vector<uint64_t> numbers;
      for (uint64_t i = begin; i < std::min(begin + kBatch, num_rows); ++i) numbers.push_back(i);
      PutRows(numbers);
      const auto start = std::chrono::steady_clock::now();
      Check(tier->Put(ExecContext::Serial(), rows));
      seconds += Seconds(start);
    }
    Report("put of new rows", 65536, static_cast<double>(num_rows) / seconds, 0);
  }

  void Report(const std::string& what, size_t batch, double rows_a_second, double blocks_a_second) {
    std::printf("%-18s batch %6zu: %10.0f rows/s, %6.1f MB/s of rows", what.c_str(), batch,
                rows_a_second, rows_a_second * kRowBytes / 1e6);
    if (blocks_a_second > 0) std::printf(", %8.0f blocks/s", blocks_a_second);
    std::printf("\n");
    std::fflush(stdout);
    Note(what + ", " + std::to_string(batch) + ", rows/s", rows_a_second);
    if (blocks_a_second > 0) {
      Note(what + ", " + std::to_string(batch) + ", blocks/s", blocks_a_second);
    }
  }

  void Get(size_t batch) {
    std::vector<double> row_rates, block_rates;
    for (int round = 0; round < rounds; ++round) {
      std::vector<int64_t> keys;
      for (const uint64_t number : Draw(batch)) keys.push_back(KeyOf(number));
      const uint64_t blocks = tier->Stats().read_requests;
      const auto start = std::chrono::steady_clock::now();
      Check(tier->Get(ExecContext::Serial(), keys.data(), keys.size(), LowerTier::After::kCold,
                      &rows));
      const double seconds = Seconds(start);
      if (rows.size != batch) std::abort();
      row_rates.push_back(static_cast<double>(batch) / seconds);
      block_rates.push_back(static_cast<double>(tier->Stats().read_requests - blocks) / seconds);
    }
    Report("get at random", batch, Median(row_rates), Median(block_rates));
  }

  // Until compaction goes on all the time.
  void OverwriteAll() {
    constexpr size_t kBatch = 65536;
    for (uint64_t done = 0; done < num_rows; done += kBatch) {
      PutRows(Draw(std::min<uint64_t>(kBatch, num_rows / 2)));
      Check(tier->Put(ExecContext::Serial(), rows));
    }
  }

  // The mean, of enough puts that flushes and compaction are in it, and the longest of them.
  void Overwrite(size_t batch) {
    const int enough = std::max(rounds, static_cast<int>(1310720 / batch));
    double all = 0, longest = 0;
    for (int round = 0; round < enough; ++round) {
      PutRows(Draw(batch));
      const auto start = std::chrono::steady_clock::now();
      Check(tier->Put(ExecContext::Serial(), rows));
      const double seconds = Seconds(start);
      all += seconds;
      longest = std::max(longest, seconds);
    }
    Report("put at random", batch, enough * static_cast<double>(batch) / all, 0);
    std::printf("%30s longest %.1f ms of a mean of %.2f ms\n", "", longest * 1e3,
                all / enough * 1e3);
  }
};

int Main(int argc, char** argv) {
  DiskTierOptions options;
  options.name = "disk_store_benchmark";
  options.dim = kDim;
  double gigabytes = 2;
  Bench bench;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&](const std::string& name) {
      return argument.rfind(name, 0) == 0 ? argument.c_str() + name.size() : nullptr;
    };
    if (const char* const folder = value("--folder=")) {
      options.path = folder;
    } else if (const char* const number = value("--gigabytes=")) {
      gigabytes = std::atof(number);
    } else if (const char* const rounds = value("--rounds=")) {
      bench.rounds = std::atoi(rounds);
    } else if (argument == "--pread") {
      options.use_io_uring = false;
    } else if (argument == "--buffered") {
      options.use_direct_io = false;
    } else if (argument == "--json") {
      bench.json = true;
    } else {
      std::fprintf(stderr, "Unknown: %s\n", argument.c_str());
      return 1;
    }
  }
  if (options.path.empty()) {
    std::fprintf(stderr, "Name a folder: --folder=FOLDER\n");
    return 1;
  }
  bench.num_rows = static_cast<uint64_t>(gigabytes * 1e9 / kRowBytes);
  if (bench.num_rows < 2 * 65536) {  // two of the largest batches, which have distinct rows
    std::fprintf(stderr, "Take at least 0.11 gigabytes.\n");
    return 1;
  }
  options.init_size = bench.num_rows;
  Check(DiskTier::Open(options, &bench.tier));
  Check(bench.tier->SetRule(FusedSlots(RuleKind::kAdam, kDim)));
  std::printf("%s: %llu rows of %zu bytes, %s, %s\n", bench.tier->name().c_str(),
              static_cast<unsigned long long>(bench.num_rows), kRowBytes,
              bench.tier->uses_io_uring() ? "io_uring" : "threads with pread",
              bench.tier->uses_direct_io() ? "direct I/O" : "page cache");
  bench.Fill();
  for (const size_t batch : {65536, 4096, 655}) bench.Get(batch);
  bench.OverwriteAll();
  for (const size_t batch : {65536, 4096, 655}) bench.Overwrite(batch);
  bench.Get(4096);
  const LowerTierStats stats = bench.tier->Stats();
  std::printf(
      "disk %.2f x live; index %.1f bytes a key; at most %llu requests under way; "
      "compaction read and wrote %.0f MB for %.0f MB of puts\n",
      static_cast<double>(stats.disk_bytes) / static_cast<double>(stats.live_bytes),
      static_cast<double>(stats.index_bytes) / static_cast<double>(stats.rows),
      static_cast<unsigned long long>(stats.max_queue_depth),
      static_cast<double>(stats.compacted_bytes) / 1e6,
      static_cast<double>(stats.bytes_written) / 1e6);
  if (bench.json) std::printf("{%s}\n", bench.results.c_str());
  return 0;
}

}  // namespace
}  // namespace tf_embed

int main(int argc, char** argv) { return tf_embed::Main(argc, argv); }
