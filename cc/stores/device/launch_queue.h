// SPDX-License-Identifier: Apache-2.0
// Launches of the verbs of many stores, to be made together. A step of many small tables is mostly
// the time to launch, so one launch runs the same kernel for all of them:
//
//     LaunchQueue queue(stores.size());
//     context.queue = &queue;
//     for (Store* store : stores) {
//       queue.NextStore(context);
//       status = store->Apply(context, ...);
//     }
//     status = queue.Finish(context);
//
// A verb that needs the device sooner, to wait for it or for a launch that can't wait, makes the
// launches so far. So verbs need not know of the queue. Each store's launches keep their order.
//
// REQUIRES: the caller holds the stores until Finish. They are on one device, and their verbs on
// one stream.
#ifndef TF_EMBED_CC_STORES_DEVICE_LAUNCH_QUEUE_H_
#define TF_EMBED_CC_STORES_DEVICE_LAUNCH_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

// Kernels with `using MayWait = void` wait in a queue. The others are rare.
template <class Kernel, typename = void>
inline constexpr bool kMayWait = false;
template <class Kernel>
inline constexpr bool kMayWait<Kernel, typename Kernel::MayWait> = true;

// Kernels of one type as a kernel, which carries them all: no memory is copied for it.
template <class Kernel>
struct Together {
  // A launch carries less than 32 KiB. More kernels than these gain little.
  static constexpr size_t kMost =
      std::min<size_t>(64, (30 << 10) / (sizeof(Kernel) + sizeof(uint64_t)));

  alignas(Kernel) unsigned char kernels[kMost * sizeof(Kernel)];
  uint64_t ends[kMost];  // of the tiles of the kernels, which follow each other
  uint32_t count = 0;

  void Add(const void* kernel, size_t tiles) {
    std::memcpy(kernels + count * sizeof(Kernel), kernel, sizeof(Kernel));
    ends[count] = num_tiles() + tiles;
    ++count;
  }
  uint64_t num_tiles() const { return count == 0 ? 0 : ends[count - 1]; }

  TF_EMBED_DEVICE const Kernel& At(uint32_t k) const {
    return reinterpret_cast<const Kernel*>(kernels)[k];
  }
  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    uint32_t low = 0;
    for (uint32_t high = count - 1; low < high;) {
      const uint32_t middle = (low + high) / 2;
      if (i < ends[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    At(low)(tile, low == 0 ? i : i - ends[low - 1]);
  }

  // See LaunchBlocks.
  TF_EMBED_DEVICE size_t NumTiles() const { return ends[count - 1]; }
  TF_EMBED_DEVICE size_t NumForBlocks() const {
    size_t sum = 0;
    for (uint32_t k = 0; k < count; ++k) sum += At(k).NumForBlocks();
    return sum;
  }
  template <class Block>
  TF_EMBED_DEVICE void OnBlock(size_t i) const {
    uint32_t k = 0;
    for (; i >= At(k).NumForBlocks(); ++k) i -= At(k).NumForBlocks();
    At(k).template OnBlock<Block>(i);
  }
};

// A launch of a kernel.
template <class Kernel>
struct OneLaunch {
  Kernel kernel;
  size_t tiles;
  size_t cost;
};

// Makes the launches each(0) to each(count - 1) of a kernel, by as few as can carry them all.
// `kBlocks`: by LaunchBlocks.
template <bool kBlocks, class Kernel, class Device, class Each>
void LaunchTogether(const Device& device, const ExecContext& context, size_t count,
                    const Each& each) {
  const auto launch = [&](size_t tiles, size_t cost, const auto& kernel) {
    if constexpr (kBlocks) {
      device.LaunchBlocks(context, tiles, kernel);
    } else {
      device.Launch(context, tiles, cost, kernel);
    }
  };
  if (count == 1) {
    const OneLaunch<Kernel> one = each(0);
    return launch(one.tiles, one.cost, one.kernel);
  }
  for (size_t first = 0; first < count; first += Together<Kernel>::kMost) {
    const size_t end = std::min(count, first + Together<Kernel>::kMost);
    Together<Kernel> together;  // on the stack: it must not fail between launches
    size_t cost = 0;
    for (size_t i = first; i < end; ++i) {
      const OneLaunch<Kernel> one = each(i);
      together.Add(&one.kernel, one.tiles);
      cost = std::max(cost, one.cost);
    }
    launch(together.num_tiles(), cost, together);
  }
}

// Device::Fill as a kernel, for as many units as a tile has lanes.
struct FillKernel {
  using MayWait = void;
  static constexpr size_t kUnit = sizeof(uint64_t);
  static constexpr size_t kCost = 1;  // ns

  char* to;
  uint64_t bytes;
  unsigned char byte;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t begin = (i * Tile::kLanes + tile.lane()) * kUnit;
    if (begin + kUnit <= bytes) {
      *reinterpret_cast<uint64_t*>(to + begin) = byte * uint64_t{0x0101010101010101};
    } else {
      for (uint64_t k = begin; k < bytes; ++k) to[k] = static_cast<char>(byte);
    }
  }
};

class LaunchQueue {
 public:
  // Throws std::bad_alloc without memory, as AtEnd does.
  explicit LaunchQueue(size_t most_stores) {
    stores_.reserve(most_stores);
    same_.reserve(most_stores);
  }
  LaunchQueue(const LaunchQueue&) = delete;
  LaunchQueue& operator=(const LaunchQueue&) = delete;

