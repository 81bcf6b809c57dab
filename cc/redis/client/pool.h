// SPDX-License-Identifier: Apache-2.0
// The connections to one server. Thread-safe.
#ifndef TF_EMBED_CC_REDIS_CLIENT_POOL_H_
#define TF_EMBED_CC_REDIS_CLIENT_POOL_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/redis/client/connection.h"

namespace tf_embed {
namespace redis {

class Pool {
 public:
  Pool(const Settings& settings, const Address& address) : settings_(settings), address_(address) {}

  const Address& address() const { return address_; }

  // A connection in exclusive use. The destructor returns it to the pool, unless it is broken.
  class Lease {
   public:
    Lease(Pool* pool, std::unique_ptr<Connection> connection)
        : pool_(pool), connection_(std::move(connection)) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), connection_(std::move(other.connection_)) {}
    ~Lease() {
      if (pool_ != nullptr) pool_->GiveBack(std::move(connection_));
    }
    Connection* operator->() const { return connection_.get(); }
    // Drops the connection: replies are outstanding, or it is lost.
    void Break() { connection_.reset(); }

   private:
    Pool* pool_;
    std::unique_ptr<Connection> connection_;
  };

  // Takes an idle connection or makes one. Waits if the limit is reached.
  Failure Take(std::vector<Lease>* leases) {
    std::unique_ptr<Connection> connection;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !idle_.empty() || taken_ < settings_.max_connections; });
      ++taken_;
      while (!idle_.empty() && connection == nullptr) {
        connection = std::move(idle_.back());
        idle_.pop_back();
        // For example after a server restart.
        if (connection->IsClosed()) connection.reset();
      }
    }
    Failure failure;
    if (connection == nullptr) failure = Connection::Open(settings_, address_, &connection);
    if (failure.ok()) {
      leases->emplace_back(this, std::move(connection));
    } else {
      GiveBack(nullptr);
    }
    return failure;
  }

 private:
  void GiveBack(std::unique_ptr<Connection> connection) {
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
  int taken_ = 0;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace redis
}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_CLIENT_POOL_H_
