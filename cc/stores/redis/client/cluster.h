// SPDX-License-Identifier: Apache-2.0
// The map from key slots to servers. Not thread-safe.
#ifndef TF_EMBED_CC_STORES_REDIS_CLIENT_CLUSTER_H_
#define TF_EMBED_CC_STORES_REDIS_CLIENT_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/stores/redis/client/connection.h"

namespace tf_embed {
namespace redis {

inline constexpr int kSlots = 16384;

// The slot of a key: the CRC16 of the key, or of the part in its first braces.
int SlotOf(const char* key, size_t size);

// The server number of each slot, and all servers with slots, by number. Numbers are never reused.
class SlotMap {
 public:
  // Assigns all slots to one server.
  explicit SlotMap(const Address& address);

  // Applies a CLUSTER SLOTS reply from `from`. Returns false if it is malformed.
  bool Update(const redisReply& reply, const Address& from);
  // Records that a slot has moved.
  void Move(int slot, const Address& address);

  // The number of a server, assigned on first use.
  int NumberOf(const Address& address);
  const Address& address(int number) const { return addresses_[number]; }
  int num_addresses() const { return static_cast<int>(addresses_.size()); }

  int ServerOf(int slot) const { return server_of_[slot]; }
  const std::vector<int>& with_slots() const { return with_slots_; }
  // Changes with the map.
  uint64_t version() const { return version_; }

 private:
  std::vector<Address> addresses_;
  std::vector<int> server_of_;  // by slot
  std::vector<int> with_slots_;
  uint64_t version_ = 0;
};

// Parses "MOVED 3999 127.0.0.1:6381" or "ASK ...", received from `from`. Returns false for other
// text.
bool ParseRedirection(const std::string& text, const Address& from, int* slot, Address* address);

// Parses a CLUSTER NODES reply. Adds the name and the slots of the server that gave it to `state`.
// Sets `moving` if some of its slots are moving from or to another server. Returns false for other
// text.
bool ParseNodes(const std::string& nodes, std::string* state, bool* moving);

}  // namespace redis
}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_CLIENT_CLUSTER_H_
