// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cc/stores/redis/client/connection.h"

namespace tf_embed {
namespace redis {
namespace {

// More than any request asks for, which is a piece of a batch or a part of a scan.
constexpr int64_t kMostElements = int64_t{1} << 22;

// The type of the number of elements differs between versions of hiredis.
template <typename Number>
struct Limited {
  using Create = void* (*)(const redisReadTask*, Number);

  static void* Array(const redisReadTask* task, Number elements) {
    const bool fits = elements >= 0 && static_cast<int64_t>(elements) <= kMostElements;
    return fits ? usual(task, elements) : nullptr;
  }

  inline static Create usual = nullptr;
};

template <typename Number>
void Limit(void* (**create)(const redisReadTask*, Number)) {
  Limited<Number>::usual = *create;
  *create = Limited<Number>::Array;
}

}  // namespace

void LimitElements(redisReader* reader) {
  // All readers begin with the same functions.
  static redisReplyObjectFunctions functions = [reader] {
    redisReplyObjectFunctions limited = *reader->fn;
    Limit(&limited.createArray);
    return limited;
  }();
  reader->fn = &functions;
}

}  // namespace redis
}  // namespace tf_embed
