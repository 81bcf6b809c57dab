// SPDX-License-Identifier: Apache-2.0
#ifndef TF_EMBED_CC_TF_MOST_WORKERS_H_
#define TF_EMBED_CC_TF_MOST_WORKERS_H_

#include <cstdint>

namespace tf_embed {

// The most workers that exchange data. Low enough that the totals over all workers fit in 64 bits.
constexpr int64_t kMostWorkers = 1 << 16;

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_MOST_WORKERS_H_
