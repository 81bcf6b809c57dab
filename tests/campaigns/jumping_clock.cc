// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that sets the time of day of one program:
// tests/campaigns/surroundings.py builds it and moves the clock. Clocks that can't be set on a real
// machine are unchanged.
//
// With JUMPING_CLOCK_SECONDS the clock jumps every 64 reads, for programs that can't set it.
// The new time is random, at most as many seconds before or after the true one.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

std::atomic<int64_t> offset{0};  // seconds
std::atomic<uint64_t> reads{0};

int64_t Range() {
  const char* const seconds = std::getenv("JUMPING_CLOCK_SECONDS");
  return seconds == nullptr ? 0 : std::atoll(seconds);
}

int64_t Offset() {
  static const int64_t range = Range();
  if (range <= 0) return offset.load();
  const uint64_t jumps = reads.fetch_add(1) / 64 + 1;
  const uint64_t drawn = (jumps * 0x9E3779B97F4A7C15u) >> 33;  // 31 bits
  return static_cast<int64_t>(drawn % static_cast<uint64_t>(2 * range + 1)) - range;
}

int TrueTime(clockid_t clock, timespec* time) {
  using Function = int (*)(clockid_t, timespec*);
  static const Function function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  return function(clock, time);
}

}  // namespace

extern "C" {

void jumping_clock_set(int64_t seconds) { offset = seconds; }
int64_t jumping_clock_reads() { return static_cast<int64_t>(reads.load()); }

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = TrueTime(clock, time);
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  time->tv_sec += static_cast<time_t>(Offset());
  return 0;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec time;
  if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* to) noexcept {
  timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (to != nullptr) *to = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
