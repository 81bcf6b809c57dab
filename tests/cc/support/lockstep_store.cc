// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/support/lockstep_store.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "cc/stores/device/device_key_sums_inl.h"
#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "cc/stores/device/launch_queue.h"

namespace tf_embed {
namespace {

// Runs a function in many lanes in a single thread. Each lane has a stack.
class Lanes {
 public:
  static constexpr size_t kCount = 16;

  enum class Call : uint8_t { kNone, kSync, kFrom, kDown, kHighest, kWhere, kEqual, kReturn };

  Lanes() : stacks_(new char[kCount * kStackBytes]) {}

  void Run(const std::function<void(size_t lane)>& work, bool upward) {
    work_ = &work;
    for (size_t lane = 0; lane < kCount; ++lane) {
      getcontext(&contexts_[lane]);
      contexts_[lane].uc_stack.ss_sp = stacks_.get() + lane * kStackBytes;
      contexts_[lane].uc_stack.ss_size = kStackBytes;
      contexts_[lane].uc_link = nullptr;
      makecontext(&contexts_[lane], Enter, 0);
      calls_[lane] = Call::kNone;
      turns_[lane] = 0;
    }
    while (calls_[0] != Call::kReturn) {
      for (size_t i = 0; i < kCount; ++i) {
        lane_ = upward ? i : kCount - 1 - i;
        running_ = this;
        swapcontext(&caller_, &contexts_[lane_]);
      }
      for (size_t lane = 1; lane < kCount; ++lane) {
        if (calls_[lane] == calls_[0]) continue;
        std::fprintf(stderr, "lane %zu and lane 0 make different calls\n", lane);
        std::abort();
      }
    }
  }

  // Passes `x` to the other lanes and waits for their values. Returns the values of all lanes.
  const uint64_t* Meet(size_t lane, Call call, uint64_t x) {
    uint64_t* const values = values_[turns_[lane]++ % 2];
    values[lane] = x;
    calls_[lane] = call;
    swapcontext(&contexts_[lane], &caller_);
    return values;
  }

 private:
  static constexpr size_t kStackBytes = 128 << 10;

  static void Enter() {
    Lanes* const lanes = running_;
    const size_t lane = lanes->lane_;
    (*lanes->work_)(lane);
    lanes->calls_[lane] = Call::kReturn;
    swapcontext(&lanes->contexts_[lane], &lanes->caller_);
  }

  static thread_local Lanes* running_;

  std::unique_ptr<char[]> stacks_;
  ucontext_t caller_;
  ucontext_t contexts_[kCount];
  const std::function<void(size_t lane)>* work_ = nullptr;
  size_t lane_ = 0;
  Call calls_[kCount];
  uint64_t turns_[kCount];
  uint64_t values_[2][kCount];
};
thread_local Lanes* Lanes::running_ = nullptr;

class LockstepTile : public HostAtomics {
 public:
  static constexpr size_t kLanes = Lanes::kCount;
  static constexpr bool kBlocks = false;
  LockstepTile(Lanes* lanes, size_t lane) : lanes_(lanes), lane_(lane) {}

  size_t lane() const { return lane_; }
  void Sync() const { lanes_->Meet(lane_, Lanes::Call::kSync, 0); }
  template <typename T>
  T From(T x, size_t lane) const {
    return ValueOf<T>(lanes_->Meet(lane_, Lanes::Call::kFrom, Bits(x))[lane]);
  }
  template <typename T>
  T Down(T x, size_t distance) const {
    const uint64_t* const values = lanes_->Meet(lane_, Lanes::Call::kDown, Bits(x));
    return ValueOf<T>(values[lane_ + distance < kLanes ? lane_ + distance : lane_]);
  }
  uint32_t Highest(uint32_t x) const {
    const uint64_t* const values = lanes_->Meet(lane_, Lanes::Call::kHighest, x);
    return static_cast<uint32_t>(*std::max_element(values, values + kLanes));
  }
  uint32_t Where(bool x) const {
    const uint64_t* const values = lanes_->Meet(lane_, Lanes::Call::kWhere, x);
    uint32_t lanes = 0;
    for (size_t lane = 0; lane < kLanes; ++lane)
      lanes |= static_cast<uint32_t>(values[lane]) << lane;
    return lanes;
  }
  uint32_t Equal(uint64_t x) const {
    const uint64_t* const values = lanes_->Meet(lane_, Lanes::Call::kEqual, x);
    uint32_t lanes = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) lanes |= (values[lane] == x ? 1u : 0u) << lane;
    return lanes;
  }

 private:
  template <typename T>
  static uint64_t Bits(T x) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(x));
    return bits;
  }
  template <typename T>
  static T ValueOf(uint64_t bits) {
    T x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }

  Lanes* lanes_;
  size_t lane_;
};

class LockstepDevice : public EmulatedDevice {
 public:
  using Tile = LockstepTile;
  struct Order : EmulatedDevice::Order {
    explicit Order(const LockstepDevice& device) : EmulatedDevice::Order(device) {}
  };
  explicit LockstepDevice(Allocator* allocator) : EmulatedDevice(allocator) {}

  template <class Kernel>
  void Launch(const ExecContext&, size_t count, size_t, const Kernel& kernel) const {
    static thread_local Lanes lanes;
    for (size_t i = 0; i < count; ++i) {
      lanes.Run([&](size_t lane) { kernel(LockstepTile(&lanes, lane), i); }, i % 2 == 0);
    }
  }
};

}  // namespace

bool HasLockstep() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

Status NewLockstepStore(const StoreOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Store>* store) {
  using Device = QueuedDevice<LockstepDevice>;
  return DeviceStoreImpl<Device>::Create(options, device, Device(options.allocator), store);
}

std::unique_ptr<DeviceSplit> NewLockstepSplit() {
  using Device = QueuedDevice<LockstepDevice>;
  return std::make_unique<DeviceSplitOn<Device>>(Device(HostAllocator()), HostAllocator());
}

std::unique_ptr<DeviceKeySums> NewLockstepKeySums() {
  return std::make_unique<DeviceKeySumsOn<LockstepDevice>>(LockstepDevice(HostAllocator()),
                                                           HostAllocator());
}

}  // namespace tf_embed
