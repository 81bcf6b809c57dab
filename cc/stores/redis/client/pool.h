// SPDX-License-Identifier: Apache-2.0
// The connections to one server. Thread-safe. A child of fork() makes its own connections.
#ifndef TF_EMBED_CC_STORES_REDIS_CLIENT_POOL_H_
#define TF_EMBED_CC_STORES_REDIS_CLIENT_POOL_H_

#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/stores/redis/client/connection.h"

namespace tf_embed {
namespace redis {

class Pool {
 public:
  Pool(const Settings& settings, const Address& address) : settings_(settings), address_(address) {}

  const Address& address() const { return address_; }

  // A connection in exclusive use. The destructor returns it to the pool if it is clean, and drops
  // it otherwise. So an exception never leaves replies for the next caller.
  class Lease {
   public:
    Lease(Pool* pool, std::unique_ptr<Connection> connection)
        : pool_(pool), connection_(std::move(connection)) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          connection_(std::move(other.connection_)),
          is_clean_(other.is_clean_) {}
    ~Lease() {
      if (!is_clean_) connection_.reset();
      if (pool_ != nullptr) pool_->GiveBack(std::move(connection_));
    }
    Connection* operator->() const { return connection_.get(); }
    // Says that the connection works and no reply is outstanding.
    void Clean() { is_clean_ = true; }

   private:
    friend class Pool;

    Pool* pool_;
    std::unique_ptr<Connection> connection_;
    bool is_clean_ = false;
  };

  // Takes an idle connection, or opens a new connection. Waits if the limit is reached.
  Failure Take(std::vector<Lease>* leases) {
    std::unique_ptr<Connection> connection;
    leases->reserve(leases->size() + 1);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      LeaveToParent();
      changed_.wait(lock, [this] { return !idle_.empty() || taken_ < settings_.max_connections; });
      // Makes room for all connections now, because GiveBack must not fail.
      idle_.reserve(idle_.size() + static_cast<size_t>(taken_) + 1);
      while (!idle_.empty() && connection == nullptr) {
        connection = std::move(idle_.back());
        idle_.pop_back();
        // For example after a server restart.
        if (connection->IsClosed()) connection.reset();
      }
      ++taken_;
    }
    Lease& lease = leases->emplace_back(this, std::move(connection));
    if (lease.connection_ != nullptr) return {};
    Failure failure = Connection::Open(settings_, address_, &lease.connection_);
    if (!failure.ok()) leases->pop_back();
    return failure;
  }

 private:
  // Drops the connections inherited through a fork, which belong to the parent: parent and child
  // would read each other's replies. Closing them sends nothing. REQUIRES: the mutex held.
  void LeaveToParent() {
    const pid_t process = getpid();
    if (process == process_) return;
    process_ = process;
    idle_.clear();
    taken_ = 0;
  }

  void GiveBack(std::unique_ptr<Connection> connection) noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --taken_;
      if (connection != nullptr) idle_.push_back(std::move(connection));
    }
    changed_.notify_one();
  }

  const Settings& settings_;
  const Address address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  pid_t process_ = getpid();  // owns the connections
  int taken_ = 0;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace redis
}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_CLIENT_POOL_H_
