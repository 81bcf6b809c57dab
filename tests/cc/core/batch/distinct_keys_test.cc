// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/distinct_keys.h"

#include "cc/core/loops/sum_rows.h"
#include "tests/cc/support/reference_store.h"

namespace tf_embed {
namespace {

std::vector<KeyRecord> Records(const Batch& batch) {
  std::vector<KeyRecord> records;
  for (size_t i = 0; i < batch.size(); ++i) {
    records.push_back({batch.keys[i], static_cast<uint32_t>(batch.Position(i))});
  }
  return records;
}

template <typename T>
void CheckSums(const Batch& batch, size_t dim, Random* random) {
  using Compute = typename Number<T>::Compute;
  const std::vector<T> gradients = RandomValues<T>(batch.places * dim, random);
  std::map<int64_t, std::vector<Compute>> expected;
  std::vector<int64_t> order;
  for (size_t i = 0; i < batch.size(); ++i) {
    const T* const gradient = gradients.data() + batch.Position(i) * dim;
    const bool first = expected.count(batch.keys[i]) == 0;
    if (first) order.push_back(batch.keys[i]);
    std::vector<Compute>& sum = expected[batch.keys[i]];
    sum.resize(dim);
    for (size_t j = 0; j < dim; ++j) {
      const Compute g = Number<T>::Load(gradient[j]);
      sum[j] = first ? g : sum[j] + g;
    }
  }
  const std::vector<KeyRecord> records = Records(batch);
  DistinctKeys distinct(HostAllocator());
  constexpr uint32_t kBegin = 3;
  std::vector<uint32_t> positions(kBegin + records.size());
  std::vector<KeyRun> runs(records.size());
  ASSERT_TRUE(distinct
                  .Find({records.data(), records.data() + records.size()}, kBegin,
                        positions.data() + kBegin, runs.data())
                  .ok());
  std::vector<Compute> sum(dim);
  size_t next = 0;
  for (size_t j = 0; j < records.size(); ++j) {
    const bool is_first = next < order.size() && records[j].key == order[next];
    ASSERT_EQ(is_first, runs[j].count > 0);
    if (!is_first) continue;
    for (const InstructionSet set : InstructionSetsHere()) {
      const Compute* const found = SumRows(LoopsOf(set), GradientRows<T>(gradients.data(), dim),
                                           &positions[runs[j].begin], runs[j].count, sum.data());
      ExpectSameBits(expected[order[next]], std::vector<Compute>(found, found + dim), NameOf(set));
    }
    ++next;
  }
  EXPECT_EQ(order.size(), next);
}

TEST(DistinctKeys, SumsGradientsInTheOrderOfTheBatch) {
  Random random(1);
  for (size_t size : {0, 1, 2, 15, 16, 17, 1000, 5000}) {
    for (int64_t range : {0, 3, 1000}) {
      const Batch batch = Scattered(RandomKeys(size, -range, range, &random), &random);
      CheckSums<float>(batch, 7, &random);
      CheckSums<float>(batch, 64 + 16 + 8 + 4 + 1, &random);
      CheckSums<double>(batch, 1, &random);
      CheckSums<double>(batch, 35, &random);
      CheckSums<Half>(batch, 3, &random);
      CheckSums<BFloat16>(batch, 16, &random);
    }
  }
}

TEST(DistinctKeys, TellsExtremeKeysApart) {
  Random random(2);
  std::vector<int64_t> keys = ExtremeKeys();
  const std::vector<int64_t> again = ExtremeKeys();
  keys.insert(keys.end(), again.begin(), again.end());
  CheckSums<float>(keys, 2, &random);
}

TEST(SumRows, DoesNotCopyOneGradient) {
  const float gradients[] = {0, 1, 2};
  const uint32_t position = 2;
  float sum;
  EXPECT_EQ(gradients + 2, SumRows(LoopsOf(BestInstructionSet()), GradientRows<float>(gradients, 1),
                                   &position, 1, &sum));
}

}  // namespace
}  // namespace tf_embed
