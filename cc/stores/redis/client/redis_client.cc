// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/client/redis_client.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/stores/redis/client/cluster.h"
#include "cc/stores/redis/client/connection.h"
#include "cc/stores/redis/client/pool.h"

namespace {

using Clock = std::chrono::steady_clock;
using tf_embed::redis::Address;
using tf_embed::redis::Connection;
using tf_embed::redis::Failure;
using tf_embed::redis::ParseNodes;
using tf_embed::redis::ParseRedirection;
using tf_embed::redis::Pool;
using tf_embed::redis::Reply;
using tf_embed::redis::Settings;
using tf_embed::redis::SlotMap;
using tf_embed::redis::SlotOf;
using tf_embed::redis::TextOf;

// Limit on commands sent before replies are read, because the server buffers replies in memory.
constexpr size_t kWindowCommands = 64;
constexpr size_t kWindowBytes = size_t{1} << 22;

// Blocks SIGPIPE, so that a write to a closed connection fails instead of ending the process.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

// A command without a reply so far.
struct Pending {
  size_t index;
  int server;
  bool asking;  // its slot is migrating to that server
};

// The replies of one command, as the caller receives them.
class ReplyView {
 public:
  const TfEmbedRedisReply* Of(const redisReply& reply) {
    whole_ = Shallow(reply);
    elements_.clear();
    inner_.clear();
    for (size_t i = 0; i < reply.elements; ++i) inner_.emplace_back();
    for (size_t i = 0; i < reply.elements; ++i) {
      const redisReply& element = *reply.element[i];
      elements_.push_back(Shallow(element));
      for (size_t j = 0; j < element.elements; ++j) {
        inner_[i].push_back(Shallow(*element.element[j]));  // no reply is deeper
      }
      elements_.back().elements = inner_[i].data();
      elements_.back().num_elements = inner_[i].size();
    }
    whole_.elements = elements_.data();
    whole_.num_elements = elements_.size();
    return &whole_;
  }

 private:
  static TfEmbedRedisReply Shallow(const redisReply& reply) {
    TfEmbedRedisReply view{};
    view.integer = reply.integer;
    view.bytes = {reply.str, reply.str == nullptr ? 0 : static_cast<size_t>(reply.len)};
    switch (reply.type) {
      case REDIS_REPLY_INTEGER:
        view.type = TF_EMBED_REDIS_INTEGER;
        break;
      case REDIS_REPLY_STRING:
      case REDIS_REPLY_STATUS:
        view.type = TF_EMBED_REDIS_BYTES;
        break;
      case REDIS_REPLY_ERROR:
        view.type = TF_EMBED_REDIS_ERROR;
        break;
      case REDIS_REPLY_ARRAY:
        view.type = TF_EMBED_REDIS_ARRAY;
        break;
      default:
        view.type = TF_EMBED_REDIS_NIL;
    }
    return view;
  }

