// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/client/connection.h"

#include <poll.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

namespace tf_embed {
namespace redis {
namespace {

timeval TimeOf(int milliseconds) {
  timeval time;
  time.tv_sec = milliseconds / 1000;
  time.tv_usec = milliseconds % 1000 * 1000;
  return time;
}

bool IsTimeout(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ETIMEDOUT || error == EINPROGRESS;
}

Failure Unreachable(const Address& address, const std::string& reason) {
  return {TF_EMBED_REDIS_LOST,
          "The Redis server at " + address.ToString() + " can't be reached: " + reason + ".",
          false};
}

}  // namespace

Settings::Settings(const TfEmbedRedisServer& server)
    : address{server.host, server.port},
      username(server.username),
      password(server.password),
      database(server.database),
      connect_timeout_ms(server.connect_timeout_ms),
      timeout_ms(server.timeout_ms),
      is_cluster(server.is_cluster != 0),
      max_connections(server.max_connections) {}

Failure Connection::Open(const Settings& settings, const Address& address,
                         std::unique_ptr<Connection>* connection) {
  std::unique_ptr<Connection> made(new Connection(settings, address));
  made->context_.reset(redisConnectWithTimeout(address.host.c_str(), address.port,
                                               TimeOf(settings.connect_timeout_ms)));
  redisContext* const context = made->context_.get();
  if (context == nullptr) return Unreachable(address, "no memory for a connection");
  if (context->err != 0) {
    const bool timed_out = context->err == REDIS_ERR_IO && IsTimeout(errno);
    return Unreachable(address, timed_out ? "no connection within " +
                                                std::to_string(settings.connect_timeout_ms) + " ms"
                                          : context->errstr);
  }
  LimitElements(context->reader);
  if (redisSetTimeout(context, TimeOf(settings.timeout_ms)) != REDIS_OK ||
      redisEnableKeepAlive(context) != REDIS_OK) {
    return Unreachable(address, context->errstr);
  }
  if (!settings.password.empty()) {
    std::vector<std::string> words = {"AUTH", settings.password};
    if (!settings.username.empty()) words.insert(words.begin() + 1, settings.username);
    if (Failure failure = made->Introduce(words); !failure.ok()) return failure;
  }
  if (settings.database != 0) {
    Failure failure = made->Introduce({"SELECT", std::to_string(settings.database)});
    if (!failure.ok()) return failure;
  }
  *connection = std::move(made);
  return {};
}

Failure Connection::Introduce(const std::vector<std::string>& words) {
  Reply reply;
  if (Failure failure = Ask(words, &reply); !failure.ok()) return failure;
  if (reply->type != REDIS_REPLY_ERROR) return {};
  return {TF_EMBED_REDIS_REFUSED,
          "The Redis server at " + address_.ToString() + " refuses " + words[0] + ": " +
              TextOf(*reply) + ".",
          false};
}

bool Connection::IsClosed() const {
  pollfd poller{context_->fd, POLLIN, 0};
  // No reply is outstanding, so anything readable is the end of the stream.
  return poll(&poller, 1, 0) != 0;
}

void Connection::Append(const TfEmbedRedisCommand& command) {
  parts_.clear();
  sizes_.clear();
  for (size_t i = 0; i < command.num_parts; ++i) {
    parts_.push_back(command.parts[i].data);
    sizes_.push_back(command.parts[i].size);
  }
  // If memory is short, the context keeps an error that Flush and Receive return.
  redisAppendCommandArgv(context_.get(), static_cast<int>(command.num_parts), parts_.data(),
                         sizes_.data());
}

Failure Connection::Flush() {
  for (int done = 0; done == 0;) {
    if (redisBufferWrite(context_.get(), &done) != REDIS_OK) return Lost();
  }
  return {};
}

Failure Connection::Receive(Reply* reply) {
  void* received = nullptr;
  if (redisGetReply(context_.get(), &received) != REDIS_OK) return Lost();
  reply->reset(static_cast<redisReply*>(received));
  return {};
}

Failure Connection::Ask(const std::vector<std::string>& words, Reply* reply) {
  std::vector<TfEmbedRedisBytes> parts;
  for (const std::string& word : words) parts.push_back({word.data(), word.size()});
  Append({parts.data(), parts.size(), 0});
  if (Failure failure = Flush(); !failure.ok()) return failure;
  return Receive(reply);
}

Failure Connection::Lost() const {
  const bool timed_out = context_->err == REDIS_ERR_IO && IsTimeout(errno);
  const std::string reason = timed_out
                                 ? "it did not answer within " + std::to_string(timeout_ms_) + " ms"
                                 : std::string(context_->errstr);
  return {TF_EMBED_REDIS_LOST,
          "The Redis server at " + address_.ToString() + " was lost: " + reason + ".", timed_out};
}

}  // namespace redis
}  // namespace tf_embed
