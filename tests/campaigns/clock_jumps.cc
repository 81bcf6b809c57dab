// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD with a clock that jumps: every now and then the time of day goes on or
// back by up to a day. Clocks that only go on are left alone, as a system leaves them.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr int64_t kDay = 24 * 60 * 60;
constexpr uint64_t kReadsOfATime = 50;

// How far off the time of day is, in seconds: another number after so many reads.
int64_t Offset() {
  static std::atomic<uint64_t> reads{0};
  uint64_t hash = (reads.fetch_add(1) / kReadsOfATime + 1) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 29;
  return static_cast<int64_t>(hash % (2 * kDay)) - kDay;
}

int RealTime(clockid_t clock, timespec* time) {
  static const auto real =
      reinterpret_cast<decltype(::clock_gettime)*>(dlsym(RTLD_NEXT, "clock_gettime"));
  return real(clock, time);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = RealTime(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += Offset();
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}

time_t time(time_t* to) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != nullptr) *to = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
