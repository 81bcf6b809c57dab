// SPDX-License-Identifier: Apache-2.0
// Many threads in a store. All lanes of a row hold the same number, made from its key and the count
// of its writes. So a row mixed from two writes is detected.
#include <map>
#include <set>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 20;
constexpr double kVersions = 1 << 20;
constexpr double kAbsent = -1.0;

class StoreConcurrency : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.value_type = DataType::kDouble;
    options.dim = kDim;
    store = GetParam().create(options);
    ASSERT_NE(nullptr, store);
  }

  static double Pattern(int64_t key, int64_t version) {
    return static_cast<double>(key) * kVersions + static_cast<double>(version);
  }

  void Assign(const Batch& batch, int64_t version) {
    std::vector<double> weights;
    for (int64_t key : batch.keys) weights.insert(weights.end(), kDim, Pattern(key, version));
    ASSERT_TRUE(store->InsertOrAssign(serial, batch, weights.data(), {}).ok());
  }

  // The number in each key's row, or kAbsent. Fails on a torn row.
  std::vector<double> Look(const Batch& batch) const {
    const std::vector<double> absent(kDim, kAbsent);
    std::vector<double> weights(batch.size() * kDim);
    const auto exists = std::make_unique<bool[]>(batch.size());
    EXPECT_TRUE(store
                    ->Find(serial, batch, {DefaultRows::Kind::kOneForAll, absent.data()},
                           weights.data(), exists.get(), {})
                    .ok());
    std::vector<double> numbers;
    for (size_t i = 0; i < batch.size(); ++i) {
      numbers.push_back(Whole(weights.data() + i * kDim));
      EXPECT_EQ(exists[i], numbers[i] != kAbsent) << "key " << batch.keys[i];
    }
    return numbers;
  }
  static double Whole(const double* row) {
    for (size_t j = 1; j < kDim; ++j) EXPECT_EQ(row[0], row[j]) << "a torn row";
    return row[0];
  }
  static void ExpectOfKey(int64_t key, double number) {
    if (number != kAbsent) {
      EXPECT_TRUE(number >= Pattern(key, 0) && number < Pattern(key + 1, 0))
          << "key " << key << " has the row of another";
    }
  }

  // Exports all rows. Keys that are exported twice go to `twice`.
  std::map<int64_t, double> Export(size_t max_rows, std::set<int64_t>* twice = nullptr) const {
    std::map<int64_t, double> all;
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      EXPECT_TRUE(store->maintenance()->ExportBatch(max_rows, &cursor, &rows).ok());
      const double* const weights = reinterpret_cast<const double*>(rows.weights.data());
      for (size_t i = 0; i < rows.size; ++i) {
        const bool fresh = all.emplace(rows.keys[i], Whole(weights + i * kDim)).second;
        if (!fresh && twice != nullptr) twice->insert(rows.keys[i]);
      }
    }
    return all;
  }

  const ExecContext serial = ExecContext::Serial();
  std::unique_ptr<Store> store;
};

TEST_P(StoreConcurrency, ReadersSeeWholeRowsInTheOrderOfTheirWriting) {
  const std::vector<int64_t> keys = KeysFrom(0, 200);
  Assign(keys, 0);
  std::atomic<int> writing{2};
  InThreads(4, [&](size_t thread) {
    if (thread < 2) {  // each thread writes half of the keys
      for (int64_t version = 1; version <= 2000; ++version) {
        Assign(KeysFrom(static_cast<int64_t>(thread), 100, 2), version);
      }
      --writing;
    } else {
      std::vector<double> last(keys.size(), 0.0);
      while (writing > 0) {
        const std::vector<double> numbers = Look(keys);
        for (size_t i = 0; i < keys.size(); ++i) {
          ExpectOfKey(keys[i], numbers[i]);
          ASSERT_LE(last[i], numbers[i]) << "an older row after a newer one";
          last[i] = numbers[i];
        }
      }
    }
  });
}

