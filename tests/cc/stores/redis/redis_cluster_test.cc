// SPDX-License-Identifier: Apache-2.0
// A store over a cluster of three servers, with slots that move between them.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "cc/stores/redis/redis_store.h"
#include "tests/cc/stores/redis/redis_process.h"
#include "tests/cc/support/checked_store.h"

namespace tf_embed {
namespace {

constexpr int kServers = 3;
constexpr int kSlots = 16384;

// Three servers, each with a third of the slots.
class RedisCluster : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kServers; ++i) {
      Start(i);
      Ask(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(i * kSlots / kServers),
              std::to_string((i + 1) * kSlots / kServers - 1)});
    }
    for (int i = 1; i < kServers; ++i) Join(i);
    for (int i = 0; i < kServers; ++i) {
      for (int tries = 0; tries < 2000; ++tries) {
        const std::string info = Ask(i, {"CLUSTER", "INFO"});
        if (info.find("cluster_state:ok") != std::string::npos &&
            info.find("cluster_known_nodes:3") != std::string::npos) {
          break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

  // If the server saves its rows and is restarted, it loads only 200 rows a second.
  void Start(int server) {
    // Files are named by a count, not by the port: a server that gets the port of an earlier test's
    // server would take part in that server's cluster.
    static int count = 0;
    const std::string number = std::to_string(count++);
    bus_ports_.push_back(std::to_string(FreePort()));
    servers_.push_back(std::make_unique<RedisProcess>(std::vector<std::string>{
        "--cluster-enabled", "yes", "--cluster-port", bus_ports_[server], "--cluster-config-file",
        "nodes-" + number + ".conf", "--cluster-node-timeout", "3000", "--dbfilename",
        "rows-" + number + ".rdb", "--key-load-delay", "5000",
        "--loading-process-events-interval-bytes", "1024"}));
    ASSERT_TRUE(RedisServer::Open("test", servers_[server]->Options(), &alone_[server]).ok());
  }
  void Join(int server) {
    Ask(0, {"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[server]->port()),
            bus_ports_[server]});
  }

  // Moves a slot without keys to another server.
  void MoveSlot(int slot, int to) {
    const int from = std::min(slot / (kSlots / kServers), kServers - 1);
    const std::string number = std::to_string(slot), id = Ask(to, {"CLUSTER", "MYID"});
    Ask(to, {"CLUSTER", "SETSLOT", number, "IMPORTING", Ask(from, {"CLUSTER", "MYID"})});
    for (const int server : {to, from}) Ask(server, {"CLUSTER", "SETSLOT", number, "NODE", id});
  }

  // Moves keys of a slot to the next server, but not yet the slot itself.
  void MoveKeys(int slot, const std::vector<std::string>& names) {
    const int from = std::min(slot / (kSlots / kServers), kServers - 1);
    const int to = (from + 1) % kServers;
    const std::string number = std::to_string(slot);
    Ask(to, {"CLUSTER", "SETSLOT", number, "IMPORTING", Ask(from, {"CLUSTER", "MYID"})});
    Ask(from, {"CLUSTER", "SETSLOT", number, "MIGRATING", Ask(to, {"CLUSTER", "MYID"})});
    std::vector<std::string> words = {
        "MIGRATE", "127.0.0.1", std::to_string(servers_[to]->port()), "", "0", "5000", "KEYS"};
    words.insert(words.end(), names.begin(), names.end());
    Ask(from, words);
  }
  // Moves the slot after its keys, and tells all servers.
  void MoveAfterKeys(int slot) {
    const int to = (std::min(slot / (kSlots / kServers), kServers - 1) + 1) % kServers;
    const std::string id = Ask(to, {"CLUSTER", "MYID"});
    for (int i = 0; i < kServers; ++i) {
      const int server = (to + i) % kServers;
      Ask(server, {"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id});
    }
  }

  // Sends a command to a server. Returns the answer if it is text.
  std::string Ask(int server, const std::vector<std::string>& words) {
    RedisCommands commands;
    commands.Begin(0);
    for (const std::string& word : words) commands.Add(word);
    std::string answer;
    const Status status =
        alone_[server]->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
          if (reply.type == TF_EMBED_REDIS_BYTES) answer = ViewOf(reply.bytes);
          if (reply.type == TF_EMBED_REDIS_INTEGER) answer = std::to_string(reply.integer);
          return Status();
        });
    EXPECT_TRUE(status.ok()) << status.message();
    return answer;
  }

  RedisOptions Options(uint32_t slices) const {
    RedisOptions redis = servers_[1]->Options();
    redis.is_cluster = true;
    redis.slices = slices;
    redis.keys_per_command = 50;
    return redis;
  }

  std::vector<std::unique_ptr<RedisProcess>> servers_;
  std::vector<std::string> bus_ports_;
  std::unique_ptr<RedisServer> alone_[kServers + 1];
};

TEST_F(RedisCluster, SlicesAreSpreadAndRowsAreThoseOfTheOracle) {
  for (const uint64_t ttl_milliseconds : {0, 1000000}) {
    StoreKind kind;
    kind.name = "Cluster";
    kind.create = [&](const StoreOptions& given) -> std::unique_ptr<Store> {
      StoreOptions options = given;
      options.policy.ttl_milliseconds = ttl_milliseconds;
      return OpenStore(options, Options(12));
    };
    CheckedStore<float> both(kind, 3);
    const auto some = [&] { return Batch(RandomKeys(400, -300, 300, &both.random)); };
    for (int step = 0; step < 3; ++step) {
      both.InsertOrAssign(some());
      both.Apply(some(), MakeRule(RuleKind::kAdam, 3));
      both.Find(some());
      both.FindSlots(some());
      both.FindOrInsert(some());
      both.Erase(some());
      both.ExpectSame();
    }
    both.Clear();
    both.ExpectSame();
  }
  // A store of the second kind has rows on all servers.
  const auto store = OpenStore(StoreOptions(), Options(12));
  const std::vector<float> rows(600, 1.0f);
  ASSERT_TRUE(
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, 600)), rows.data(), {}).ok());
  for (int i = 0; i < kServers; ++i) EXPECT_GT(std::stoi(Ask(i, {"DBSIZE"})), 0);
}