  // The next launches are of another store. Makes those so far, if they have much scratch memory.
  void NextStore(const ExecContext& context) {
    if (bytes_ > kMostBytes) {
      Flush(context);
      End(context, ends_.size());
    }
    stores_.emplace_back();
    ended_ = ends_.size();
  }

  // Makes all launches, and ends what waits for them. Called once, also if a verb has failed.
  // Returns the first failure of a launch.
  Status Finish(const ExecContext& context) {
    Flush(context);
    End(context, ends_.size());
    return check_ == nullptr ? Status() : check_(context, device_);
  }

  // Calls `end` after the launches of all stores.
  void AtEnd(std::function<void(const ExecContext& context)> end) {
    ends_.push_back(std::move(end));
  }
  // The same for scratch memory that `end` frees.
  void Keep(size_t bytes, std::function<void(const ExecContext& context)> end) {
    AtEnd(std::move(end));
    bytes_ += bytes;
  }
  // Frees the scratch memory of stores whose verbs have ended.
  void FreeSome(const ExecContext& context) {
    Flush(context);
    End(context, ended_);
  }
  // For QueuedDevice. `kBlocks`: by LaunchBlocks.
  template <bool kBlocks, class Device, class Kernel>
  void Add(const Device& device, size_t tiles, size_t cost, const Kernel& kernel) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    device_ = &device;
    check_ = Check<Device>;
    Launch launch{MakeTogether<kBlocks, Device, Kernel>, &device, tiles, cost,
                  std::make_unique<unsigned char[]>(sizeof(Kernel))};
    std::memcpy(launch.kernel.get(), &kernel, sizeof(Kernel));
    stores_.back().launches.push_back(std::move(launch));
  }
  // Makes all launches so far. Needs no memory: once there are launches, it must not fail.
  void Flush(const ExecContext& context) {
    for (;;) {
      // The store that has most launches left. So the others wait for it at the launches that they
      // all have in the end.
      const auto first =
          std::max_element(stores_.begin(), stores_.end(),
                           [](const Waiting& a, const Waiting& b) { return a.left() < b.left(); });
      if (first == stores_.end() || first->left() == 0) break;
      const auto make = first->next().make;
      same_.clear();
      for (Waiting& store : stores_) {
        if (store.left() == 0 || store.next().make != make) continue;
        same_.push_back(&store.next());
        ++store.done;
      }
      make(context, same_);
    }
    for (Waiting& store : stores_) store = Waiting();
  }

 private:
  struct Launch {
    void (*make)(const ExecContext& context, const std::vector<const Launch*>& launches);
    const void* device;
    size_t tiles;
    size_t cost;
    std::unique_ptr<unsigned char[]> kernel;
  };

  // Tables that take more are large enough to fill launches of their own.
  static constexpr size_t kMostBytes = size_t{256} << 20;

  // The launches of a store.
  struct Waiting {
    std::vector<Launch> launches;
    size_t done = 0;
    size_t left() const { return launches.size() - done; }
    const Launch& next() const { return launches[done]; }
  };

  void End(const ExecContext& context, size_t count) {
    for (size_t i = 0; i < count; ++i) ends_[i](context);
    ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(count));
    ended_ = 0;
    bytes_ = 0;
  }

  template <class Device>
  static Status Check(const ExecContext& context, const void* device) {
    return static_cast<const Device*>(device)->Check(context);
  }
  template <bool kBlocks, class Device, class Kernel>
  static void MakeTogether(const ExecContext& context, const std::vector<const Launch*>& launches) {
    const auto& device = *static_cast<const Device*>(launches[0]->device);
    LaunchTogether<kBlocks, Kernel>(device, context, launches.size(), [&](size_t i) {
      const Launch& one = *launches[i];
      return OneLaunch<Kernel>{*reinterpret_cast<const Kernel*>(one.kernel.get()), one.tiles,
                               one.cost};
    });
  }

  std::vector<Waiting> stores_;
  std::vector<const Launch*> same_;
  const void* device_ = nullptr;
  Status (*check_)(const ExecContext& context, const void* device) = nullptr;
  std::vector<std::function<void(const ExecContext& context)>> ends_;
  size_t ended_ = 0;  // of these, of stores whose verbs have ended
  size_t bytes_ = 0;  // of scratch memory
};