TEST_P(StoreConcurrency, FindSeesWeightsAndSlotsOfOneWriting) {
  // Two threads write the same few keys, so a row with slots of one writer and weights of the other
  // would be detected. There are many slots, so a reader takes long to copy them.
  const RuleSlots rule = ExternalSlots(1, {{1000, 0.0}, {3000, 0.0}});
  ASSERT_TRUE(store->maintenance()->SetRule(rule).ok());
  const size_t slots_per_row = rule.slots_per_row();
  const Batch keys = KeysFrom(0, 4);
  std::atomic<int> writing{2};
  InThreads(4, [&](size_t thread) {
    if (thread < 2) {
      for (int64_t version = 0; version < 3000; ++version) {
        std::vector<double> weights, slots;
        for (int64_t key : keys.keys) {
          const double pattern = Pattern(key, 2 * version + static_cast<int64_t>(thread));
          weights.insert(weights.end(), kDim, pattern);
          slots.insert(slots.end(), slots_per_row, pattern);
        }
        ASSERT_TRUE(
            store->InsertOrAssign(serial, keys, weights.data(), {&rule, slots.data()}).ok());
        if (version % 100 == 0) {
          ASSERT_TRUE(store->Erase(serial, Batch(KeysFrom(0, 2))).ok());
        }
      }
      --writing;
    } else {
      const std::vector<double> absent(kDim, 0.0);
      std::vector<double> weights(keys.size() * kDim), slots(keys.size() * slots_per_row);
      const auto exists = std::make_unique<bool[]>(keys.size());
      while (writing > 0) {
        ASSERT_TRUE(store
                        ->Find(serial, keys, {DefaultRows::Kind::kOneForAll, absent.data()},
                               weights.data(), exists.get(), {&rule, slots.data()})
                        .ok());
        for (size_t i = 0; i < keys.size(); ++i) {
          const double number = Whole(weights.data() + i * kDim);
          if (exists[i]) ExpectOfKey(keys.keys[i], number);
          for (size_t j = 0; j < slots_per_row; ++j) {
            ASSERT_EQ(number, slots[i * slots_per_row + j]) << "slots of another writing";
          }
        }
      }
    }
  });
}

TEST_P(StoreConcurrency, SlotsAreRefusedOrOfTheRuleThatAsksHoweverRulesChange) {
  const RuleSlots rules[] = {ExternalSlots(1, {{30, 1.0}}), ExternalSlots(2, {{7, 2.0}}),
                             FusedSlots(RuleKind::kAdam, kDim)};
  const Batch keys = KeysFrom(0, 100);
  std::atomic<int> working{2};
  InThreads(4, [&](size_t thread) {
    const RuleSlots& rule = rules[thread % 2];
    const size_t slots_per_row = rule.slots_per_row();
    std::vector<double> weights(keys.size() * kDim);
    std::vector<double> slots(keys.size() * slots_per_row, rule.groups[0].initial_value);
    if (thread < 2) {
      for (int round = 0; round < 300; ++round) {
        ASSERT_TRUE(store->maintenance()->SetRule(round % 3 == 0 ? rules[2] : rule).ok());
        const Status status =
            store->InsertOrAssign(serial, keys, weights.data(), {&rule, slots.data()});
        ASSERT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition);
      }
      --working;
    } else {
      while (working > 0) {
        const Status status = store->Find(serial, keys, DefaultRows(), weights.data(), nullptr,
                                          {&rule, slots.data()});
        if (!status.ok()) continue;
        for (double slot : slots) ASSERT_EQ(rule.groups[0].initial_value, slot);
      }
    }
  });
}