TEST_F(RedisCluster, SlotsAreThoseOfTheServer) {
  for (const std::string key : {"123456789", "foo", "{user:7}.rows", "a{}b", "a{x", "{a}{b}", ""}) {
    EXPECT_EQ(std::stoi(Ask(0, {"CLUSTER", "KEYSLOT", key})), alone_[0]->SlotOf(key)) << key;
  }
}

TEST_F(RedisCluster, ASlotThatMovesIsFollowed) {
  const RedisOptions redis = Options(1);
  const auto store = OpenStore(StoreOptions(), redis);
  const float one = 1, two = 2;
  const ExecContext serial = ExecContext::Serial();
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{5}, &one, {}).ok());
  const std::string name = "{" + redis.prefix + ":0}";
  const int slot = alone_[0]->SlotOf(name);
  MoveKeys(slot, {name});
  // The key has moved, but not the slot, so the old server replies ASK.
  float found = 0;
  Status status = store->Find(serial, Batch{5}, DefaultRows(), &found, nullptr, {});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(1, found);
  MoveAfterKeys(slot);
  // Now the old server replies MOVED.
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch{5, 6}, std::vector<float>{2, 2}.data(), {}).ok());
  EXPECT_TRUE(store->Find(serial, Batch{6}, DefaultRows(), &found, nullptr, {}).ok());
  EXPECT_EQ(two, found);
  EXPECT_EQ(2u, store->size());
}

