// Where a verb may run its work: the caller's thread pool. The core makes no threads.
#ifndef TF_EMBED_CC_CORE_EXEC_CONTEXT_H_
#define TF_EMBED_CC_CORE_EXEC_CONTEXT_H_

#include <cstddef>
#include <functional>

namespace tf_embed {

struct ExecContext {
  // Calls `work(begin, end)` over disjoint ranges that make up [0, total), perhaps at once, and
  // returns when all are done. `cost` is the cost of one unit in nanoseconds, roughly. `work` holds
  // a reference (std::cref) wherever the core makes it: a lambda might need memory, and throw.
  using Work = std::function<void(size_t begin, size_t end)>;
  std::function<void(size_t total, size_t cost, const Work& work)> parallel_for;

  // Everything in the calling thread.
  static ExecContext Serial() {
    return ExecContext{[](size_t total, size_t, const Work& work) {
      if (total > 0) work(0, total);
    }};
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_EXEC_CONTEXT_H_