TEST_P(StoreConcurrency, KeysStayFoundWhileOthersComeAndGoAndTheStoreGrows) {
  constexpr int64_t kRounds = 150, kBatch = 200;
  std::atomic<int64_t> rounds_done[2] = {{0}, {0}};
  // Keys of a writer: its even keys stay, and its odd keys are erased a round later.
  const auto batch_of = [](int64_t writer, int64_t round, bool odd) {
    return Batch(KeysFrom(writer << 40 | (round * kBatch * 2 + odd), kBatch, 2));
  };
  InThreads(4, [&](size_t thread) {
    if (thread < 2) {
      const int64_t writer = static_cast<int64_t>(thread);
      for (int64_t round = 0; round < kRounds; ++round) {
        Assign(batch_of(writer, round, false), round);
        Assign(batch_of(writer, round, true), round);
        rounds_done[writer] = round + 1;
        if (round > 0) {
          ASSERT_TRUE(store->Erase(serial, batch_of(writer, round - 1, true)).ok());
        }
      }
    } else {
      Random random(thread);
      for (int64_t done = 0; done < kRounds;) {
        const int64_t writer = static_cast<int64_t>(random() % 2);
        done = std::min(rounds_done[0].load(), rounds_done[1].load());
        const int64_t known = rounds_done[writer];
        if (known == 0) continue;
        const int64_t round = static_cast<int64_t>(random() % known);
        const Batch stays = batch_of(writer, round, false);
        for (double number : Look(stays)) ASSERT_NE(kAbsent, number);
        const Batch goes = batch_of(writer, round, true);
        const std::vector<double> numbers = Look(goes);
        for (size_t i = 0; i < goes.size(); ++i) ExpectOfKey(goes.keys[i], numbers[i]);
      }
    }
  });
  const size_t left = 2 * kRounds * kBatch + 2 * kBatch;
  EXPECT_EQ(left, store->size());
  EXPECT_EQ(left, Export(500).size());
}

TEST_P(StoreConcurrency, ApplyLosesNoUpdate) {
  // With a learning rate of 1 and gradients of -1, a row counts the occurrences of its key. Whole
  // numbers are exact.
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  constexpr int64_t kKeys = 150;
  std::vector<std::vector<int>> counts(3, std::vector<int>(kKeys));
  std::atomic<int> applying{3};
  InThreads(4, [&](size_t thread) {
    if (thread < 3) {
      Random random(thread);
      const std::vector<double> gradients(500 * kDim, -1.0);
      for (int step = 0; step < 300; ++step) {
        const Batch batch = RandomKeys(500, 0, kKeys - 1, &random);
        for (int64_t key : batch.keys) ++counts[thread][static_cast<size_t>(key)];
        ASSERT_TRUE(store->Apply(serial, batch, gradients.data(), DataType::kDouble, rule).ok());
      }
      --applying;
    } else {
      while (applying > 0) Look(KeysFrom(0, kKeys));
    }
  });
  const std::vector<double> numbers = Look(KeysFrom(0, kKeys));
  for (size_t i = 0; i < kKeys; ++i) {
    EXPECT_EQ(counts[0][i] + counts[1][i] + counts[2][i], numbers[i]) << "key " << i;
  }
}

TEST_P(StoreConcurrency, KeysWronglySaidToBeDistinctLoseNothing) {
  constexpr int64_t kKeys = 150;
  const ExecContext context = Threads(4);
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  Random random(5);
  const Batch batch = RandomKeys(20000, 0, kKeys - 1, &random);
  KeyBatch told = batch;
  told.distinct = true;
  // Each position takes a step and is counted, as above.
  std::vector<double> counts(kKeys);
  for (int64_t key : batch.keys) counts[static_cast<size_t>(key)] += 3.0;
  const std::vector<double> gradients(batch.size() * kDim, -1.0);
  std::atomic<bool> applying{true};
  InThreads(2, [&](size_t thread) {
    if (thread == 0) {
      for (int step = 0; step < 3; ++step) {
        EXPECT_TRUE(store->Apply(context, told, gradients.data(), DataType::kDouble, rule).ok());
      }
      applying = false;
    } else {
      while (applying) Look(KeysFrom(0, kKeys));
    }
  });
  EXPECT_EQ(counts, Look(KeysFrom(0, kKeys)));

  // A key gets one of its rows.
  std::vector<double> weights;
  std::map<int64_t, std::set<double>> given;
  for (size_t i = 0; i < batch.size(); ++i) {
    const double number = Pattern(batch.keys[i], static_cast<int64_t>(i));
    weights.insert(weights.end(), kDim, number);
    given[batch.keys[i]].insert(number);
  }
  ASSERT_TRUE(store->InsertOrAssign(context, told, weights.data(), {}).ok());
  std::set<int64_t> twice;
  const std::map<int64_t, double> all = Export(64, &twice);
  EXPECT_TRUE(twice.empty());
  EXPECT_EQ(given.size(), all.size());
  for (const auto& [key, number] : all) EXPECT_EQ(1u, given[key].count(number)) << "key " << key;
}