TEST_F(RedisCluster, RowsOnAServerThatJoinedLaterAreInScans) {
  StoreOptions options;
  options.policy.ttl_milliseconds = 1000000;
  const RedisOptions redis = Options(1);
  const auto store = OpenStore(options, redis);
  Start(kServers);
  Join(kServers);
  const std::string id = Ask(kServers, {"CLUSTER", "MYID"});
  for (int i = 0; i <= kServers; ++i) {
    for (int tries = 0; tries < 2000; ++tries) {
      const std::string nodes = Ask(i, {"CLUSTER", "NODES"});
      if (nodes.find(id) != std::string::npos && nodes.find("handshake") == std::string::npos &&
          Ask(i, {"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const int slot = alone_[0]->SlotOf("{" + redis.prefix + ":0}");
  MoveSlot(slot, kServers);
  // The server that the store asks learns of it from the others.
  const std::string last = " " + std::to_string(slot) + "\n";
  while (Ask(1, {"CLUSTER", "NODES"}).find(last) == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::vector<float> rows(100, 1.0f);
  const ExecContext serial = ExecContext::Serial();
  ASSERT_TRUE(store->InsertOrAssign(serial, Batch(KeysFrom(0, 100)), rows.data(), {}).ok());
  EXPECT_EQ(100, std::stoi(Ask(kServers, {"DBSIZE"})));
  EXPECT_EQ(100u, store->size());
  ASSERT_TRUE(store->Clear(serial).ok());
  EXPECT_EQ(0, std::stoi(Ask(kServers, {"DBSIZE"})));
}

TEST_F(RedisCluster, AScanDuringWhichSlotsMoveFails) {
  const std::vector<int64_t> keys = KeysFrom(0, 600);
  const std::vector<float> rows(keys.size(), 1.0f);
  for (const uint64_t ttl_milliseconds : {0, 1000000}) {
    SCOPED_TRACE(ttl_milliseconds);
    StoreOptions options;
    options.policy.ttl_milliseconds = ttl_milliseconds;
    const RedisOptions redis = Options(1);
    const auto store = OpenStore(options, redis);
    ASSERT_TRUE(store->InsertOrAssign(ExecContext::Serial(), Batch(keys), rows.data(), {}).ok());
    size_t count = 0;
    const auto scan = [&](const std::function<void()>& meanwhile) {
      WholeRows some(HostAllocator());
      ExportCursor cursor;
      Status status = store->maintenance()->ExportBatch(20, &cursor, &some);
      if (!status.ok()) return status;
      EXPECT_FALSE(cursor.done);
      count = some.size;
      meanwhile();
      while (status.ok() && !cursor.done) {
        status = store->maintenance()->ExportBatch(20, &cursor, &some);
        count += some.size;
      }
      return status;
    };
    const auto expect_aborted = [](const Status& status, const char* words) {
      EXPECT_EQ(StatusCode::kAborted, status.code());
      EXPECT_NE(std::string::npos, status.message().find(words)) << status.message();
    };
    const std::string name = "{" + redis.prefix + ":0}";
    const int slot = alone_[0]->SlotOf(name);
    // Moves another slot, without keys.
    int empty = ttl_milliseconds == 0 ? 0 : 100;
    while (Ask(0, {"CLUSTER", "COUNTKEYSINSLOT", std::to_string(empty)}) != "0") ++empty;
    expect_aborted(scan([&] { MoveSlot(empty, 1); }), "Slots of the cluster moved");
    // The rows move before their slot.
    std::vector<std::string> names;
    for (const int64_t& key : keys) {
      names.push_back(name + std::string(reinterpret_cast<const char*>(&key), sizeof(key)));
    }
    if (ttl_milliseconds == 0) names = {name};
    constexpr char kMoving[] = "Slots of the cluster are moving from or to the server at 127.0.0.1";
    expect_aborted(scan([&] { MoveKeys(slot, names); }), kMoving);
    expect_aborted(scan([] {}), kMoving);
    MoveAfterKeys(slot);
    const Status status = scan([] {});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(keys.size(), count);
  }
}

TEST_F(RedisCluster, StatisticsGoOnWhileSlotsMove) {
  StoreOptions options;
  options.policy.ttl_milliseconds = 1000000;
  const RedisOptions redis = Options(12);
  const auto store = OpenStore(options, redis);
  const std::vector<float> rows(600, 1.0f);
  ASSERT_TRUE(
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, 600)), rows.data(), {}).ok());
  EXPECT_EQ(600u, store->Stats().rows);
  // Moves the slot of the first slice, but none of its rows yet.
  const std::string name = "{" + redis.prefix + ":0}";
  MoveKeys(alone_[0]->SlotOf(name), {name});
  size_t count = 0;
  EXPECT_EQ(StatusCode::kAborted, store->Count(&count).code());
  Status status = store->CheckReachable();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(600u, store->Stats().rows) << "the last number";
  servers_[2]->Kill();
  status = store->CheckReachable();
  EXPECT_EQ(StatusCode::kAborted, status.code());
  EXPECT_NE(std::string::npos, status.message().find(std::to_string(servers_[2]->port())))
      << status.message();
}

TEST_F(RedisCluster, AScanDuringWhichAServerWasRestartedFails) {
  const auto store = OpenStore(StoreOptions(), Options(12));
  const std::vector<float> rows(600, 1.0f);
  ASSERT_TRUE(
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, 600)), rows.data(), {}).ok());
  ExportCursor cursor;
  WholeRows some(HostAllocator());
  Status status = store->maintenance()->ExportBatch(20, &cursor, &some);
  ASSERT_TRUE(status.ok() && !cursor.done) << status.message();
  servers_[2]->Kill();
  servers_[2]->Restart();  // without rows
  for (int tries = 0; tries < 2000; ++tries) {
    if (Ask(2, {"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  while (status.ok() && !cursor.done) {
    status = store->maintenance()->ExportBatch(20, &cursor, &some);
  }
  EXPECT_EQ(StatusCode::kAborted, status.code());
  EXPECT_NE(std::string::npos, status.message().find("or a server was restarted, while all rows"))
      << status.message();
}

TEST_F(RedisCluster, AServerThatLoadsItsRowsIsWaitedFor) {
  StoreOptions options;
  options.dim = 16;
  options.policy.ttl_milliseconds = 1000000;
  const RedisOptions redis = Options(12);
  RedisOptions impatient = redis;
  impatient.timeout_ms = 300;
  const auto store = OpenStore(options, redis), other = OpenStore(options, impatient);
  Random random(1);
  const std::vector<float> rows = RandomValues<float>(1200 * options.dim, &random);
  const Status status =
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, 1200)), rows.data(), {});
  ASSERT_TRUE(status.ok()) << status.message();
  Ask(1, {"SAVE"});
  const auto restart = [&] {
    servers_[1]->Kill();
    servers_[1]->Restart();
  };
  const auto expect_loads = [&] {
    EXPECT_NE(std::string::npos, Ask(1, {"INFO", "persistence"}).find("loading:1"));
  };
  const auto expect_not_ready = [&](const Status& status) {
    const std::string words =
        "The Redis server at 127.0.0.1:" + std::to_string(redis.port) + " is not ready: LOADING";
    EXPECT_EQ(StatusCode::kAborted, status.code());
    EXPECT_NE(std::string::npos, status.message().find(words)) << status.message();
  };
  size_t count = 0;
  restart();
  expect_not_ready(other->Count(&count));
  expect_loads();
  const Status counted = store->Count(&count);
  EXPECT_TRUE(counted.ok()) << counted.message();
  EXPECT_EQ(1200u, count);
  // A new store knows only this server.
  restart();
  std::unique_ptr<RedisStore> opened;
  expect_not_ready(RedisStore::Open(options, impatient, &opened));
  expect_loads();
  EXPECT_EQ(1200u, OpenStore(options, redis)->size());
}

