// SPDX-License-Identifier: Apache-2.0
// An array in the memory of a device, for tests.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_ON_DEVICE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_ON_DEVICE_H_

#include <gtest/gtest.h>

#include <vector>

#include "cc/stores/device/host_access_store.h"

namespace tf_embed {

template <typename T>
class OnDevice {
 public:
  OnDevice(DeviceMemory* memory, const std::vector<T>& values)
      : memory_(memory),
        size_(values.size()),
        data_(static_cast<T*>(memory->Allocate(ExecContext::Serial(), bytes() + 1))) {
    Write(values);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { memory_->Free(ExecContext::Serial(), data_, bytes() + 1); }

  T* data() const { return data_; }
  // Writes all values. REQUIRES: as many values as the array has.
  void Write(const std::vector<T>& values) const {
    EXPECT_EQ(size_, values.size());
    EXPECT_TRUE(memory_->CopyIn(ExecContext::Serial(), values.data(), bytes(), data_).ok());
  }
  std::vector<T> Values() const {
    std::vector<T> values(size_);
    EXPECT_TRUE(memory_->CopyOut(ExecContext::Serial(), data_, bytes(), values.data()).ok());
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }

  DeviceMemory* memory_;
  size_t size_;
  T* data_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_ON_DEVICE_H_
