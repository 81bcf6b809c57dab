// What the host knows of the number of rows of a table on a device, without asking it: a number
// that they can't exceed. For who writes.
#ifndef TF_EMBED_CC_DEVICE_KNOWN_ROWS_H_
#define TF_EMBED_CC_DEVICE_KNOWN_ROWS_H_

#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/device/device_rows.h"

namespace tf_embed {

template <class Device>
class KnownRows {
 public:
  explicit KnownRows(const Device& device) : echo_(device) {}

  uint64_t most() const { return most_; }

  // There are at most so many, and no write is under way.
  void Set(uint64_t most) { most_ = most; }

  // A write of so many keys comes, and leaves at most `most` rows.
  void Offer(uint64_t keys, uint64_t most) {
    offered_ += keys;
    most_ = most;
  }

  // Has the device tell their number when it comes there, behind the writes so far; what it told
  // before is heard first.
  void Ask(const Device& device, const ExecContext& context, const TableCounts* counts) {
    Hear();
    if (echo_.Send(device, context, counts, sizeof(*counts))) asked_at_ = offered_;
  }

  // Takes into account what it has told; false where that is nothing new.
  bool Hear() {
    const void* const told = echo_.Arrived();
    if (told == nullptr) return false;
    const uint64_t heard = static_cast<const TableCounts*>(told)->rows() + (offered_ - asked_at_);
    if (heard >= most_) return false;
    most_ = heard;
    return true;
  }

 private:
  typename Device::Echo echo_;
  uint64_t most_ = 0;
  uint64_t offered_ = 0;  // keys, of all writes
  uint64_t asked_at_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DEVICE_KNOWN_ROWS_H_
