// SPDX-License-Identifier: Apache-2.0
// Work on each table of an op of many tables.
#ifndef TF_EMBED_CC_TF_FOR_EACH_TABLE_H_
#define TF_EMBED_CC_TF_FOR_EACH_TABLE_H_

#include <cstddef>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/first_failure.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

// Whether an op works on so many tables at once that each has one thread.
constexpr bool AreManyTables(size_t num_tables) { return num_tables >= 8; }

// Calls `work(context, table)` for each of `count` tables. Many tables run in parallel with one
// thread each; a few run in turn with many threads each. The cost estimate is `num_keys / count`
// keys a table at `key_cost` nanoseconds each.
//
// REQUIRES: `exec` holds the tables that `work` uses, if any (HeldTables, HeldStores), because
// parallel work runs on pool threads.
template <typename Work>
absl::Status ForEachTable(const ExecContext& exec, size_t count, size_t num_keys, size_t key_cost,
                          const Work& work) {
  if (!AreManyTables(count)) {
    for (size_t i = 0; i < count; ++i) TF_RETURN_IF_ERROR(ToTensorFlow(work(exec, i)));
    return absl::OkStatus();
  }
  const ExecContext serial = exec.InSerial();
  FirstFailure failure;
  const auto some = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end && !failure.failed(); ++i) {
      Status status;
      try {
        status = work(serial, i);
      } catch (const std::bad_alloc&) {
        status = Status::ResourceExhausted(
            [] { return std::string("No memory for the gradients of many tables."); });
      }
      if (!status.ok()) failure.Note(std::move(status));
    }
  };
  exec.parallel_for(count, key_cost * (num_keys / count + 1), std::cref(some));
  return ToTensorFlow(failure.Take());
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_FOR_EACH_TABLE_H_
