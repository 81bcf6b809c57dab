// SPDX-License-Identifier: Apache-2.0
// Times the growth of a table from nothing, by upserts of new keys without a reserve, and measures
// its memory; then the growth of its index alone.
//
//     growth_benchmark [--json] [keys] [dim] [batch] [threads]      default: 10000000 64 65536 2
//
// All memory that the run needs is touched first and given back piece by piece, before each batch
// as much as it will take. On a virtual machine the first touch of a page is also the host's work,
// which would be most of the measured time; and a guest may give the host back memory that lies
// free for a second or two.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/pool.h"
#include "cc/core/base/hash.h"
#include "cc/stores/host/host_store.h"

namespace {

using tf_embed::Pool;
using Clock = std::chrono::steady_clock;
using tf_embed::ExecContext;
using tf_embed::HostStore;
using tf_embed::KeyBatch;
using tf_embed::Status;
using tf_embed::StripedIndex;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Bytes of a line of /proc/self/status, such as "VmRSS:".
double StatusBytes(const char* name) {
  std::FILE* const file = std::fopen("/proc/self/status", "r");
  char line[256];
  double kilobytes = 0;
  while (file != nullptr && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, name, std::strlen(name)) == 0) {
      kilobytes = std::atof(line + std::strlen(name));
    }
  }
  if (file != nullptr) std::fclose(file);
  return kilobytes * 1024;
}

// Resets the peak of resident memory.
void ResetPeak() {
  if (std::FILE* const file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

// Memory that the host has given already.
class WarmMemory {
 public:
  explicit WarmMemory(size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    madvise(memory, bytes, MADV_HUGEPAGE);
    next_ = static_cast<char*>(memory);
    held_ = bytes;
    for (size_t i = 0; i < bytes; i += 4096) static_cast<volatile char*>(memory)[i] = 1;
  }

  // Gives some of it to the next process that asks the system: `bytes` in all so far.
  void ReleaseUpTo(size_t bytes) {
    const size_t whole = bytes / kHugePage * kHugePage;
    if (whole <= released_ || whole - released_ > held_) return;
    munmap(next_, whole - released_);
    next_ += whole - released_;
    held_ -= whole - released_;
    released_ = whole;
  }
  double held() const { return static_cast<double>(held_); }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  char* next_ = nullptr;
  size_t held_ = 0;
  size_t released_ = 0;
};

double SystemSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_stime.tv_usec);
}

struct Times {
  double total = 0, median = 0, p99 = 0, worst = 0;  // seconds

  explicit Times(std::vector<double> batches) {
    for (double time : batches) total += time;
    std::sort(batches.begin(), batches.end());
    median = batches[batches.size() / 2];
    p99 = batches[batches.size() * 99 / 100];
    worst = batches.back();
  }
};

// Keys are spread over all integers: key i is i times an odd number.
int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * 0x9e3779b97f4a7c15u); }

// The index alone, in one thread.
struct IndexGrowth {
  size_t growths = 0;
  size_t most_in_a_batch = 0;  // except the first, in which all stripes begin
  size_t moved_keys = 0;
  double seconds = 0;  // in growths
  double worst = 0;    // one growth
  double find_ns = 0;  // a key, at the end, in random order

  IndexGrowth(size_t keys, size_t batch) {
    StripedIndex index(tf_embed::HostAllocator(), 0);
    for (size_t first = 0; first < keys; first += batch) {
      size_t in_batch = 0;
      for (size_t i = first; i < std::min(first + batch, keys); ++i) {
        const uint64_t hash = tf_embed::HashKey(KeyOf(i));
        const size_t stripe = StripedIndex::StripeOf(hash);
        const size_t buckets = index.StripeBuckets(stripe);
        const Clock::time_point begin = Clock::now();
        Check(index.Insert(KeyOf(i), hash, static_cast<uint32_t>(i)));
        if (index.StripeBuckets(stripe) == buckets) continue;
        const double took = SecondsSince(begin);
        ++in_batch;
        moved_keys += index.StripeSize(stripe) - 1;
        seconds += took;
        worst = std::max(worst, took);
      }
      growths += in_batch;
      if (first > 0) most_in_a_batch = std::max(most_in_a_batch, in_batch);
      index.DropRetired();
    }
    TimeFinds(index, keys);
  }

