// SPDX-License-Identifier: Apache-2.0
// The Redis client if memory is short (each operator new of a call fails once), and in a forked
// process.
#include "cc/stores/redis/client/redis_client.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/stores/redis/redis_process.h"
#include "tests/cc/support/failing_new.h"

namespace tf_embed {
namespace {

using Words = std::vector<std::string>;

class RedisClient : public testing::Test {
 protected:
  void SetUp() override {
    const RedisOptions options = server_.Options();
    // Not in a separate namespace, so the library uses the operator new above.
    void* const library = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(nullptr, library) << dlerror();
    api_ = reinterpret_cast<decltype(&TfEmbedRedisGetApi)>(dlsym(library, "TfEmbedRedisGetApi"))();
    const TfEmbedRedisServer server{options.host.c_str(), options.port, "", "", 0, 10000, 10000, 0,
                                    /*max_connections=*/1};
    char error[TF_EMBED_REDIS_MAX_ERROR];
    ASSERT_EQ(TF_EMBED_REDIS_OK, api_->open(&server, &client_, error)) << error;
  }
  void TearDown() override {
    if (client_ != nullptr) api_->close(client_);
  }

  // Runs commands. `last` receives the text of the last reply, or of its first element.
  TfEmbedRedisCode Run(const std::vector<Words>& commands, int64_t news, std::string* last) {
    std::vector<std::vector<TfEmbedRedisBytes>> parts(commands.size());
    std::vector<TfEmbedRedisCommand> list;
    for (size_t i = 0; i < commands.size(); ++i) {
      for (const std::string& word : commands[i]) parts[i].push_back({word.data(), word.size()});
      list.push_back({parts[i].data(), parts[i].size(), 0});
    }
    char text[4096] = "";
    const auto take = [](void* to, size_t, const TfEmbedRedisReply* reply) {
      const TfEmbedRedisBytes& bytes =
          reply->num_elements > 0 ? reply->elements[0].bytes : reply->bytes;
      if (bytes.size > 0) std::memcpy(to, bytes.data, bytes.size);
      static_cast<char*>(to)[bytes.size] = '\0';
    };
    news_to_pass = news;
    const TfEmbedRedisCode code = api_->run(client_, list.data(), list.size(), text, take, error_);
    failed_ = news != INT64_MAX && news_to_pass > news;
    news_to_pass = INT64_MAX;
    *last = text;
    return code;
  }

  RedisProcess server_;
  const TfEmbedRedisApi* api_ = nullptr;
  TfEmbedRedisClient* client_ = nullptr;
  bool failed_ = false;  // whether an operator new of the last call failed
  char error_[TF_EMBED_REDIS_MAX_ERROR] = "";
};

TEST_F(RedisClient, AfterACallWithoutMemoryTheNextOneGetsItsOwnReplies) {
  std::string last;
  ASSERT_EQ(TF_EMBED_REDIS_OK,
            Run({{"HSET", "h", "a", "row-a", "b", "row-b", "c", "row-c"}}, INT64_MAX, &last));
  int64_t news = 0;
  for (;; ++news) {
    SCOPED_TRACE(news);
    const TfEmbedRedisCode code =
        Run({{"HMGET", "h", "a"}, {"HMGET", "h", "a", "b"}, {"HMGET", "h", "b"}}, news, &last);
    if (!failed_) break;
    EXPECT_EQ(TF_EMBED_REDIS_NO_MEMORY, code);
    EXPECT_STREQ("There is no memory for its commands and their replies.", error_);
    ASSERT_EQ(TF_EMBED_REDIS_OK, Run({{"HMGET", "h", "c"}}, INT64_MAX, &last));
    EXPECT_EQ("row-c", last);
  }
  EXPECT_EQ("row-b", last);
  EXPECT_GT(news, 5);
}

TEST_F(RedisClient, AForkedProcessMakesItsOwnConnections) {
  const std::vector<Words> ask = {{"CLIENT", "LIST"}};
  const auto count = [&] {
    std::string clients;
    EXPECT_EQ(TF_EMBED_REDIS_OK, Run(ask, INT64_MAX, &clients)) << error_;
    return std::count(clients.begin(), clients.end(), '\n');
  };
  EXPECT_EQ(1, count());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(count() == 2 && count() == 2 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  // The parent's connection still works.
  std::string last;
  EXPECT_EQ(TF_EMBED_REDIS_OK, Run({{"ECHO", "parent"}}, INT64_MAX, &last)) << error_;
  EXPECT_EQ("parent", last);
}

}  // namespace
}  // namespace tf_embed
