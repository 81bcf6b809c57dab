// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/stores/redis/redis_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

// Relative to the program's runfiles of Bazel.
constexpr char kLibrary[] = "cc/stores/redis/client/libtf_embed_redis.so";

bool Answers(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

}  // namespace

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  close(fd);
  return ntohs(address.sin_port);
}

RedisProcess::RedisProcess(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
  constexpr int kTries = 5;  // another process may have taken the port
  for (int tries = 0; tries < kTries && pid_ == 0; ++tries) {
    port_ = FreePort();
    Start();
  }
  EXPECT_NE(0, pid_) << "redis-server does not start: apt-get install redis-server";
}

void RedisProcess::Start() {
  const std::string port = std::to_string(port_);
  std::vector<std::string> words = {"redis-server", "--port", port,           "--bind", "127.0.0.1",
                                    "--save",       "",       "--appendonly", "no"};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the server does not outlive the test
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    if (const char* const folder = std::getenv("TEST_TMPDIR")) (void)!chdir(folder);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  for (int tries = 0; tries < 500; ++tries) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
    if (Answers(port_)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  pid_ = 0;
}

void RedisProcess::Kill() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void RedisProcess::Restart() {
  Start();
  ASSERT_NE(0, pid_);
}

void RedisProcess::Pause(bool paused) { kill(pid_, paused ? SIGSTOP : SIGCONT); }

RedisOptions RedisProcess::Options() const {
  static std::atomic<int> count{0};
  RedisOptions options;
  options.host = "127.0.0.1";
  options.port = port_;
  options.prefix = "test:table" + std::to_string(count++);
  options.timeout_ms = 10000;
  options.library = kLibrary;
  return options;
}

std::unique_ptr<RedisStore> OpenStore(const StoreOptions& options, const RedisOptions& redis) {
  std::unique_ptr<RedisStore> store;
  const Status status = RedisStore::Open(options, redis, &store);
  EXPECT_TRUE(status.ok()) << status.message();
  return store;
}

}  // namespace tf_embed
