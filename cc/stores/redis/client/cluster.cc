// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/client/cluster.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace tf_embed {
namespace redis {

int SlotOf(const char* key, size_t size) {
  if (const auto* open = static_cast<const char*>(std::memchr(key, '{', size))) {
    const size_t rest = size - static_cast<size_t>(open + 1 - key);
    const auto* const close = static_cast<const char*>(std::memchr(open + 1, '}', rest));
    if (close != nullptr && close != open + 1) {
      key = open + 1;
      size = static_cast<size_t>(close - key);
    }
  }
  // CRC16 with the polynomial x^16 + x^12 + x^5 + 1 (XMODEM), bit by bit. A lookup table would not
  // pay, because slice keys are few.
  uint32_t crc = 0;
  for (size_t i = 0; i < size; ++i) {
    crc ^= static_cast<uint32_t>(static_cast<unsigned char>(key[i])) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = crc << 1 ^ (crc & 0x8000u ? 0x1021u : 0u);
  }
  return static_cast<int>(crc & 0xffffu) % kSlots;
}

SlotMap::SlotMap(const Address& address)
    : addresses_{address}, server_of_(kSlots, 0), with_slots_{0} {}

int SlotMap::NumberOf(const Address& address) {
  const auto found = std::find(addresses_.begin(), addresses_.end(), address);
  const int number = static_cast<int>(found - addresses_.begin());
  if (found == addresses_.end()) addresses_.push_back(address);
  return number;
}

bool SlotMap::Update(const redisReply& reply, const Address& from) {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements == 0) return false;
  std::vector<int> server_of = server_of_, with_slots;
  for (size_t i = 0; i < reply.elements; ++i) {
    // First slot, last slot, the master (address, port, ...), its replicas.
    const redisReply& range = *reply.element[i];
    if (range.type != REDIS_REPLY_ARRAY || range.elements < 3) return false;
    const redisReply& master = *range.element[2];
    if (range.element[0]->type != REDIS_REPLY_INTEGER ||
        range.element[1]->type != REDIS_REPLY_INTEGER || master.type != REDIS_REPLY_ARRAY ||
        master.elements < 2 || master.element[1]->type != REDIS_REPLY_INTEGER) {
      return false;
    }
    const long long first = range.element[0]->integer, last = range.element[1]->integer;
    if (first < 0 || last < first || last >= kSlots) return false;
    // A server that does not know its address is reachable at the address that was asked.
    const redisReply& host = *master.element[0];
    const bool has_host = host.type == REDIS_REPLY_STRING && host.len > 0;
    const int number = NumberOf(
        {has_host ? TextOf(host) : from.host, static_cast<int>(master.element[1]->integer)});
    std::fill(server_of.begin() + first, server_of.begin() + last + 1, number);
    if (std::find(with_slots.begin(), with_slots.end(), number) == with_slots.end()) {
      with_slots.push_back(number);
    }
  }
  // Each server lists the ranges in a different order.
  std::sort(with_slots.begin(), with_slots.end());
  if (server_of != server_of_ || with_slots != with_slots_) ++version_;
  server_of_ = std::move(server_of);
  with_slots_ = std::move(with_slots);
  return true;
}

void SlotMap::Move(int slot, const Address& address) {
  const int number = NumberOf(address);
  if (server_of_[slot] == number) return;
  const auto place = std::lower_bound(with_slots_.begin(), with_slots_.end(), number);
  if (place == with_slots_.end() || *place != number) with_slots_.insert(place, number);
  server_of_[slot] = number;
  ++version_;
}

bool ParseRedirection(const std::string& text, const Address& from, int* slot, Address* address) {
  int host_begin = 0;
  if (std::sscanf(text.c_str(), "%*[A-Z] %d %n", slot, &host_begin) != 1 || host_begin == 0 ||
      *slot < 0 || *slot >= kSlots) {
    return false;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon < static_cast<size_t>(host_begin)) return false;
  address->host = text.substr(host_begin, colon - host_begin);
  if (address->host.empty()) address->host = from.host;
  return std::sscanf(text.c_str() + colon + 1, "%d", &address->port) == 1;
}

bool ParseNodes(const std::string& nodes, std::string* state, bool* moving) {
  std::istringstream lines(nodes);
  for (std::string line; std::getline(lines, line);) {
    // Name, address, flags, master, ping, pong, epoch, state of the link, slots.
    std::istringstream words(line);
    std::string name, flags, other, slots;
    words >> name >> other >> flags;
    if (flags.rfind("myself", 0) != 0) continue;
    words >> other >> other >> other >> other >> other;
    if (!words) return false;
    std::getline(words, slots);  // empty on a replica
    *state += name + slots + '\n';
    *moving = slots.find('[') != std::string::npos;
    return true;
  }
  return false;
}

}  // namespace redis
}  // namespace tf_embed