TEST_F(RedisCluster, AServerThatDoesNotTellItsSlotsIsNotScanned) {
  StoreOptions options;
  options.policy.ttl_milliseconds = 1000000;
  const auto store = OpenStore(options, Options(12));
  size_t count = 0;
  EXPECT_TRUE(store->Count(&count).ok());
  Ask(2, {"ACL", "SETUSER", "default", "-cluster|nodes"});
  const Status status = store->Count(&count);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("does not tell its slots by CLUSTER NODES: "
                                                     "NOPERM"))
      << status.message();
  store->Stats();
  EXPECT_EQ(StatusCode::kFailedPrecondition, store->CheckReachable().code());
  Ask(2, {"ACL", "SETUSER", "default", "+cluster|nodes"});
  store->Stats();
  EXPECT_TRUE(store->CheckReachable().ok());
}

TEST_F(RedisCluster, ALostServerIsAnErrorThatNamesIt) {
  const auto store = OpenStore(StoreOptions(), Options(12));
  servers_[2]->Kill();
  const std::vector<float> rows(600, 1.0f);
  const Status status =
      store->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(0, 600)), rows.data(), {});
  EXPECT_EQ(StatusCode::kAborted, status.code());
  EXPECT_NE(std::string::npos, status.message().find(std::to_string(servers_[2]->port())))
      << status.message();
}

TEST(RedisClusterAlone, AServerWithoutAClusterIsRefused) {
  RedisProcess server;
  RedisOptions redis = server.Options();
  redis.is_cluster = true;
  std::unique_ptr<RedisStore> store;
  const Status status = RedisStore::Open(StoreOptions(), redis, &store);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("knows of no cluster")) << status.message();
}

}  // namespace
}  // namespace tf_embed