TEST_P(StoreConcurrency, AccumAndSlotsLoseNoUpdate) {
  Rule rule = MakeRule(RuleKind::kAdagrad, kDim);
  rule.learning_rate = 0.0;  // the slots count steps; only accum changes weights
  const std::vector<int64_t> keys = KeysFrom(0, 100);
  const std::vector<double> zeros(keys.size() * kDim), ones(keys.size() * kDim, 1.0);
  ASSERT_TRUE(store->Apply(serial, Batch(keys), ones.data(), DataType::kDouble, rule).ok());
  InThreads(4, [&](size_t thread) {
    const auto exists = std::make_unique<bool[]>(keys.size());
    std::fill_n(exists.get(), keys.size(), true);
    for (int step = 0; step < 500; ++step) {
      const Status status =
          thread % 2 == 0
              ? store->Apply(serial, Batch(keys), ones.data(), DataType::kDouble, rule)
              : store->Accum(serial, Batch(keys), zeros.data(), ones.data(), exists.get());
      ASSERT_TRUE(status.ok());
    }
  });
  for (double number : Look(keys)) EXPECT_EQ(1000.0, number);
  WholeRows rows(HostAllocator());
  ExportCursor cursor;
  ASSERT_TRUE(store->maintenance()->ExportBatch(keys.size(), &cursor, &rows).ok());
  ASSERT_EQ(keys.size(), rows.size);
  for (size_t i = 0; i < rows.size * kDim; ++i) {
    ASSERT_EQ(1001.0, reinterpret_cast<const double*>(rows.slots.data())[i]);
  }
}

TEST_P(StoreConcurrency, OfManyInsertersOfAKeyOneWinsForAll) {
  constexpr size_t kThreads = 4, kKeys = 20000;
  std::vector<std::vector<double>> seen(kThreads);
  InThreads(kThreads, [&](size_t thread) {
    const std::vector<double> mine(kDim, static_cast<double>(thread));
    std::vector<double> weights(100 * kDim);
    for (size_t first = 0; first < kKeys; first += 100) {
      const Batch batch = KeysFrom(static_cast<int64_t>(first), 100);
      ASSERT_TRUE(store
                      ->FindOrInsert(serial, batch, {DefaultRows::Kind::kOneForAll, mine.data()},
                                     weights.data(), nullptr)
                      .ok());
      for (size_t i = 0; i < 100; ++i) seen[thread].push_back(Whole(weights.data() + i * kDim));
    }
  });
  EXPECT_EQ(kKeys, store->size());
  for (size_t thread = 1; thread < kThreads; ++thread) EXPECT_EQ(seen[0], seen[thread]);
  EXPECT_EQ(seen[0], Look(KeysFrom(0, kKeys)));
}

