// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/message.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

StringBatch BatchOf(const std::vector<std::string>& strings) {
  StringBatch batch;
  batch.strings = &strings;
  batch.size = strings.size();
  batch.string = [](const void* all, size_t i) {
    return std::string_view((*static_cast<const std::vector<std::string>*>(all))[i]);
  };
  return batch;
}

TEST(Message, NarrowRowsTakeTheirBytesAndNoMore) {
  const std::vector<float> rows = {1.0f, 2.0f, 3.0f};  // two of them are sent
  for (const WireType wire : {WireType::kBFloat16, WireType::kHalf}) {
    std::string message(2 * kWordBytes, '?');
    PackRows(reinterpret_cast<const char*>(rows.data()), 2, sizeof(float), wire, message.data());
    EXPECT_EQ("????", message.substr(kWordBytes));
    std::vector<float> back(3, 7.0f);
    UnpackRows(message.data(), 2, sizeof(float), wire, reinterpret_cast<char*>(back.data()));
    EXPECT_EQ((std::vector<float>{1.0f, 2.0f, 7.0f}), back);
  }
}

TEST(Message, RowsComeBackAsTheyWere) {
  for (const size_t row_bytes : {1, 2, 8, 12}) {
    std::string rows(row_bytes * 5, '\0');
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<char>(i * 37 + 1);
    std::vector<char> message(WordsOfBytes(rows.size()) * kWordBytes, 'x');
    PackRows(rows.data(), 5, row_bytes, WireType::kAsTheyAre, message.data());
    std::string back(rows.size(), '\0');
    UnpackRows(message.data(), 5, row_bytes, WireType::kAsTheyAre, back.data());
    EXPECT_EQ(rows, back);
    for (size_t i = rows.size(); i < message.size(); ++i) EXPECT_EQ(0, message[i]);
  }
}

TEST(Message, NarrowNumbersAreRoundedOnce) {
  const std::vector<float> rows = {1.0f, -2.5f, 1.0f + 1.0f / 512, 3.0e38f, 70000.0f, 0.1f};
  std::vector<char> message(rows.size() * 2);
  std::vector<float> back(rows.size());
  PackRows(reinterpret_cast<const char*>(rows.data()), 2, 12, WireType::kBFloat16, message.data());
  UnpackRows(message.data(), 2, 12, WireType::kBFloat16, reinterpret_cast<char*>(back.data()));
  EXPECT_EQ(1.0f, back[0]);
  EXPECT_EQ(-2.5f, back[1]);
  EXPECT_EQ(1.0f, back[2]);  // 1 + 1/512 is between 1 and 1 + 1/128
  EXPECT_NEAR(3.0e38f, back[3], 3.0e38f / 256);
  EXPECT_NEAR(0.1f, back[5], 0.1f / 256);
  PackRows(reinterpret_cast<const char*>(rows.data()), 2, 12, WireType::kHalf, message.data());
  UnpackRows(message.data(), 2, 12, WireType::kHalf, reinterpret_cast<char*>(back.data()));
  EXPECT_EQ(1.0f + 1.0f / 512, back[2]);
  EXPECT_EQ(std::numeric_limits<float>::infinity(), back[4]);
  EXPECT_NEAR(0.1f, back[5], 0.1f / 2048);
}

TEST(Message, StringsComeBackAsTheyWere) {
  const std::vector<std::string> strings = {"", "abc", std::string("\0\xff", 2), "defgh", "z"};
  const StringBatch batch = BatchOf(strings);
  const uint64_t words = WordsOfStrings(batch, 1, 5);
  ASSERT_EQ(4u + 3u, words);  // 4 lengths and 11 bytes
  std::vector<char> message(words * kWordBytes, 'x');
  PackStrings(batch, 1, 5, message.data());
  std::vector<std::string> back(4);
  uint64_t read = 0;
  ASSERT_TRUE(UnpackStrings(
                  message.data(), words, 4,
                  [&](size_t i, std::string_view string) { back[i] = std::string(string); }, &read)
                  .ok());
  EXPECT_EQ(words, read);
  EXPECT_EQ(std::vector<std::string>(strings.begin() + 1, strings.end()), back);
}

TEST(Message, LengthsThatAreTooLargeAreRefused) {
  const std::vector<std::string> strings = {"abcd", "efgh"};
  const StringBatch batch = BatchOf(strings);
  std::vector<char> message(WordsOfStrings(batch, 0, 2) * kWordBytes);
  PackStrings(batch, 0, 2, message.data());
  const auto take = [](size_t, std::string_view) {};
  uint64_t read = 0;
  EXPECT_TRUE(UnpackStrings(message.data(), 4, 2, take, &read).ok());
  EXPECT_EQ(StatusCode::kDataLoss, UnpackStrings(message.data(), 3, 2, take, &read).code());
  EXPECT_EQ(StatusCode::kDataLoss, UnpackStrings(message.data(), 1, 2, take, &read).code());
  message[3] = '\x7f';  // the first length is above 2^30 now
  EXPECT_EQ(StatusCode::kDataLoss, UnpackStrings(message.data(), 4, 2, take, &read).code());
}

TEST(Message, CapacitiesAreFewAndAtMostAnEighthTooLong) {
  int32_t last_number = -1;
  uint64_t last_words = 0;
  for (uint64_t words = 0; words <= kMaxCapacityWords; words += 1 + words / 100) {
    const Capacity capacity = CapacityFor(words);
    EXPECT_GE(capacity.words, words);
    EXPECT_LE(capacity.words, std::max(kMinCapacityWords, words + words / 8));
    EXPECT_GE(capacity.number, last_number);
    EXPECT_EQ(capacity.number == last_number, capacity.words == last_words)
        << "one number, one length";
    last_number = capacity.number;
    last_words = capacity.words;
  }
  EXPECT_LT(CapacityFor(kMaxCapacityWords).number, kNumCapacities);
}

}  // namespace
}  // namespace tf_embed
