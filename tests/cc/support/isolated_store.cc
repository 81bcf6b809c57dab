// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/support/isolated_store.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cc/stores/device/device_key_sums_inl.h"
#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "cc/stores/device/launch_queue.h"

namespace tf_embed {
namespace {

constexpr int kRubbish = 0xa5;
constexpr size_t kPageBytes = 4096;

template <size_t kSize>
void Say(const char (&text)[kSize]) {
  if (write(STDERR_FILENO, text, kSize - 1) < 0) return;
}

void OnFault(int number, siginfo_t* info, void*) {
  if (IsolatedMemory::Get()->IsDevices(info->si_addr)) {
    Say("the host touched memory of the device\n");
  } else if (IsolatedMemory::Get()->IsHosts(info->si_addr)) {
    Say("a kernel touched memory of the host\n");
  }
  signal(number, SIG_DFL);  // the instruction runs again
}

}  // namespace

IsolatedMemory::Region::Region(IsolatedMemory* memory) : memory_(memory) {
  void* const base =
      mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) std::abort();
  base_ = static_cast<char*>(base);
}

int IsolatedMemory::Region::ClassOf(size_t bytes) {
  int bits = 7;
  while ((size_t{1} << bits) < bytes + kMarginBytes) ++bits;
  return bits;
}

void IsolatedMemory::Region::Fill(const Block& block) const {
  std::memset(block.begin, kRubbish, block.bytes + kMarginBytes);
}

void IsolatedMemory::Region::Check(const Block& block) const {
  for (size_t i = 0; i < kMarginBytes; ++i) {
    if (block.begin[block.bytes + i] == static_cast<char>(kRubbish)) continue;
    std::fprintf(stderr, "somebody wrote beyond an array of %zu bytes\n", block.bytes);
    std::abort();
  }
}

void* IsolatedMemory::Region::Allocate(size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(memory_->mutex_);
  const int bits = ClassOf(bytes);
  const size_t size = size_t{1} << bits;
  Block block{nullptr, bytes};
  if (!free_[bits].empty()) {
    block.begin = free_[bits].back();
    free_[bits].pop_back();
  } else {
    const size_t alignment = size < kPageBytes ? size : kPageBytes;
    const size_t begin = (used_ + alignment - 1) / alignment * alignment;
    if (size > kReservedBytes - begin) return nullptr;
    block.begin = base_ + begin;
    used_ = begin + size;
    if (open_) Open(true);
  }
  ++live_blocks_;
  if (open_) {
    Fill(block);
  } else {
    allocated_.push_back(block);
  }
  return block.begin;
}

void IsolatedMemory::Region::Deallocate(void* memory, size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(memory_->mutex_);
  freed_.push_back({static_cast<char*>(memory), bytes});
  if (--live_blocks_ == 0) Reset();
}