TEST_P(StoreConcurrency, ReadersAndWritersGoOnBesideShrinkSetRuleAndExport) {
  const std::vector<int64_t> keys = KeysFrom(0, 500);
  Assign(keys, 0);
  std::atomic<int> working{2};
  InThreads(4, [&](size_t thread) {
    if (thread == 0) {
      for (int round = 0; round < 40; ++round) {
        ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
        const auto kind = round % 2 == 0 ? RuleKind::kAdam : RuleKind::kRowwiseAdagrad;
        ASSERT_TRUE(store->maintenance()->SetRule(FusedSlots(kind, kDim)).ok());
        std::set<int64_t> twice;
        const std::map<int64_t, double> all = Export(100, &twice);
        for (int64_t key : keys) ASSERT_EQ(1u, all.count(key)) << "a key left out of the export";
        for (const auto& [key, number] : all) ExpectOfKey(key, number);
      }
      --working;
    } else if (thread == 1) {
      for (int64_t version = 1; version <= 100; ++version) {
        Assign(keys, version);
        Assign(KeysFrom(1000 + version * 50, 50), version);
        ASSERT_TRUE(store->Erase(serial, Batch(KeysFrom(1000 + version * 50, 20))).ok());
      }
      --working;
    } else {
      while (working > 0) {
        const std::vector<double> numbers = Look(keys);
        for (size_t i = 0; i < keys.size(); ++i) {
          ASSERT_NE(kAbsent, numbers[i]);
          ExpectOfKey(keys[i], numbers[i]);
        }
      }
    }
  });
  EXPECT_EQ(500u + 100 * 30, store->size());
}

TEST_P(StoreConcurrency, ClearAndTakeContentReplaceAllAtOnce) {
  // Without other writers, a lookup finds all keys of one version, or no key.
  const Batch keys = KeysFrom(0, 300);
  const auto fresh_with = [&](int64_t version) {
    std::unique_ptr<Store> fresh = store->maintenance()->NewEmpty(0, RowInitializer());
    std::vector<double> weights;
    for (int64_t key : keys.keys) weights.insert(weights.end(), kDim, Pattern(key, version));
    EXPECT_TRUE(fresh->InsertOrAssign(serial, keys, weights.data(), {}).ok());
    return fresh;
  };
  std::atomic<bool> stop{false};
  InThreads(3, [&](size_t thread) {
    if (thread == 0) {
      for (int64_t version = 1; version <= 100; ++version) {
        EXPECT_TRUE(store->maintenance()->TakeContent(fresh_with(version).get()).ok());
        if (version % 3 == 0) {
          ASSERT_TRUE(store->Clear().ok());
        }
      }
      stop = true;
    } else {
      while (!stop) {
        const std::vector<double> numbers = Look(keys);
        for (size_t i = 0; i < keys.size(); ++i) {
          ASSERT_EQ(numbers[0] == kAbsent, numbers[i] == kAbsent);
          if (numbers[0] != kAbsent) {
            ASSERT_EQ(Pattern(keys.keys[i], 0) + numbers[0], numbers[i]);
          }
        }
      }
    }
  });
}

TEST_P(StoreConcurrency, ClearBesideInsertersLeavesAWholeStore) {
  InThreads(4, [&](size_t thread) {
    for (int64_t round = 0; round < 200; ++round) {
      if (thread == 0) {
        ASSERT_TRUE(store->Clear().ok());
      } else {
        Assign(KeysFrom(static_cast<int64_t>(thread) * 100000 + round * 100, 100), round);
      }
    }
  });
  const std::map<int64_t, double> all = Export(1000);
  EXPECT_EQ(store->size(), all.size());
  for (const auto& [key, number] : all) ExpectOfKey(key, number);
}