  TfEmbedRedisReply whole_;
  std::vector<TfEmbedRedisReply> elements_;
  std::vector<std::vector<TfEmbedRedisReply>> inner_;
};

bool StartsWith(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// The start of the error of a server that still reads its data from a file.
constexpr char kLoading[] = "LOADING ";

Failure NotReady(const Address& address, const std::string& text) {
  return {TF_EMBED_REDIS_LOST,
          "The Redis server at " + address.ToString() + " is not ready: " + text, true};
}

// The first occurrence of `start` with the rest of its line; "" if there is none.
std::string LineOf(const std::string& text, const char* start) {
  const size_t begin = text.find(start);
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

size_t BytesOf(const TfEmbedRedisCommand& command) {
  size_t bytes = 0;
  for (size_t i = 0; i < command.num_parts; ++i) bytes += command.parts[i].size;
  return bytes;
}

}  // namespace

struct TfEmbedRedisClient {
 public:
  explicit TfEmbedRedisClient(const TfEmbedRedisServer& server)
      : settings_(server), slots_(settings_.address) {}

  Failure Open() {
    if (settings_.is_cluster) return LearnSlots();
    std::vector<Pool::Lease> leases;
    Failure failure = PoolOf(0)->Take(&leases);
    if (failure.ok()) leases[0].Clean();
    return failure;
  }

  Failure Run(const TfEmbedRedisCommand* commands, size_t count, void* receiver,
              TfEmbedRedisReceive receive) {
    std::vector<Pending> pending(count);
    for (size_t i = 0; i < count; ++i) pending[i] = {i, ServerOf(commands[i].slot), false};
    const Call call{commands, receiver, receive};
    const auto deadline = Clock::now() + std::chrono::milliseconds(settings_.timeout_ms);
    for (int broken = 0; !pending.empty();) {
      Round round;
      Failure failure = RunRound(call, pending, &round);
      if (!failure.ok()) {
        // Retry once: a pooled connection may have broken long ago. If the fresh connection breaks
        // too, that is an error.
        if (failure.timed_out || failure.code != TF_EMBED_REDIS_LOST || ++broken > 1) {
          return failure;
        }
        if (settings_.is_cluster) {
          if (Failure unknown = LearnSlots(); !unknown.ok()) return unknown;
        }
      }
      if (round.must_wait) {
        if (Clock::now() >= deadline) return round.not_ready;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      if (settings_.is_cluster && (round.must_wait || !failure.ok())) {
        for (Pending& one : round.again) {
          if (!one.asking) one.server = ServerOf(commands[one.index].slot);
        }
      }
      pending = std::move(round.again);
    }
    return {};
  }

  Failure LearnServers(size_t* servers, uint64_t* version) {
    std::vector<int> asked = {0};
    std::string state;
    if (settings_.is_cluster) {
      if (Failure unknown = LearnSlots(); !unknown.ok()) return unknown;
      const std::lock_guard<std::mutex> lock(mutex_);
      asked = slots_.with_slots();
      state = std::to_string(slots_.version()) + '\n';
    }
    std::vector<Answer> nodes(settings_.is_cluster ? asked.size() : 0), infos(asked.size());
    if (Failure failure = AskAll({{"CLUSTER", 7}, {"NODES", 5}}, &nodes); !failure.ok()) {
      return failure;
    }
    if (Failure failure = AskAll({{"INFO", 4}, {"server", 6}}, &infos); !failure.ok()) {
      return failure;
    }
    // Ask each server for its own slots: the server that gave the slot map may not know of recent
    // moves.
    for (size_t i = 0; i < nodes.size(); ++i) {
      Failure failure = AddSlots(PoolOf(asked[i])->address(), nodes[i], &state);
      if (!failure.ok()) return failure;
    }
    for (const Answer& info : infos) {
      if (info.is_text) state += LineOf(info.text, "run_id:");
    }
    *servers = asked.size();
    *version = std::hash<std::string>()(state);
    return {};
  }

 private:
  struct Call {
    const TfEmbedRedisCommand* commands;
    void* receiver;
    TfEmbedRedisReceive receive;
  };

  // The reply to a question of the client itself.
  struct Answer {
    bool is_text = false, is_error = false;
    std::string text;
  };

  // The remaining work after all pending commands were sent once.
  struct Round {
    std::vector<Pending> again;
    bool must_wait = false;
    Failure not_ready;  // the reason
  };

  // The commands in flight to one server.
  struct Channel {
    Pool* pool;
    std::vector<Pending> commands;
    size_t sent = 0, received = 0;
  };

  Pool* PoolOf(int server) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (static_cast<int>(pools_.size()) <= server) {
      const int number = static_cast<int>(pools_.size());
      pools_.push_back(std::make_unique<Pool>(settings_, slots_.address(number)));
    }
    return pools_[server].get();
  }

  int ServerOf(int32_t slot) {
    if (!settings_.is_cluster) return 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (slot >= 0) return slots_.ServerOf(slot);
    const std::vector<int>& all = slots_.with_slots();
    return all[std::min<size_t>(static_cast<size_t>(~slot), all.size() - 1)];
  }

  // Asks for the slot map. Waits while the servers that could give it still load their data.
  Failure LearnSlots() {
    const auto deadline = Clock::now() + std::chrono::milliseconds(settings_.timeout_ms);
    for (;;) {
      bool loading = false;
      Failure failure = AskForSlots(&loading);
      if (failure.ok() || !loading || Clock::now() >= deadline) return failure;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // Asks the known servers in turn, first the servers with slots, because the others may have left
  // the cluster.
  Failure AskForSlots(bool* loading) {
    Failure first;
    std::vector<int> order;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const std::vector<int>& with_slots = slots_.with_slots();
      order = with_slots;
      for (int server = 0; server < slots_.num_addresses(); ++server) {
        if (!std::binary_search(with_slots.begin(), with_slots.end(), server)) {
          order.push_back(server);
        }
      }
    }
    for (const int server : order) {
      std::vector<Pool::Lease> leases;
      Reply reply;
      Pool* const pool = PoolOf(server);
      Failure failure = pool->Take(&leases);
      if (failure.ok()) {
        failure = leases[0]->Ask({"CLUSTER", "SLOTS"}, &reply);
        if (failure.ok()) leases[0].Clean();
      }
      if (failure.ok()) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (slots_.Update(*reply, pool->address())) return {};
        const std::string text = reply->type == REDIS_REPLY_ERROR ? TextOf(*reply) : "";
        if (StartsWith(text, kLoading)) {
          *loading = true;
          failure = NotReady(pool->address(), text);
        } else {
          failure = {TF_EMBED_REDIS_REFUSED,
                     "The Redis server at " + pool->address().ToString() +
                         " knows of no cluster with slots" +
                         (text.empty() ? "." : ": " + text + "."),
                     false};
        }
      }
      if (first.ok()) first = failure;
    }
    return first;
  }

  // Asks the first servers with slots, as many as there are answers.
  Failure AskAll(const std::vector<TfEmbedRedisBytes>& words, std::vector<Answer>* answers) {
    std::vector<TfEmbedRedisCommand> commands;
    for (size_t i = 0; i < answers->size(); ++i) {
      commands.push_back({words.data(), words.size(), ~static_cast<int32_t>(i)});
    }
    const auto take = [](void* to, size_t index, const TfEmbedRedisReply* reply) {
      static_cast<Answer*>(to)[index] = {reply->type == TF_EMBED_REDIS_BYTES,
                                         reply->type == TF_EMBED_REDIS_ERROR,
                                         std::string(reply->bytes.data, reply->bytes.size)};
    };
    return Run(commands.data(), commands.size(), answers->data(), take);
  }

  // Adds the server's name and slots to `state`. The result differs after slots have moved.
  static Failure AddSlots(const Address& address, const Answer& nodes, std::string* state) {
    bool moving = false;
    if (!nodes.is_text || !ParseNodes(nodes.text, state, &moving)) {
      return {TF_EMBED_REDIS_REFUSED,
              "The Redis server at " + address.ToString() +
                  " does not tell its slots by CLUSTER NODES" +
                  (nodes.is_error ? ": " + nodes.text + "." : "."),
              false};
    }
    if (moving) {
      return {TF_EMBED_REDIS_LOST,
              "Slots of the cluster are moving from or to the server at " + address.ToString() +
                  ", so not all rows can be found. Try again when they have moved.",
              false};
    }
    return {};
  }

  // Sends each command once. Servers work in parallel, each on a window of its commands. After a
  // failure, `again` has all commands without a reply.
  Failure RunRound(const Call& call, const std::vector<Pending>& pending, Round* round) {
    std::map<int, Channel> channels;
    for (const Pending& one : pending) channels[one.server].commands.push_back(one);
    Failure failure;
    std::vector<Pool::Lease> leases;  // in server order, which prevents deadlock between callers
    for (auto& [server, channel] : channels) {
      channel.pool = PoolOf(server);
      failure = channel.pool->Take(&leases);
      if (!failure.ok()) break;
    }
    for (bool all_sent = false; failure.ok() && !all_sent;) {
      all_sent = true;
      size_t i = 0;
      for (auto& [server, channel] : channels) {
        Connection* const connection = leases[i++].operator->();
        if (Failure one = Send(call, connection, &channel); !one.ok()) failure = one;
      }
      i = 0;
      for (auto& [server, channel] : channels) {
        Connection* const connection = leases[i++].operator->();
        if (Failure one = Receive(call, connection, &channel, round); !one.ok()) failure = one;
        all_sent = all_sent && channel.sent == channel.commands.size();
      }
    }
    if (failure.ok()) {
      for (Pool::Lease& lease : leases) lease.Clean();
      return failure;
    }
    for (auto& [server, channel] : channels) {
      round->again.insert(round->again.end(), channel.commands.begin() + channel.received,
                          channel.commands.end());
    }
    return failure;
  }

  static Failure Send(const Call& call, Connection* connection, Channel* channel) {
    static const TfEmbedRedisBytes kAsking{"ASKING", 6};
    if (channel->sent == channel->commands.size()) return {};
    size_t bytes = 0;
    for (size_t count = 0; channel->sent < channel->commands.size() && count < kWindowCommands &&
                           bytes < kWindowBytes;
         ++count) {
      const Pending& one = channel->commands[channel->sent++];
      if (one.asking) connection->Append({&kAsking, 1, 0});
      connection->Append(call.commands[one.index]);
      bytes += BytesOf(call.commands[one.index]);
    }
    return connection->Flush();
  }

  Failure Receive(const Call& call, Connection* connection, Channel* channel, Round* round) {
    ReplyView view;
    Reply reply;
    for (; channel->received < channel->sent; ++channel->received) {
      const Pending& one = channel->commands[channel->received];
      if (one.asking) {
        if (Failure failure = connection->Receive(&reply); !failure.ok()) return failure;
      }
      if (Failure failure = connection->Receive(&reply); !failure.ok()) return failure;
      if (reply->type == REDIS_REPLY_ERROR && IsForLater(*reply, one, channel, round)) continue;
      call.receive(call.receiver, one.index, view.Of(*reply));
    }
    return {};
  }

  // Whether an error only means that the command must be sent again, perhaps to another server.
  bool IsForLater(const redisReply& reply, const Pending& one, Channel* channel, Round* round) {
    const std::string text = TextOf(reply);
    Pending again{one.index, one.server, false};
    const bool moved = StartsWith(text, "MOVED "), ask = StartsWith(text, "ASK ");
    if (settings_.is_cluster && (moved || ask)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      int slot;
      Address address;
      if (!ParseRedirection(text, channel->pool->address(), &slot, &address)) return false;
      if (moved) slots_.Move(slot, address);
      again.server = slots_.NumberOf(address);
      again.asking = ask;
    } else if (StartsWith(text, "TRYAGAIN ") || StartsWith(text, "CLUSTERDOWN ") ||
               StartsWith(text, kLoading) || StartsWith(text, "MASTERDOWN ")) {
      round->must_wait = true;
      round->not_ready = NotReady(channel->pool->address(), text);
    } else {
      return false;
    }
    round->again.push_back(again);
    return true;
  }

  const Settings settings_;
  std::mutex mutex_;
  SlotMap slots_;                             // guarded by the mutex
  std::vector<std::unique_ptr<Pool>> pools_;  // by server number; guarded by the mutex
};

namespace {

// Runs an action and reports its failure or exception.
template <typename Action>
TfEmbedRedisCode Guarded(char* error, const Action& act) {
  const NoSigpipe no_sigpipe;
  const auto tell = [error](TfEmbedRedisCode code, const char* message) {
    std::strncpy(error, message, TF_EMBED_REDIS_MAX_ERROR - 1);
    error[TF_EMBED_REDIS_MAX_ERROR - 1] = '\0';
    return code;
  };
  try {
    const Failure failure = act();
    return failure.ok() ? TF_EMBED_REDIS_OK : tell(failure.code, failure.message.c_str());
  } catch (const std::bad_alloc&) {
    return tell(TF_EMBED_REDIS_NO_MEMORY, "There is no memory for its commands and their replies.");
  } catch (const std::exception& thrown) {
    return tell(TF_EMBED_REDIS_REFUSED, thrown.what());
  }
}

TfEmbedRedisCode Open(const TfEmbedRedisServer* server, TfEmbedRedisClient** client, char* error) {
  return Guarded(error, [&] {
    auto made = std::make_unique<TfEmbedRedisClient>(*server);
    Failure failure = made->Open();
    if (failure.ok()) *client = made.release();
    return failure;
  });
}

void Close(TfEmbedRedisClient* client) { delete client; }

TfEmbedRedisCode Run(TfEmbedRedisClient* client, const TfEmbedRedisCommand* commands, size_t count,
                     void* receiver, TfEmbedRedisReceive receive, char* error) {
  return Guarded(error, [&] { return client->Run(commands, count, receiver, receive); });
}

TfEmbedRedisCode LearnServers(TfEmbedRedisClient* client, size_t* servers, uint64_t* version,
                              char* error) {
  return Guarded(error, [&] { return client->LearnServers(servers, version); });
}

int32_t Slot(const char* key, size_t size) { return SlotOf(key, size); }

}  // namespace

const TfEmbedRedisApi* TfEmbedRedisGetApi(void) {
  static const TfEmbedRedisApi api = {TF_EMBED_REDIS_VERSION, Open, Close, Run, LearnServers, Slot};
  return &api;
}
