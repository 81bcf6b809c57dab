// SPDX-License-Identifier: Apache-2.0
// Messages of a Redis cluster about its slots: replies to CLUSTER SLOTS and CLUSTER NODES, and
// redirections.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/stores/redis/client/cluster.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

const redis::Address kFrom{"127.0.0.1", 6379};

void CheckSlots(const redis::SlotMap& slots) {
  Require(!slots.with_slots().empty(), "some server has slots");
  for (int slot = 0; slot < redis::kSlots; slot += 97) {
    const int server = slots.ServerOf(slot);
    Require(server >= 0 && server < slots.num_addresses(), "a slot is on a server that is known");
  }
  for (const int server : slots.with_slots()) {
    Require(server >= 0 && server < slots.num_addresses(), "servers with slots are known");
  }
}

bool ReadSlots(std::string_view bytes) {
  struct Free {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };
  const std::unique_ptr<redisReader, Free> reader(redisReaderCreate());
  redis::LimitElements(reader.get());
  if (redisReaderFeed(reader.get(), bytes.data(), bytes.size()) != REDIS_OK) return false;
  redis::SlotMap slots(kFrom);
  bool taken = false;
  for (void* received = nullptr; redisReaderGetReply(reader.get(), &received) == REDIS_OK;) {
    if (received == nullptr) break;
    const redis::Reply reply(static_cast<redisReply*>(received));
    taken = slots.Update(*reply, kFrom);
    CheckSlots(slots);
  }
  return taken;
}

bool ReadRedirection(std::string_view bytes) {
  int slot;
  redis::Address address;
  if (!redis::ParseRedirection(std::string(bytes), kFrom, &slot, &address)) return false;
  Require(slot >= 0 && slot < redis::kSlots, "a slot is one");
  redis::SlotMap slots(kFrom);
  slots.Move(slot, address);
  CheckSlots(slots);
  Require(redis::SlotOf(bytes.data(), bytes.size()) < redis::kSlots, "a key has a slot");
  return true;
}

bool ReadNodes(std::string_view bytes) {
  std::string state;
  bool moving = false;
  const bool taken = redis::ParseNodes(std::string(bytes), &state, &moving);
  Require(taken == !state.empty(), "a server that is known has a state");
  Require(!moving || state.find('[') != std::string::npos, "a slot that moves is in the state");
  return taken;
}

}  // namespace

bool Read(std::string_view bytes) {
  const bool taken = ReadSlots(bytes);
  const bool nodes = ReadNodes(bytes);
  return ReadRedirection(bytes) || taken || nodes;
}

std::vector<std::string> Seeds() {
  return {
      "*2\r\n*3\r\n:0\r\n:5460\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n"
      "*3\r\n:5461\r\n:16383\r\n*2\r\n$0\r\n\r\n:7001\r\n",
      "MOVED 3999 127.0.0.1:6381",
      "ASK 3999 :6381",
      "07c3 127.0.0.1:30004@31004 slave e7d1 0 1426238317239 4 connected\n"
      "e7d1 127.0.0.1:30001@31001,host myself,master - 0 0 1 connected 0-5460 [93->-292f]\n",
  };
}

}  // namespace tf_embed::fuzz
