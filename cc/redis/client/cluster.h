// SPDX-License-Identifier: Apache-2.0
// Which server has which slots of keys. Not thread-safe.
#ifndef TF_EMBED_CC_REDIS_CLIENT_CLUSTER_H_
#define TF_EMBED_CC_REDIS_CLIENT_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/redis/client/connection.h"

namespace tf_embed {
namespace redis {

inline constexpr int kSlots = 16384;

// The slot of a key: CRC16 of it, or of what is between its first braces.
int SlotOf(const char* key, size_t size);

// The numbers of servers by slot, and those of all that have slots. Numbers are never given anew.
class SlotMap {
 public:
  // One server with all slots.
  explicit SlotMap(const Address& address);

  // Takes over a reply of CLUSTER SLOTS, which `from` gave. False: it is none.
  bool Update(const redisReply& reply, const Address& from);
  // Notes that a slot has moved.
  void Move(int slot, const Address& address) { server_of_[slot] = NumberOf(address); }

  // The number of a server, which may be a new one.
  int NumberOf(const Address& address);
  const Address& address(int number) const { return addresses_[number]; }
  int num_addresses() const { return static_cast<int>(addresses_.size()); }

  int ServerOf(int slot) const { return server_of_[slot]; }
  const std::vector<int>& with_slots() const { return with_slots_; }

 private:
  std::vector<Address> addresses_;
  std::vector<int> server_of_;  // by slot
  std::vector<int> with_slots_;
};

// Reads "MOVED 3999 127.0.0.1:6381" or "ASK ...", which `from` gave. False: it is none.
bool ParseRedirection(const std::string& text, const Address& from, int* slot, Address* address);

}  // namespace redis
}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_CLIENT_CLUSTER_H_