// A device whose launches wait in the queue of the context, if there is one.
template <class Device>
class QueuedDevice final : public Device {
 public:
  using Device::Device;
  struct Order : Device::Order {
    explicit Order(const QueuedDevice& device) : Device::Order(device) {}
  };

  template <class Kernel>
  void Launch(const ExecContext& context, size_t tiles, size_t cost, const Kernel& kernel) const {
    if (!Waits</*kBlocks=*/false>(context, tiles, cost, kernel)) {
      Device::Launch(context, tiles, cost, kernel);
    }
  }
  template <class Kernel>
  void LaunchBlocks(const ExecContext& context, size_t tiles, const Kernel& kernel) const {
    if (!Waits</*kBlocks=*/true>(context, tiles, 0, kernel)) {
      Device::LaunchBlocks(context, tiles, kernel);
    }
  }
  void Fill(const ExecContext& context, void* to, int byte, size_t bytes) const {
    if (context.queue == nullptr) return Device::Fill(context, to, byte, bytes);
    constexpr size_t kOfTile = FillKernel::kUnit * Device::Tile::kLanes;
    Launch(context, (bytes + kOfTile - 1) / kOfTile, FillKernel::kCost * Device::Tile::kLanes,
           FillKernel{static_cast<char*>(to), bytes, static_cast<unsigned char>(byte)});
  }

  // The memory of a verb is freed at the end, after the launches that use it.
  void* Allocate(const ExecContext& context, size_t bytes) const {
    void* memory = Device::Allocate(context, bytes);
    if (context.queue == nullptr) return memory;
    if (memory == nullptr) {
      context.queue->FreeSome(context);
      memory = Device::Allocate(context, bytes);
    }
    if (memory == nullptr) return nullptr;
    try {
      // With a copy of the device: the array may be of an object that is gone by then.
      context.queue->Keep(bytes, [device = Device(*this), memory, bytes](const ExecContext& now) {
        device.Free(now, memory, bytes);
      });
    } catch (const std::bad_alloc&) {
      Device::Free(context, memory, bytes);
      return nullptr;
    }
    return memory;
  }
  void Free(const ExecContext& context, void* memory, size_t bytes) const {
    if (context.queue == nullptr) Device::Free(context, memory, bytes);
  }
  void FreeLasting(const ExecContext& context, void* memory, size_t bytes) const {
    Device::FreeLasting(Flushed(context), memory, bytes);
  }
  void FreePinned(const ExecContext& context, void* memory, size_t bytes) const {
    Device::FreePinned(Flushed(context), memory, bytes);
  }
  void CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) const {
    Device::CopyIn(Flushed(context), host, bytes, device);
  }
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    Device::CopyOut(Flushed(context), device, bytes, host);
  }
  void CopyLater(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    Device::CopyLater(Flushed(context), device, bytes, host);
  }
  Status RunningSum(const ExecContext& context, uint32_t* numbers, size_t count) const {
    return Device::RunningSum(Flushed(context), numbers, count);
  }
  Status Sort(const ExecContext& context, const uint64_t* keys, const uint32_t* values,
              size_t count, int bits, uint64_t* sorted_keys, uint32_t* sorted_values) const {
    return Device::Sort(Flushed(context), keys, values, count, bits, sorted_keys, sorted_values);
  }

 private:
  static const ExecContext& Flushed(const ExecContext& context) {
    if (context.queue != nullptr) context.queue->Flush(context);
    return context;
  }
  template <bool kBlocks, class Kernel>
  bool Waits(const ExecContext& context, size_t tiles, size_t cost, const Kernel& kernel) const {
    if (context.queue == nullptr) return false;
    if constexpr (kMayWait<Kernel>) {
      if (tiles == 0) return true;
      try {
        context.queue->template Add<kBlocks>(*static_cast<const Device*>(this), tiles, cost,
                                             kernel);
        return true;
      } catch (const std::bad_alloc&) {  // a verb that has begun to write must not fail
        context.queue->Flush(context);
        return false;
      }
    } else {
      context.queue->Flush(context);
      return false;
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_LAUNCH_QUEUE_H_