// Frees all blocks. The more memory was ever used, the longer opening and closing take.
void IsolatedMemory::Region::Reset() {
  const bool open = open_;
  Open(true);
  const size_t bytes = (used_ + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (mprotect(base_, bytes, PROT_NONE) != 0) std::abort();
  madvise(base_, bytes, MADV_DONTNEED);
  for (std::vector<char*>& blocks : free_) blocks.clear();
  used_ = 0;
  open_ = open;
}

void IsolatedMemory::Region::Open(bool open) {
  open_ = open;
  const size_t bytes = (used_ + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (bytes == 0) return;
  if (mprotect(base_, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) std::abort();
  if (!open) return;
  for (const Block& block : allocated_) Fill(block);
  allocated_.clear();
  for (const Block& block : freed_) {
    Check(block);
    const int bits = ClassOf(block.bytes);
    std::memset(block.begin, kRubbish, block.bytes < kPageBytes ? block.bytes : kPageBytes);
    if (bits >= 18) madvise(block.begin, size_t{1} << bits, MADV_DONTNEED);
    free_[bits].push_back(block.begin);
  }
  freed_.clear();
}

IsolatedMemory::IsolatedMemory() {
  host_.Open(true);
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

IsolatedMemory* IsolatedMemory::Get() {
  static IsolatedMemory* const memory = new IsolatedMemory();
  return memory;
}

void IsolatedMemory::Set(Open open) {
  wanted_ = open;
  if (one_in_ > 1 && changes_++ % one_in_ >= 2) open = Open::kBoth;
  const bool device = open != Open::kHost, host = open != Open::kDevice;
  if (device != (open_ != Open::kHost)) device_.Open(device);
  if (host != (open_ != Open::kDevice)) host_.Open(host);
  open_ = open;
}

IsolatedMemory::Scope::Scope(IsolatedMemory* memory, Open open) : memory_(memory) {
  std::lock_guard<std::recursive_mutex> lock(memory_->mutex_);
  before_ = memory_->wanted_;
  memory_->Set(open);
}

IsolatedMemory::Scope::~Scope() {
  std::lock_guard<std::recursive_mutex> lock(memory_->mutex_);
  memory_->Set(before_);
}

Status IsolatedMemory::CopyIn(const ExecContext&, const void* from, size_t bytes, void* to) {
  const Scope scope(this, Open::kBoth);
  std::memcpy(to, from, bytes);
  return Status();
}

Status IsolatedMemory::CopyOut(const ExecContext&, const void* from, size_t bytes, void* to) {
  const Scope scope(this, Open::kBoth);
  std::memcpy(to, from, bytes);
  return Status();
}

Status IsolatedMemory::CopyWithin(const ExecContext&, const void* from, size_t bytes, void* to) {
  const Scope scope(this, Open::kDevice);
  std::memcpy(to, from, bytes);
  return Status();
}

namespace {

class IsolatedDevice : public EmulatedDevice {
 public:
  using Tile = EmulatedDevice::Tile;
  using Scope = IsolatedMemory::Scope;
  using Open = IsolatedMemory::Open;
  struct Order : EmulatedDevice::Order {
    explicit Order(const IsolatedDevice& device) : EmulatedDevice::Order(device) {}
  };

  explicit IsolatedDevice(bool in_serial = false)
      : EmulatedDevice(IsolatedMemory::Get()->device(), nullptr, in_serial) {}

  void Fill(const ExecContext& context, void* to, int byte, size_t bytes) const {
    const Scope scope(IsolatedMemory::Get(), Open::kDevice);
    EmulatedDevice::Fill(context, to, byte, bytes);
  }
  void CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) const {
    const Scope scope(IsolatedMemory::Get(), Open::kBoth);
    EmulatedDevice::CopyIn(context, host, bytes, device);
  }
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    const Scope scope(IsolatedMemory::Get(), Open::kBoth);
    EmulatedDevice::CopyOut(context, device, bytes, host);
  }
  void CopyLater(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    CopyOut(context, device, bytes, host);
  }
  template <class Kernel>
  void Launch(const ExecContext& context, size_t count, size_t cost, const Kernel& kernel) const {
    const Scope scope(IsolatedMemory::Get(), Open::kDevice);
    EmulatedDevice::Launch(context, count, cost, kernel);
  }
  Status RunningSum(const ExecContext& context, uint32_t* numbers, size_t count) const {
    const Scope scope(IsolatedMemory::Get(), Open::kDevice);
    return EmulatedDevice::RunningSum(context, numbers, count);
  }
  Status Sort(const ExecContext& context, const uint64_t* keys, const uint32_t* values,
              size_t count, int bits, uint64_t* sorted_keys, uint32_t* sorted_values) const {
    const Scope scope(IsolatedMemory::Get(), Open::kDevice);
    return EmulatedDevice::Sort(context, keys, values, count, bits, sorted_keys, sorted_values);
  }
};

}  // namespace

Status NewIsolatedStore(const StoreOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Store>* store) {
  StoreOptions on_host = options;
  on_host.allocator = IsolatedMemory::Get()->host();
  using Device = QueuedDevice<IsolatedDevice>;
  return DeviceStoreImpl<Device>::Create(on_host, device, Device(/*in_serial=*/options.is_cache),
                                         store);
}

std::unique_ptr<DeviceSplit> NewIsolatedSplit() {
  using Device = QueuedDevice<IsolatedDevice>;
  return std::make_unique<DeviceSplitOn<Device>>(Device(), IsolatedMemory::Get()->host());
}

std::unique_ptr<DeviceKeySums> NewIsolatedKeySums() {
  return std::make_unique<DeviceKeySumsOn<IsolatedDevice>>(IsolatedDevice(),
                                                           IsolatedMemory::Get()->host());
}

}  // namespace tf_embed
