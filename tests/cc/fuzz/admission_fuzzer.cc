// SPDX-License-Identifier: Apache-2.0
// The counts of an admission, as in row files and in checkpoints.
//
//     | threshold and size : 8 | numbers : 8 each |
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/policy/admission.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

std::shared_ptr<Admission> New(Admission::Kind kind, uint64_t settings, Allocator* allocator) {
  const auto threshold = static_cast<uint32_t>(1 + settings % 300);
  const size_t max_keys = settings / 300 % 64;
  return kind == Admission::Kind::kCounter
             ? Admission::NewCounter(allocator, threshold, max_keys)
             : Admission::NewBloom(allocator, threshold, 0.1, max_keys);
}

bool ReadCounts(Admission::Kind kind, uint64_t settings, const std::vector<int64_t>& numbers) {
  // Each stripe of an index begins with a few buckets, even if there are few keys.
  BoundedAllocator allocator((size_t{64} << 20) + 1000 * numbers.size());
  const std::shared_ptr<Admission> admission = New(kind, settings, &allocator);
  Require(admission != nullptr, "there is memory");
  if (!admission->Load(numbers.data(), numbers.size()).ok()) return false;
  std::vector<int64_t> saved, saved_again, keys;
  Require(admission->Save(&saved).ok(), "counts can be saved");
  const std::shared_ptr<Admission> again = New(kind, settings, &allocator);
  Require(again->Load(saved.data(), saved.size()).ok(), "counts that were saved are loaded");
  Require(again->Save(&saved_again).ok() && saved_again.size() == saved.size(),
          "counts are saved as they were");
  Admission::SavedKeys(numbers, &keys);
  keys.resize(std::min<size_t>(keys.size(), 16));
  keys.insert(keys.end(), {-1, 0, 1});
  bool admitted[32];
  for (const int64_t key : keys) {
    admission->Peek(&key, 1, admitted);
    Require(admission->Count(&key, 1, admitted).ok(), "counting goes on");
  }
  (void)admission->Merge(*again);
  admission->Forget(keys.data(), keys.size());
  Require(admission->Save(&saved).ok() && admission->Clear().ok(), "all verbs work");
  return true;
}

}  // namespace

bool Read(std::string_view bytes) {
  std::vector<int64_t> numbers = NumbersOf(bytes);
  if (numbers.empty()) return false;
  const auto settings = static_cast<uint64_t>(numbers.front());
  numbers.erase(numbers.begin());
  const bool counter = ReadCounts(Admission::Kind::kCounter, settings, numbers);
  return ReadCounts(Admission::Kind::kBloom, settings, numbers) || counter;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const Admission::Kind kind : {Admission::Kind::kCounter, Admission::Kind::kBloom}) {
    for (const int64_t settings : {int64_t{4}, int64_t{300 * 8 + 2}}) {
      const auto admission = New(kind, static_cast<uint64_t>(settings), HostAllocator());
      std::vector<int64_t> numbers;
      bool admitted;
      for (int64_t key = 0; key < 12; ++key) {
        Require(admission->Count(&key, 1, &admitted).ok(), "a key is counted");
      }
      Require(admission->Save(&numbers).ok(), "counts are saved");
      numbers.insert(numbers.begin(), settings);
      seeds.push_back(BytesOf(numbers));
    }
  }
  return seeds;
}

}  // namespace tf_embed::fuzz
