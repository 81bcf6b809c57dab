// Lets many operations in, or one alone. Whoever wants to be alone is not overtaken by later
// comers for ever: all pass a turnstile first, which the lone one holds while it waits.
#ifndef TF_EMBED_CC_CORE_OPERATION_GATE_H_
#define TF_EMBED_CC_CORE_OPERATION_GATE_H_

#include <mutex>
#include <shared_mutex>

namespace tf_embed {

class OperationGate {
 public:
  void lock_shared() {
    std::lock_guard<std::mutex> pass(turnstile_);
    inside_.lock_shared();
  }
  void unlock_shared() { inside_.unlock_shared(); }

  void lock() {
    std::lock_guard<std::mutex> hold(turnstile_);
    inside_.lock();
  }
  bool try_lock() {
    std::unique_lock<std::mutex> hold(turnstile_, std::try_to_lock);
    return hold.owns_lock() && inside_.try_lock();
  }
  void unlock() { inside_.unlock(); }

 private:
  std::mutex turnstile_;
  std::shared_mutex inside_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_OPERATION_GATE_H_
