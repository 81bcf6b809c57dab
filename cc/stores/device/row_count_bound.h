// SPDX-License-Identifier: Apache-2.0
// An upper bound on the number of rows of a store on a device, which the host knows without asking
// the device. If it leaves room for a batch, kernels write its new rows without a check, so the
// bound must never be too low. REQUIRES: a writer's locks.
#ifndef TF_EMBED_CC_STORES_DEVICE_ROW_COUNT_BOUND_H_
#define TF_EMBED_CC_STORES_DEVICE_ROW_COUNT_BOUND_H_

#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/stores/device/device_rows.h"

namespace tf_embed {

template <class Device>
class RowCountBound {
 public:
  explicit RowCountBound(const Device& device) : readback_(device) {}

  uint64_t most() const { return most_; }

  // Sets the bound. REQUIRES: no write is in flight.
  void Set(uint64_t most) { most_ = most; }

  // Announces a write of `keys` keys, after which there are at most `most` rows.
  void Reserve(uint64_t keys, uint64_t most) {
    reserved_ += keys;
    most_ = most;
  }

  // Asks the device to send the number of rows, after the writes so far. First takes an earlier
  // answer into account.
  void RequestUpdate(const Device& device, const ExecContext& context, const StoreCounts* counts) {
    // A readback in flight blocks the next readback, so take an arrived answer before sending.
    Poll();
    // The copy is queued after this write, so the count includes all keys reserved so far.
    if (readback_.Send(device, context, counts, sizeof(*counts))) requested_at_ = reserved_;
  }

  // Takes an arrived answer into account. Returns false if there is none.
  bool Poll() {
    const void* const arrived = readback_.Arrived();
    if (arrived == nullptr) return false;
    // Keys reserved since the request may all be new. An answer from before a Clear or a Set is too
    // high, never too low, so the minimum below is always right.
    const uint64_t bound =
        static_cast<const StoreCounts*>(arrived)->rows() + (reserved_ - requested_at_);
    if (bound >= most_) return false;
    most_ = bound;
    return true;
  }

 private:
  typename Device::AsyncReadback readback_;
  uint64_t most_ = 0;
  uint64_t reserved_ = 0;  // keys of all writes
  uint64_t requested_at_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_ROW_COUNT_BOUND_H_
