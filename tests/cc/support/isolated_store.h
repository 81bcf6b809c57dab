// SPDX-License-Identifier: Apache-2.0
// A DeviceStore on the host with isolated memory, like a GPU's. Device memory can't be touched
// outside of launches and copies, and memory from the host's allocator can't be touched within
// launches. A violation ends the process, and the message names the side. A write beyond the end of
// an array also ends the process, once the array is freed.
//
// Memory is opened for the whole process, so only one thread at a time may call verbs.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_ISOLATED_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_ISOLATED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"

namespace tf_embed {

class IsolatedMemory final : public DeviceMemory {
 public:
  static IsolatedMemory* Get();  // the process's memory

  // The memory that may be touched.
  enum class Open : uint8_t { kHost, kDevice, kBoth };
  class Scope {
   public:
    Scope(IsolatedMemory* memory, Open open);
    ~Scope();

   private:
    IsolatedMemory* memory_;
    Open before_;
  };

  // Isolates the two memories in two consecutive changes of side out of `changes`. Both are open in
  // the other changes, because isolation takes longer than most verbs. 1: always.
  void set_one_in(uint64_t changes) { one_in_ = changes; }

  Allocator* device() { return &device_; }
  Allocator* host() { return &host_; }
  bool IsDevices(const void* address) const { return device_.Has(address); }
  bool IsHosts(const void* address) const { return host_.Has(address); }

  void* Allocate(const ExecContext&, size_t bytes) override { return device_.Allocate(bytes); }
  void Free(const ExecContext&, void* memory, size_t bytes) override {
    device_.Deallocate(memory, bytes);
  }
  Status CopyIn(const ExecContext& context, const void* from, size_t bytes, void* to) override;
  Status CopyOut(const ExecContext& context, const void* from, size_t bytes, void* to) override;
  Status CopyWithin(const ExecContext& context, const void* from, size_t bytes, void* to) override;
  Status Wait(const ExecContext&) override { return Status(); }

 private:
  // Blocks of powers of two, from a reserved range of addresses. Opening and closing take time, so
  // blocks are filled and checked when the region is open for other reasons.
  class Region final : public Allocator {
   public:
    explicit Region(IsolatedMemory* memory);
    void* Allocate(size_t bytes) override;
    void Deallocate(void* memory, size_t bytes) override;
    bool Has(const void* address) const {
      return address >= base_ && address < base_ + kReservedBytes;
    }
    void Open(bool open);

   private:
    struct Block {
      char* begin;
      size_t bytes;
    };
    static constexpr size_t kReservedBytes = size_t{4} << 30;
    static constexpr size_t kMarginBytes = 64;
    static constexpr int kClasses = 48;

    static int ClassOf(size_t bytes);  // the logarithm of a block's size
    void Fill(const Block& block) const;
    void Check(const Block& block) const;
    void Reset();

    IsolatedMemory* memory_;
    char* base_;
    size_t used_ = 0;
    size_t live_blocks_ = 0;
    bool open_ = false;
    std::vector<char*> free_[kClasses];
    std::vector<Block> allocated_;  // since the region was last open
    std::vector<Block> freed_;
  };

  IsolatedMemory();
  void Set(Open open);

  std::recursive_mutex mutex_;
  uint64_t one_in_ = 1;
  uint64_t changes_ = 0;
  Open wanted_ = Open::kHost;
  Open open_ = Open::kHost;
  Region device_{this};
  Region host_{this};
};

Status NewIsolatedStore(const StoreOptions& options, const DeviceOptions& device,
                        std::unique_ptr<Store>* store);
std::unique_ptr<DeviceSplit> NewIsolatedSplit();
std::unique_ptr<DeviceKeySums> NewIsolatedKeySums();

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_ISOLATED_STORE_H_