TEST_P(StoreConcurrency, ReadersSeeWholeRowsBesideGrowthEraseShrinkAndClear) {
  constexpr int64_t kKeys = 30000;
  std::atomic<int> working{2};
  std::atomic<bool> stop{false};
  InThreads(5, [&](size_t thread) {
    Random random(thread);
    if (thread < 2) {  // inserts new keys and overwrites them
      for (int64_t round = 0; round < 2; ++round) {
        for (int64_t first = 0; first < kKeys; first += 250) {
          Assign(KeysFrom(static_cast<int64_t>(thread) * kKeys + first, 250), round);
        }
      }
      if (--working == 0) stop = true;
    } else if (thread == 2) {
      for (int round = 1; !stop; ++round) {
        ASSERT_TRUE(
            (round % 8 == 0 ? store->Clear() : store->maintenance()->Shrink(ExecContext::Serial()))
                .ok());
        ASSERT_TRUE(store->Erase(serial, Batch(RandomKeys(500, 0, 2 * kKeys, &random))).ok());
      }
    } else {
      while (!stop) {
        const Batch batch = RandomKeys(500, 0, 2 * kKeys, &random);
        const std::vector<double> numbers = Look(batch);
        for (size_t i = 0; i < numbers.size(); ++i) ExpectOfKey(batch.keys[i], numbers[i]);
      }
    }
  });
  const std::map<int64_t, double> all = Export(1000);
  EXPECT_EQ(store->size(), all.size());
  for (const auto& [key, number] : all) ExpectOfKey(key, number);
}

TEST_P(StoreConcurrency, PausedWritersChangeNothingAndReadersGoOn) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> batches_written{0};
  InThreads(3, [&](size_t thread) {
    if (thread == 0) {
      for (int round = 1; round <= 50; ++round) {
        while (batches_written < 10 * round) std::this_thread::yield();
        HeldStores paused(HostAllocator());
        const Store* const stores[] = {store.get()};
        ASSERT_TRUE(paused.Take(stores, 1, Held::kPaused).ok());
        std::set<int64_t> twice;
        const size_t size = store->size();
        const std::map<int64_t, double> first = Export(64, &twice);
        const std::map<int64_t, double> second = Export(1000);
        Look(KeysFrom(0, 100));
        paused.Release();
        EXPECT_EQ(size, first.size());
        EXPECT_TRUE(twice.empty());
        EXPECT_TRUE(first == second);
      }
      stop = true;
    } else {
      Random random(thread);
      for (int64_t version = 0; !stop; ++version) {
        const Batch batch = RandomKeys(100, 0, 5000, &random);
        Assign(batch, version % 1000);
        ASSERT_TRUE(store->Erase(serial, Batch(RandomKeys(90, 0, 5000, &random))).ok());
        if (version % 50 == 0) {
          ASSERT_TRUE(store->maintenance()->Shrink(ExecContext::Serial()).ok());
        }
        batches_written += 1;
      }
    }
  });
}

TEST_P(StoreConcurrency, DifferentRulesAtOnceTakeTurns) {
  const Batch keys = KeysFrom(0, 50);
  const std::vector<double> gradients(keys.size() * kDim, 1.0);
  InThreads(3, [&](size_t thread) {
    const auto kind = thread == 0   ? RuleKind::kAdam
                      : thread == 1 ? RuleKind::kRowwiseAdagrad
                                    : RuleKind::kSgd;
    const Rule rule = MakeRule(kind, kDim);
    for (int step = 0; step < 50; ++step) {
      ASSERT_TRUE(store->Apply(serial, keys, gradients.data(), DataType::kDouble, rule).ok());
    }
  });
  EXPECT_EQ(keys.size(), store->size());
  for (double number : Look(keys)) EXPECT_LT(number, 0.0);
}

TEST_P(StoreConcurrency, VerbsOfManyThreadsMayThemselvesUseThreads) {
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  const ExecContext threads = Threads(2);
  const Batch keys = KeysFrom(0, 6000);  // two parts
  const std::vector<double> gradients(keys.size() * kDim, -1.0);
  InThreads(3, [&](size_t) {
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(store->Apply(threads, keys, gradients.data(), DataType::kDouble, rule).ok());
    }
  });
  for (double number : Look(keys)) ASSERT_EQ(12.0, number);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreConcurrency, testing::ValuesIn(WithoutTiers(AllStores())),
                         NameOfStore);
// Some tests have rows of 32 KB.
INSTANTIATE_TEST_SUITE_P(Tiers, StoreConcurrency, testing::Values(TieredStores(4096)), NameOfStore);

}  // namespace
}  // namespace tf_embed
