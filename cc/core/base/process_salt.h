// SPDX-License-Identifier: Apache-2.0
// A number that is not known outside the process.
#ifndef TF_EMBED_CC_CORE_BASE_PROCESS_SALT_H_
#define TF_EMBED_CC_CORE_BASE_PROCESS_SALT_H_

#include <chrono>
#include <cstdint>

#include "cc/core/base/hash.h"

namespace tf_embed {

// Differs from process to process, so that an attacker cannot choose keys that collide in one
// chain. No result depends on it.
inline uint64_t ProcessSalt() {
  static const uint64_t salt =
      Mix64(static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
            reinterpret_cast<uintptr_t>(&salt));
  return salt;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_PROCESS_SALT_H_
