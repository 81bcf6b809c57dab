// SPDX-License-Identifier: Apache-2.0
// Stores in Redis that several processes share, and servers that are lost.
#include "cc/stores/redis/redis_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/cc/stores/redis/redis_process.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

const ExecContext kSerial = ExecContext::Serial();

StoreOptions Options(size_t dim = 2) {
  StoreOptions options;
  options.name = "items";
  options.dim = dim;
  return options;
}

RedisProcess& Server() {
  static RedisProcess* const server = new RedisProcess;  // ends with the process
  return *server;
}

std::vector<float> RowOf(const Store& store, int64_t key) {
  std::vector<float> row(store.options().dim);
  const Status status = store.Find(kSerial, Batch{key}, DefaultRows(), row.data(), nullptr, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return row;
}

Status Put(Store* store, int64_t key, float value) {
  const std::vector<float> row(store->options().dim, value);
  return store->InsertOrAssign(kSerial, Batch{key}, row.data(), {});
}

std::vector<float> SlotsOf(const Store& store, const RuleSlots& rule, int64_t key) {
  std::vector<float> row(store.options().dim), slots(rule.slots_per_row());
  const Status status =
      store.Find(kSerial, Batch{key}, DefaultRows(), row.data(), nullptr, {&rule, slots.data()});
  EXPECT_TRUE(status.ok()) << status.message();
  return slots;
}

// Opens a store that must not exist.
Status Refusal(const RedisOptions& redis, const StoreOptions& options = Options()) {
  std::unique_ptr<RedisStore> store;
  return RedisStore::Open(options, redis, &store);
}

void ExpectSays(const Status& status, StatusCode code, const std::string& words) {
  EXPECT_EQ(code, status.code());
  EXPECT_NE(std::string::npos, status.message().find(words)) << status.message();
}

TEST(RedisStore, RacingWritersLoseNoUpdate) {
  constexpr int kWriters = 4, kSteps = 60, kKeys = 20;
  const RedisOptions redis = Server().Options();
  Rule sgd = MakeRule(RuleKind::kSgd, 2);
  sgd.learning_rate = 1.0;
  InThreads(kWriters, [&](size_t writer) {
    const auto store = OpenStore(Options(), redis);  // with separate connections
    Random random(writer);
    for (int step = 0; step < kSteps; ++step) {
      // Each key once, and the writer's key twice.
      std::vector<int64_t> keys = KeysFrom(0, kKeys);
      keys.push_back(static_cast<int64_t>(writer));
      const std::vector<float> gradients(keys.size() * 2, -1.0f);
      const Status status =
          store->Apply(kSerial, Batch(keys), gradients.data(), DataType::kFloat, sgd);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
  const auto store = OpenStore(Options(), redis);
  for (int64_t key = 0; key < kKeys; ++key) {
    const float sum = kWriters * kSteps + (key < kWriters ? kSteps : 0);
    EXPECT_EQ((std::vector<float>{sum, sum}), RowOf(*store, key)) << key;
  }
}

TEST(RedisStore, RacingInsertersAgreeOnOneRow) {
  const RedisOptions redis = Server().Options();
  std::vector<float> seen[4];
  InThreads(4, [&](size_t i) {
    StoreOptions options = Options(1);
    options.initializer = UniformInitializer(i);  // each would insert another row
    const auto store = OpenStore(options, redis);
    seen[i].resize(100);
    ASSERT_TRUE(
        store
            ->FindOrInsert(kSerial, Batch(KeysFrom(0, 100)), DefaultRows(), seen[i].data(), nullptr)
            .ok());
  });
  for (int i = 1; i < 4; ++i) EXPECT_EQ(seen[0], seen[i]);
}

TEST(RedisStore, OneConnectionServesManyThreads) {
  RedisOptions redis = Server().Options();
  redis.max_connections = 1;
  const auto store = OpenStore(Options(1), redis);
  InThreads(6, [&](size_t i) {
    for (int n = 0; n < 30; ++n) {
      EXPECT_TRUE(Put(store.get(), static_cast<int64_t>(i), static_cast<float>(n)).ok());
      EXPECT_EQ(static_cast<float>(n), RowOf(*store, static_cast<int64_t>(i))[0]);
    }
  });
}

TEST(RedisStore, AnotherRuleOfAnotherProcessReplacesSlotsForGood) {
  const RedisOptions redis = Server().Options();
  const auto one = OpenStore(Options(1), redis), other = OpenStore(Options(1), redis);
  const RuleSlots momentum = FusedSlots(RuleKind::kMomentum, 1, 0.5);
  const RuleSlots adagrad = FusedSlots(RuleKind::kAdagrad, 1, 0.25);
  const float row[] = {1}, slots[] = {9};
  ASSERT_TRUE(one->SetRule(momentum).ok());
  ASSERT_TRUE(one->InsertOrAssign(kSerial, Batch{7}, row, {&momentum, slots}).ok());
  EXPECT_EQ(std::vector<float>{9}, SlotsOf(*other, momentum, 7));
  ASSERT_TRUE(other->SetRule(adagrad).ok());
  // The first store learns of it by its next verb on slots.
  std::vector<float> found(1);
  ExpectSays(
      one->Find(kSerial, Batch{7}, DefaultRows(), found.data(), nullptr, {&momentum, found.data()}),
      StatusCode::kFailedPrecondition, "The optimizer of table 'items' was changed");
  EXPECT_EQ(std::vector<float>{0.25}, SlotsOf(*one, adagrad, 7));
  ASSERT_TRUE(one->SetRule(momentum).ok());
  EXPECT_EQ(std::vector<float>{0.5}, SlotsOf(*other, momentum, 7)) << "not 9, which it had before";
  EXPECT_EQ(std::vector<float>{1}, RowOf(*other, 7));
}

TEST(RedisStore, TheLargestSlotIsOfTheRuleThatTheRowsHaveNow) {
  const RedisOptions redis = Server().Options();
  const auto one = OpenStore(Options(1), redis), other = OpenStore(Options(1), redis);
  const RuleSlots momentum = FusedSlots(RuleKind::kMomentum, 1, 0.5), sgd = RuleSlots();
  const float row[] = {1}, slots[] = {9};
  ASSERT_TRUE(other->SetRule(momentum).ok());
  ASSERT_TRUE(other->InsertOrAssign(kSerial, Batch{7}, row, {&momentum, slots}).ok());
  EXPECT_EQ(9.0, LargestSlot(*one, kSerial, momentum, 0)) << "which it has not heard of";
  ASSERT_TRUE(other->SetRule(sgd).ok());
  EXPECT_EQ(0.0, LargestSlot(*one, kSerial, momentum, 0)) << "there are no slots any more";
}

TEST(RedisStore, AnExportBesideANewRuleIsAnError) {
  const RedisOptions redis = Server().Options();
  const auto one = OpenStore(Options(1), redis), other = OpenStore(Options(1), redis);
  ASSERT_TRUE(Put(one.get(), 7, 1).ok());
  const RuleSlots adagrad = FusedSlots(RuleKind::kAdagrad, 1, 0.25);
  WholeRows rows(HostAllocator());
  ExportCursor cursor;
  ASSERT_TRUE(one->ExportBatch(100, &cursor, &rows).ok());
  EXPECT_EQ(1u, rows.size);
  ASSERT_TRUE(other->SetRule(adagrad).ok());
  Status status;
  while (status.ok() && !cursor.done) status = one->ExportBatch(100, &cursor, &rows);
  ExpectSays(status, StatusCode::kFailedPrecondition,
             "were read, its optimizer was changed. Try again.");
  size_t count = 0;
  for (cursor = ExportCursor(); !cursor.done; count += rows.size) {
    ASSERT_TRUE(one->ExportBatch(100, &cursor, &rows).ok());
    EXPECT_TRUE(SameRule(adagrad, one->rule()));
  }
  EXPECT_EQ(1u, count);
}

TEST(RedisStore, AWriteThatIsSentTwiceIsNotLost) {
  std::unique_ptr<RedisRows> rows;
  ASSERT_TRUE(RedisRows::Open("items", Server().Options(), &rows).ok());
  const auto value = [&] {
    const RedisRowHeader header{rows->NewStamp(), 1, 0};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
  };
  const std::string first = value(), second = value(), third = value();
  uint64_t stamp;
  std::memcpy(&stamp, first.data(), sizeof(stamp));
  std::vector<uint32_t> lost;
  for (int sent = 0; sent < 2; ++sent) {
    ASSERT_TRUE(rows->Exchange({{5, 0, first}, {6, 0, first}}, true, &lost).ok());
    EXPECT_TRUE(lost.empty());
  }
  for (int sent = 0; sent < 2; ++sent) {
    ASSERT_TRUE(rows->Exchange({{5, stamp, second}}, true, &lost).ok());
    EXPECT_TRUE(lost.empty());
  }
  ASSERT_TRUE(
      rows->Exchange({{5, stamp, third}, {6, stamp, third}, {7, stamp, third}}, true, &lost).ok());
  EXPECT_EQ((std::vector<uint32_t>{0, 2}), lost) << "another write came first; no row";
}

TEST(RedisStore, AWriteOfAForkedProcessIsNotTakenForItsParents) {
  std::unique_ptr<RedisRows> rows;
  ASSERT_TRUE(RedisRows::Open("items", Server().Options(), &rows).ok());
  // The first write of a process, to a row that it saw as absent. Sets `lost` to the indices that
  // were not written.
  const auto write = [&](std::vector<uint32_t>* lost) {
    const RedisRowHeader header{rows->NewStamp(), 1, 0};
    const std::string value(reinterpret_cast<const char*>(&header), sizeof(header));
    return rows->Exchange({{5, 0, value}}, true, lost).ok();
  };
  std::vector<uint32_t> lost;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(write(&lost) && lost.empty() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_TRUE(write(&lost));
  EXPECT_EQ(std::vector<uint32_t>{0}, lost);
}

TEST(RedisStore, ALostServerIsAnErrorAndComesBack) {
  RedisProcess server;
  RedisOptions redis = server.Options();
  const auto store = OpenStore(Options(1), redis);
  ASSERT_TRUE(Put(store.get(), 1, 1).ok());
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  server.Kill();
  float row;
  size_t count;
  const auto check = [&](const Status& status) {
    ExpectSays(status, StatusCode::kAborted, "Table 'items' is in Redis");
    ExpectSays(status, StatusCode::kAborted, address);
  };
  check(store->Find(kSerial, Batch{1}, DefaultRows(), &row, nullptr, {}));
  check(Put(store.get(), 1, 2));
  check(store->Count(&count));
  check(store->Clear());
  check(store->Erase(kSerial, Batch{1}));
  check(Refusal(redis));
  EXPECT_EQ(0u, store->size());
  server.Restart();
  EXPECT_TRUE(Put(store.get(), 2, 3).ok());
  EXPECT_EQ(std::vector<float>{3}, RowOf(*store, 2));
  EXPECT_EQ(1u, store->size());
}

TEST(RedisStore, AScanDuringWhichTheServerWasRestartedFails) {
  RedisProcess server;
  const std::vector<float> rows(600, 1.0f);
  for (const uint64_t ttl_milliseconds : {0, 1000000}) {
    SCOPED_TRACE(ttl_milliseconds);
    StoreOptions options = Options(1);
    options.policy.ttl_milliseconds = ttl_milliseconds;
    const auto store = OpenStore(options, server.Options());
    ASSERT_TRUE(store->InsertOrAssign(kSerial, Batch(KeysFrom(0, 600)), rows.data(), {}).ok());
    ExportCursor cursor;
    WholeRows some(HostAllocator());
    Status status = store->ExportBatch(20, &cursor, &some);
    ASSERT_TRUE(status.ok() && !cursor.done) << status.message();
    server.Kill();
    server.Restart();  // without its rows
    while (status.ok() && !cursor.done) status = store->ExportBatch(20, &cursor, &some);
    ExpectSays(status, StatusCode::kAborted, "or a server was restarted, while all rows");
  }
}

TEST(RedisStore, AServerThatDiesUnderManyCommandsIsAnError) {
  RedisProcess server;
  const auto store = OpenStore(Options(64), server.Options());
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.Kill();
  });
  Status status;
  const std::vector<float> rows(2000 * 64, 1.0f);
  for (int64_t first = 0; status.ok(); first += 2000) {
    status = store->InsertOrAssign(kSerial, Batch(KeysFrom(first, 2000)), rows.data(), {});
  }
  killer.join();
  ExpectSays(status, StatusCode::kAborted, std::to_string(server.port()));
}

TEST(RedisStore, ASilentServerIsAnErrorWithinTheTimeout) {
  RedisProcess server;
  RedisOptions redis = server.Options();
  redis.timeout_ms = 200;
  const auto store = OpenStore(Options(1), redis);
  server.Pause(true);
  ExpectSays(Put(store.get(), 1, 1), StatusCode::kAborted, "it did not answer within 200 ms");
  server.Pause(false);
  EXPECT_TRUE(Put(store.get(), 1, 1).ok());
}

TEST(RedisStore, PasswordsAndUsersAreAskedFor) {
  RedisProcess server({"--requirepass", "sesame", "--user", "reader", "on", ">open", "~*", "+@read",
                       "+@connection", "+eval"});
  RedisOptions redis = server.Options();
  ExpectSays(Refusal(redis), StatusCode::kFailedPrecondition, "NOAUTH");
  redis.password = "wrong";
  const Status wrong = Refusal(redis);
  ExpectSays(wrong, StatusCode::kFailedPrecondition, "refuses AUTH: WRONGPASS");
  redis.password = "sesame";
  const auto store = OpenStore(Options(1), redis);
  ASSERT_TRUE(Put(store.get(), 1, 4).ok());
  redis.username = "reader";
  redis.password = "open";
  const auto reader = OpenStore(Options(1), redis);
  EXPECT_EQ(std::vector<float>{4}, RowOf(*reader, 1));
  ExpectSays(Put(reader.get(), 1, 5), StatusCode::kFailedPrecondition, "refuses a command");
  WholeRows rows(HostAllocator());
  ExportCursor cursor;
  EXPECT_TRUE(reader->ExportBatch(100, &cursor, &rows).ok()) << "INFO is refused, and not needed";
  EXPECT_EQ(1u, rows.size);
  EXPECT_EQ(std::vector<float>{4}, RowOf(*store, 1));
}

TEST(RedisStore, DatabasesAreApart) {
  RedisOptions redis = Server().Options();
  const auto first = OpenStore(Options(1), redis);
  redis.database = 3;
  const auto third = OpenStore(Options(1), redis);
  ASSERT_TRUE(Put(first.get(), 1, 1).ok());
  EXPECT_EQ(0u, third->size());
  redis.database = 99;
  ExpectSays(Refusal(redis), StatusCode::kFailedPrecondition, "refuses SELECT");
}

TEST(RedisStore, WithoutTheLibraryTheErrorSaysWhatToInstall) {
  RedisOptions redis;  // there is no such server, and it is not asked
  redis.host = "127.0.0.1";
  redis.prefix = "items";
  redis.library = "/nowhere/libtf_embed_redis.so";
  ExpectSays(Refusal(redis), StatusCode::kFailedPrecondition, "install libhiredis-dev");
  redis.library = "libm.so.6";
  ExpectSays(Refusal(redis), StatusCode::kFailedPrecondition,
             "The Redis client library 'libm.so.6' is of another version of tf_embed");
}

TEST(RedisStore, WhatItCanNotDoIsRefusedByName) {
  const auto check = [](const char* name, const auto& change) {
    StoreOptions options = Options();
    RedisOptions redis = Server().Options();
    change(&options, &redis);
    ExpectSays(Refusal(redis, options), StatusCode::kInvalidArgument, name);
  };
  check("`max_rows`", [](auto* options, auto*) { options->policy.max_rows = 3; });
  check("`track_changes`", [](auto* options, auto*) {
    options->policy.statistics = StatisticSet().With(Statistic::kChange);
  });
  check("statistics", [](auto* options, auto*) {
    options->policy.statistics = StatisticSet().With(Statistic::kCount);
  });
  check("`port`", [](auto*, auto* redis) { redis->port = 0; });
  check("`slices`", [](auto*, auto* redis) { redis->slices = 0; });
  check("`keys_per_command`", [](auto*, auto* redis) { redis->keys_per_command = 0; });
  check("`timeout_ms`", [](auto*, auto* redis) { redis->timeout_ms = 0; });
  check("`prefix`", [](auto*, auto* redis) { redis->prefix = "{x}"; });
  check("`database`", [](auto*, auto* redis) {
    redis->is_cluster = true;
    redis->database = 1;
  });
}

TEST(RedisStore, APassOverAllRowsIsThatOfAStoreInMemory) {
  // Averages of all rows, with the step's own keys and without.
  Rule rule = Rule::Of<EmaRowwiseAdagradRule>(2, {1e-7, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5}, 0.05);
  StoreOptions options = Options();
  options.initializer = UniformInitializer();
  const auto store = OpenStore(options, Server().Options());
  const auto in_memory = HostStore::Create(options);
  Random random(1);
  for (int64_t step = 1; step <= 4; ++step) {
    rule.step = step;
    const Batch batch = RandomKeys(50, 0, 60, &random);
    const std::vector<float> gradients = RandomValues<float>(100, &random);
    for (Store* const each :
         {static_cast<Store*>(store.get()), static_cast<Store*>(in_memory.get())}) {
      ASSERT_TRUE(each->Apply(kSerial, batch, gradients.data(), DataType::kFloat, rule).ok());
      ASSERT_TRUE(each->UpdateAllRows(kSerial, rule).ok());
    }
  }
  for (int64_t key = 0; key <= 60; ++key) {
    ExpectSameBits(RowOf(*in_memory, key), RowOf(*store, key), "row");
  }
  for (size_t slot = 0; slot < rule.slots.slots_per_row(); ++slot) {
    EXPECT_EQ(LargestSlot(*in_memory, kSerial, rule.slots, slot),
              LargestSlot(*store, kSerial, rule.slots, slot));
  }
}

TEST(RedisStore, APassOverAllRowsIsNoUse) {
  Rule rule = Rule::Of<EmaRowwiseAdagradRule>(2, {1e-7, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5}, 0.05);
  rule.step = 1;
  StoreOptions options = Options();
  options.policy.ttl_milliseconds = 1000000;
  const RedisOptions redis = Server().Options();
  const auto store = OpenStore(options, redis);
  const std::vector<float> gradients = {1, 0, 1, 0};
  const auto train = [&](const Batch& batch) {
    const Status status = store->Apply(kSerial, batch, gradients.data(), DataType::kFloat, rule);
    ASSERT_TRUE(status.ok()) << status.message();
  };
  train(Batch{7, 8});
  std::unique_ptr<RedisServer> server;
  ASSERT_TRUE(RedisServer::Open("test", redis, &server).ok());
  const auto ask = [&](int64_t key, const std::vector<std::string>& words) {
    const std::string name =
        "{" + redis.prefix + ":0}" + std::string(reinterpret_cast<const char*>(&key), sizeof(key));
    RedisCommands commands;
    commands.Begin(0);
    commands.Add(words[0]);
    commands.Add(name);
    if (words.size() > 1) commands.Add(words[1]);
    int64_t answer = 0;
    const Status status = server->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
      answer = reply.integer;
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return answer;
  };
  for (const int64_t key : {7, 8}) EXPECT_EQ(1, ask(key, {"PEXPIRE", "500000"}));
  train(Batch{8});
  const std::vector<float> before = RowOf(*store, 7);
  ASSERT_TRUE(store->UpdateAllRows(kSerial, rule).ok());
  EXPECT_NE(before, RowOf(*store, 7));
  EXPECT_GT(ask(7, {"PTTL"}), 0);
  EXPECT_LE(ask(7, {"PTTL"}), 500000);
  EXPECT_GT(ask(8, {"PTTL"}), 500000) << "it was trained";
}

TEST(RedisStore, NarrowSlotsAreRounded) {
  const auto store = OpenStore(Options(1), Server().Options());
  RuleSlots rule = FusedSlots(RuleKind::kMomentum, 1);
  ASSERT_TRUE(store->SetRule(rule).ok());
  const float row[] = {1}, slots[] = {1.0001f};
  ASSERT_TRUE(store->InsertOrAssign(kSerial, Batch{7}, row, {&rule, slots}).ok());
  EXPECT_EQ(std::vector<float>{1.0001f}, SlotsOf(*store, rule, 7));
  ASSERT_TRUE(store->SetRule(Stored(rule, {SlotType::kBFloat16})).ok());
  EXPECT_EQ(std::vector<float>{1.0f}, SlotsOf(*store, rule, 7));
}

}  // namespace
}  // namespace tf_embed
