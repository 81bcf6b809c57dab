// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/redis_server.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

namespace tf_embed {
namespace {

constexpr char kLibrary[] = "libtf_embed_redis.so";

// Sanitizers interpose their own functions, which RTLD_DEEPBIND would bypass.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kApart = 0;
#else
constexpr int kApart = RTLD_DEEPBIND;
#endif

// The client library in the folder of this library.
std::string LibraryHere() {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LibraryHere), &here) == 0) return kLibrary;
  const std::string file = here.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? kLibrary : file.substr(0, slash + 1) + kLibrary;
}

// Opens a library once; it stays open. After a failure, the next store tries again.
Status OpenLibrary(const std::string& path, const TfEmbedRedisApi** api) {
  static std::mutex mutex;
  static auto* const opened = new std::map<std::string, const TfEmbedRedisApi*>;  // never destroyed
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = opened->find(path);
  if (found != opened->end()) {
    *api = found->second;
    return Status();
  }
  constexpr char kAdvice[] =
      " Tables in Redis need this library, which is built with hiredis: install libhiredis-dev "
      "(Debian) and build tf_embed again. All other tables work without it.";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | kApart);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Status::FailedPrecondition(
        "Can't open the Redis client library: " + std::string(reason == nullptr ? path : reason) +
        "." + kAdvice);
  }
  const auto get =
      reinterpret_cast<decltype(&TfEmbedRedisGetApi)>(dlsym(library, "TfEmbedRedisGetApi"));
  const TfEmbedRedisApi* const its = get == nullptr ? nullptr : get();
  if (its == nullptr || its->version != TF_EMBED_REDIS_VERSION) {
    dlclose(library);  // the error is in the status below
    return Status::FailedPrecondition("The Redis client library '" + path +
                                      "' is of another version of tf_embed." + kAdvice);
  }
  *api = (*opened)[path] = its;
  return Status();
}

}  // namespace

Status RedisServer::Open(const std::string& store, const RedisOptions& options,
                         std::unique_ptr<RedisServer>* server) {
  const TfEmbedRedisApi* api = nullptr;
  TF_EMBED_RETURN_IF_ERROR(
      OpenLibrary(options.library.empty() ? LibraryHere() : options.library, &api));
  std::unique_ptr<RedisServer> made(new RedisServer(store, options, api));
  const TfEmbedRedisServer address{options.host.c_str(),     options.port,
                                   options.username.c_str(), options.password.c_str(),
                                   options.database,         options.connect_timeout_ms,
                                   options.timeout_ms,       options.is_cluster ? 1 : 0,
                                   options.max_connections};
  char error[TF_EMBED_REDIS_MAX_ERROR];
  const TfEmbedRedisCode code = api->open(&address, &made->client_, error);
  if (code != TF_EMBED_REDIS_OK) return made->Failed(code, error);
  *server = std::move(made);
  return Status();
}

RedisServer::~RedisServer() {
  if (client_ != nullptr) api_->close(client_);
}

Status RedisServer::Failed(TfEmbedRedisCode code, const char* error) const {
  const std::string message = "Table '" + store_ + "' is in Redis. " + error;
  if (code == TF_EMBED_REDIS_NO_MEMORY) return Status::ResourceExhausted([&] { return message; });
  return code == TF_EMBED_REDIS_LOST ? Status::Aborted(message)
                                     : Status::FailedPrecondition(message);
}

Status RedisServer::LearnServers(size_t* servers, uint64_t* version) const {
  char error[TF_EMBED_REDIS_MAX_ERROR];
  const TfEmbedRedisCode code = api_->learn_servers(client_, servers, version, error);
  return code == TF_EMBED_REDIS_OK ? Status() : Failed(code, error);
}

Status RedisServer::Run(const RedisCommands& commands, const Receive& receive) const {
  if (commands.size() == 0) return Status();
  std::vector<TfEmbedRedisCommand> list;
  list.reserve(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    const RedisCommands::Command& command = commands.commands_[i];
    const size_t end =
        i + 1 < commands.size() ? commands.commands_[i + 1].begin : commands.parts_.size();
    list.push_back({commands.parts_.data() + command.begin, end - command.begin, command.slot});
  }
  struct Receiver {
    const RedisServer* server;
    const Receive* receive;
    Status status;
  } receiver{this, &receive, Status()};
  const auto take = [](void* to, size_t index, const TfEmbedRedisReply* reply) {
    Receiver& receiver = *static_cast<Receiver*>(to);
    if (!receiver.status.ok()) return;
    if (reply->type == TF_EMBED_REDIS_ERROR) {
      receiver.status = Status::FailedPrecondition(
          "Table '" + receiver.server->store_ + "' is in Redis. The server at " +
          receiver.server->address_ + " refuses a command: " + std::string(ViewOf(reply->bytes)) +
          ".");
      return;
    }
    try {
      receiver.status = (*receiver.receive)(index, *reply);
    } catch (const std::bad_alloc&) {
      receiver.status = Status::ResourceExhausted([&] {
        return "No memory for a reply of Redis to table '" + receiver.server->store_ + "'.";
      });
    }
  };
  char error[TF_EMBED_REDIS_MAX_ERROR];
  const TfEmbedRedisCode code =
      api_->run(client_, list.data(), list.size(), &receiver, take, error);
  return code == TF_EMBED_REDIS_OK ? receiver.status : Failed(code, error);
}

}  // namespace tf_embed