  void TimeFinds(const StripedIndex& index, size_t keys) {
    constexpr size_t kFinds = 4000000, kBlock = 16;
    uint64_t random = 1, found = 0;
    uint64_t hashes[kBlock];
    int64_t block[kBlock];
    const Clock::time_point begin = Clock::now();
    for (size_t done = 0; done < kFinds; done += kBlock) {
      for (size_t i = 0; i < kBlock; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        block[i] = KeyOf((random >> 32) * keys >> 32);
        hashes[i] = tf_embed::HashKey(block[i]);
        __builtin_prefetch(index.HomeOf(hashes[i]));
      }
      for (size_t i = 0; i < kBlock; ++i) found += index.Find(block[i], hashes[i]).found();
    }
    find_ns = SecondsSince(begin) * 1e9 / kFinds;
    if (found != kFinds) std::exit(2);
  }
};

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  size_t arguments[] = {10000000, 64, 65536, 2};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (given < 4) {
      arguments[given++] = static_cast<size_t>(std::atoll(argv[i]));
    }
  }
  const auto [keys, dim, batch, threads] = arguments;
  const double payload = static_cast<double>(keys * (dim * sizeof(float) + sizeof(int64_t)));
  // The rough memory of a key, and that of the index by regions.
  const size_t warm_per_key = dim * sizeof(float) + 2 * StripedIndex::kBytesPerKey;
  const size_t warm_ahead = size_t{32} << 20;

  Pool pool(threads);
  const ExecContext context = pool.Context();
  std::vector<int64_t> ids(batch);
  const std::vector<float> rows(batch * dim, 0.01f);
  std::vector<double> times;
  times.reserve(keys / batch + 1);
  tf_embed::StoreOptions options;
  options.dim = dim;
  const double before = StatusBytes("VmRSS:");
  WarmMemory warm(static_cast<size_t>(payload) + keys * 40 + 2 * warm_ahead);
  double peak = 0;
  const double system_before = SystemSeconds();
  std::unique_ptr<HostStore> table = HostStore::Create(options);
  for (size_t first = 0; first < keys; first += batch) {
    const size_t count = std::min(batch, keys - first);
    for (size_t i = 0; i < count; ++i) ids[i] = KeyOf(first + i);
    warm.ReleaseUpTo((first + count) * warm_per_key + warm_ahead);
    ResetPeak();
    const Clock::time_point begin = Clock::now();
    Check(table->InsertOrAssign(context, KeyBatch{ids.data(), count, nullptr}, rows.data(), {}));
    times.push_back(SecondsSince(begin));
    peak = std::max(peak, StatusBytes("VmHWM:") - before - warm.held());
  }
  const double system = SystemSeconds() - system_before;
  const double final = StatusBytes("VmRSS:") - before - warm.held();
  const size_t worst_batch =
      static_cast<size_t>(std::max_element(times.begin(), times.end()) - times.begin());
  const Times time(times);
  const Clock::time_point clear_begin = Clock::now();
  Check(table->Clear());
  const double clear = SecondsSince(clear_begin);
  const double left = StatusBytes("VmRSS:") - before - warm.held();
  table.reset();
  const IndexGrowth index(keys, batch);

  const double count = static_cast<double>(keys);
  const std::pair<const char*, double> results[] = {
      {"keys", count},
      {"dim", static_cast<double>(dim)},
      {"batch", static_cast<double>(batch)},
      {"threads", static_cast<double>(threads)},
      {"ns_per_key", time.total * 1e9 / count},
      {"system_ns_per_key", system * 1e9 / count},
      {"median_batch_ms", time.median * 1e3},
      {"p99_batch_ms", time.p99 * 1e3},
      {"worst_batch_ms", time.worst * 1e3},
      {"worst_batch", static_cast<double>(worst_batch)},
      {"worst_over_median", time.worst / time.median},
      {"overhead_bytes_per_key", (final - payload) / count},
      {"peak_over_final", peak / final},
      {"clear_ms", clear * 1e3},
      {"bytes_left_by_clear", left},
      {"index_growths", static_cast<double>(index.growths)},
      {"index_growths_most_in_a_batch", static_cast<double>(index.most_in_a_batch)},
      {"index_ns_per_moved_key", index.seconds * 1e9 / static_cast<double>(index.moved_keys)},
      {"index_moves_per_key", static_cast<double>(index.moved_keys) / count},
      {"index_worst_growth_ms", index.worst * 1e3},
      {"index_find_ns", index.find_ns},
  };
  const char* separator = "{";
  for (const auto& [name, value] : results) {
    if (json) {
      std::printf("%s\"%s\": %.6g", separator, name, value);
      separator = ", ";
    } else {
      std::printf("%-32s %14.6g\n", name, value);
    }
  }
  if (json) std::printf("}\n");
  return 0;
}
