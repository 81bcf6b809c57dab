// SPDX-License-Identifier: Apache-2.0
#include "cc/core/policy/admission.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/index/striped_index.h"

namespace tf_embed {
namespace {

// The capacity of the first of a chain of Bloom filters, in keys.
constexpr size_t kFirstFilterKeys = size_t{1} << 16;

Status Damaged() {
  return Status::InvalidArgument("The saved state of an admission is damaged, or of another kind.");
}

Status OfAnotherKind() {
  return Status::InvalidArgument(
      "What one admission has counted can't be added to that of another kind, or to filters of "
      "other sizes.");
}

Status NoMemory() {
  return Status::ResourceExhausted(
      [] { return "No memory to count the keys that wait for admission."; });
}

// Two generations of counts. Generation must have
//     uint32_t Get(hash) const     the count of a key
//     Status Raise(hash)           adds 1 to it
//     void Prefetch(hash)          prefetches the memory of both
//     void Forget(hash)            may set it to 0
//     size_t keys() const          how many keys have a count, roughly
//     size_t bytes() const; Save(numbers); Load(&at, end)
//     bool CanMerge(other) const; Status Merge(other)     adds the counts of other keys
template <typename Generation>
class Waiting final : public Admission {
 public:
  Waiting(Allocator* allocator, Kind kind, uint32_t threshold, size_t max_keys,
          const typename Generation::Options& options)
      : allocator_(allocator),
        kind_(kind),
        threshold_(threshold),
        max_keys_(max_keys),
        options_(options),
        young_(New()),
        old_(New()) {}

  Status Count(const int64_t* keys, size_t count, bool* admitted) override {
    std::lock_guard<OrderedMutex> lock(mutex_);
    constexpr size_t kAhead = 8;
    for (size_t i = 0; i < std::min(kAhead, count); ++i) young_->Prefetch(HashKey(keys[i]));
    for (size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) young_->Prefetch(HashKey(keys[i + kAhead]));
      const uint64_t hash = HashKey(keys[i]);
      const uint32_t young = young_->Get(hash);
      const uint32_t old = max_keys_ > 0 ? old_->Get(hash) : 0;
      admitted[i] = young + old + 1 >= threshold_;
      if (admitted[i]) continue;
      if (max_keys_ > 0 && young == 0 && young_->keys() >= std::max<size_t>(1, max_keys_ / 2)) {
        TF_EMBED_RETURN_IF_ERROR(BeginGeneration());
      }
      TF_EMBED_RETURN_IF_ERROR(young_->Raise(hash));
    }
    return Status();
  }

  void Peek(const int64_t* keys, size_t count, bool* admitted) const override {
    std::lock_guard<OrderedMutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t hash = HashKey(keys[i]);
      admitted[i] = young_->Get(hash) + old_->Get(hash) + 1 >= threshold_;
    }
  }

  void Forget(const int64_t* keys, size_t count) override {
    std::lock_guard<OrderedMutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      young_->Forget(HashKey(keys[i]));
      if (max_keys_ > 0) old_->Forget(HashKey(keys[i]));
    }
  }

  Status Clear() override {
    try {
      std::unique_ptr<Generation> young = New(), old = New();
      std::lock_guard<OrderedMutex> lock(mutex_);
      young_.swap(young);
      old_.swap(old);
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    return Status();
  }

  size_t bytes() const override {
    std::lock_guard<OrderedMutex> lock(mutex_);
    return young_->bytes() + old_->bytes();
  }

  Status Save(std::vector<int64_t>* numbers) const override {
    std::lock_guard<OrderedMutex> lock(mutex_);
    numbers->push_back(static_cast<int64_t>(kind_));
    numbers->push_back(static_cast<int64_t>(threshold_));
    young_->Save(numbers);
    old_->Save(numbers);
    return Status();
  }

  Status Load(const int64_t* numbers, size_t count) override {
    if (count < 2 || numbers[0] != static_cast<int64_t>(kind_) || numbers[1] < 1) return Damaged();
    const int64_t* at = numbers + 2;
    const int64_t* const end = numbers + count;
    std::unique_ptr<Generation> young = New(), old = New();
    TF_EMBED_RETURN_IF_ERROR(young->Load(&at, end));
    TF_EMBED_RETURN_IF_ERROR(old->Load(&at, end));
    if (at != end) return Damaged();
    std::lock_guard<OrderedMutex> lock(mutex_);
    young_ = std::move(young);
    old_ = std::move(old);
    return Status();
  }

  // No other thread has `other`.
  Status Merge(const Admission& other) override TF_EMBED_LOCKS_UNCHECKED {
    if (other.kind() != kind_) return OfAnotherKind();
    const auto& added = static_cast<const Waiting&>(other);
    std::lock_guard<OrderedMutex> lock(mutex_);
    if (!young_->CanMerge(*added.young_) || !old_->CanMerge(*added.old_)) return OfAnotherKind();
    TF_EMBED_RETURN_IF_ERROR(young_->Merge(*added.young_));
    return old_->Merge(*added.old_);
  }

  Kind kind() const override { return kind_; }

 private:
  std::unique_ptr<Generation> New() const {
    return std::make_unique<Generation>(allocator_, options_);
  }

  Status BeginGeneration() TF_EMBED_REQUIRES(mutex_) {
    try {
      old_ = std::exchange(young_, New());
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    return Status();
  }

  Allocator* const allocator_;
  const Kind kind_;
  const uint32_t threshold_;
  const size_t max_keys_;
  const typename Generation::Options options_;
  mutable OrderedMutex mutex_{LockRank::kCounts};
  std::unique_ptr<Generation> young_ TF_EMBED_GUARDED_BY(mutex_);
  std::unique_ptr<Generation> old_ TF_EMBED_GUARDED_BY(mutex_);
};

// An index of keys, with counts in place of row ids.
class Counts {
 public:
  struct Options {};

  Counts(Allocator* allocator, const Options&) : index_(allocator, 0) {}

  void Prefetch(uint64_t hash) const { __builtin_prefetch(index_.HomeOf(hash), 1); }

  uint32_t Get(uint64_t hash) const {
    const StripedIndex::Entry entry = index_.Find(KeyOfHash(hash), hash);
    return entry.found() ? entry.row_id : 0;
  }

  Status Raise(uint64_t hash) { return Add(hash, 1); }

  void Forget(uint64_t hash) {
    if (index_.Erase(KeyOfHash(hash), hash) != kNoRowId) --keys_;
  }

  size_t keys() const { return keys_; }
  size_t bytes() const { return index_.bytes(); }

  // | keys | key, count of each ... |
  void Save(std::vector<int64_t>* numbers) const {
    numbers->push_back(static_cast<int64_t>(keys_));
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      index_.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t count) {
        numbers->push_back(key);
        numbers->push_back(count);
      });
    }
  }

  Status Load(const int64_t** at, const int64_t* end) {
    if (*at == end) return Damaged();
    const uint64_t keys = static_cast<uint64_t>(*(*at)++);
    if (keys > static_cast<uint64_t>(end - *at) / 2) return Damaged();
    for (uint64_t i = 0; i < keys; ++i, *at += 2) {
      const int64_t count = (*at)[1];
      if (count < 1 || count >= kNoRowId) return Damaged();
      TF_EMBED_RETURN_IF_ERROR(Add(HashKey((*at)[0]), static_cast<uint32_t>(count)));
    }
    return keys_ == keys ? Status() : Damaged();
  }

  bool CanMerge(const Counts&) const { return true; }

  Status Merge(const Counts& other) {
    Status status;
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      other.index_.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t count) {
        if (status.ok()) status = Add(HashKey(key), count);
      });
    }
    return status;
  }

 private:
  Status Add(uint64_t hash, uint32_t by) {
    const int64_t key = KeyOfHash(hash);
    const StripedIndex::Entry entry = index_.Find(key, hash);
    if (!entry.found()) {
      TF_EMBED_RETURN_IF_ERROR(index_.Insert(key, hash, by));
      if (index_.has_retired()) index_.DropRetired();
      ++keys_;
      return Status();
    }
    constexpr uint32_t kMax = kNoRowId - 1;
    entry.bucket->row_ids[entry.bucket->FindLane(key)].store(
        entry.row_id > kMax - by ? kMax : entry.row_id + by, std::memory_order_relaxed);
    return Status();
  }

  StripedIndex index_;
  size_t keys_ = 0;
};

// A counting Bloom filter of a given capacity (Fan, Cao, Almeida and Broder, "Summary cache",
// 2000): each key has `hashes` cells, and the lowest of them is its count, or more. A cell has 1,
// 2, 4, 8 or 16 bits, as the threshold needs, and saturates.
class BloomFilter {
 public:
  // If half of the cells are above 0, all cells of an absent key are above 0 with probability
  // 2^-hashes. By Bloom's formula, capacity * hashes / ln 2 cells are half full at `capacity` keys.
  BloomFilter(Allocator* allocator, size_t capacity, double error_rate, int cell_bits)
      : capacity_(capacity),
        hashes_(static_cast<size_t>(HashesFor(error_rate))),
        num_cells_(static_cast<size_t>(
            std::ceil(static_cast<double>(capacity * hashes_) / std::log(2.0)))),
        cell_bits_(cell_bits),
        words_((num_cells_ * static_cast<size_t>(cell_bits) + 63) / 64),
        cells_(allocator) {
    if (!cells_.Resize(words_).ok()) throw std::bad_alloc();
    std::memset(cells_.data(), 0, bytes());
  }

  // The approximate number of 64-bit words of such a filter: may exceed the integer types.
  static double WordsFor(double capacity, double error_rate, int cell_bits) {
    return capacity * HashesFor(error_rate) / std::log(2.0) * cell_bits / 64;
  }

  size_t bytes() const { return words_ * sizeof(uint64_t); }
  size_t keys() const { return keys_; }
  bool full() const { return keys_ >= capacity_; }

  void Prefetch(uint64_t hash) const {
    const Places places(hash);
    for (size_t i = 0; i < hashes_; ++i) __builtin_prefetch(&cells_[Word(places.Cell(i, this))], 1);
  }

  uint32_t Get(uint64_t hash) const {
    const Places places(hash);
    uint32_t least = most();
    for (size_t i = 0; i < hashes_ && least > 0; ++i) {
      const size_t cell = places.Cell(i, this);
      least = std::min(least, static_cast<uint32_t>(cells_[Word(cell)] >> Shift(cell)) & most());
    }
    return least;
  }

  void Raise(uint64_t hash) {
    if (Get(hash) == 0) ++keys_;
    const Places places(hash);
    for (size_t i = 0; i < hashes_; ++i) {
      const size_t cell = places.Cell(i, this);
      uint64_t& word = cells_[Word(cell)];
      const uint64_t one = uint64_t{1} << Shift(cell);
      if (((word >> Shift(cell)) & most()) < most()) word += one;
    }
  }

  // | keys | words of cells ... |
  void Save(std::vector<int64_t>* numbers) const {
    numbers->push_back(static_cast<int64_t>(keys_));
    const size_t begin = numbers->size();
    numbers->resize(begin + words_);
    std::memcpy(numbers->data() + begin, cells_.data(), bytes());
  }

  Status Load(const int64_t** at, const int64_t* end) {
    if (static_cast<size_t>(end - *at) < 1 + words_) return Damaged();
    keys_ = static_cast<size_t>(*(*at)++);
    std::memcpy(cells_.data(), *at, bytes());
    *at += words_;
    return Status();
  }

  // Takes the higher of each two cells. No key is in both filters, so it is not counted too low.
  void Merge(const BloomFilter& other) {
    for (size_t cell = 0; cell < num_cells_; ++cell) {
      const uint64_t mask = uint64_t{most()} << Shift(cell);
      uint64_t& word = cells_[Word(cell)];
      const uint64_t theirs = other.cells_[Word(cell)] & mask;
      if (theirs > (word & mask)) word = (word & ~mask) | theirs;
    }
    keys_ += other.keys_;
  }

 private:
  // The cells of a key, by double hashing (Kirsch and Mitzenmacher, "Less hashing, same
  // performance", 2006).
  struct Places {
    explicit Places(uint64_t hash)
        : first(Mix64(hash ^ kGolden64)), step(Mix64(first + kGolden64) | 1) {}
    size_t Cell(size_t i, const BloomFilter* filter) const {
      return static_cast<size_t>((static_cast<Uint128>(first + i * step) * filter->num_cells_) >>
                                 64);
    }
    uint64_t first;
    uint64_t step;
  };
  __extension__ typedef unsigned __int128 Uint128;

  static double HashesFor(double error_rate) {
    return std::max(1.0, std::ceil(-std::log2(error_rate)));
  }
  uint32_t most() const { return (1u << cell_bits_) - 1; }
  size_t Word(size_t cell) const { return cell * static_cast<size_t>(cell_bits_) / 64; }
  int Shift(size_t cell) const {
    return static_cast<int>(cell * static_cast<size_t>(cell_bits_) % 64);
  }

  const size_t capacity_;
  const size_t hashes_;
  const size_t num_cells_;
  const int cell_bits_;
  const size_t words_;
  size_t keys_ = 0;
  Buffer<uint64_t> cells_;
};

// Filters, each twice as large as the filter before and half as often in error, so that all errors
// add up to the requested rate for any number of keys (Almeida, Baquero, Preguica and Hutchison,
// "Scalable Bloom filters", 2007). A key is counted in the filter with its highest count, so the
// joint count is never too low. Admitted keys stay counted, because other keys may share their
// cells.
class BloomFilters {
 public:
  struct Options {
    double error_rate;
    size_t capacity;  // of the first filter
    int cell_bits;
    int generations = 1;  // the most of them that are in memory together; not saved
  };

  BloomFilters(Allocator* allocator, const Options& options)
      : allocator_(allocator), options_(options) {
    AddFilter();
  }

  void Prefetch(uint64_t hash) const {
    for (const auto& filter : filters_) filter->Prefetch(hash);
  }

  uint32_t Get(uint64_t hash) const {
    uint32_t most = 0;
    for (const auto& filter : filters_) most = std::max(most, filter->Get(hash));
    return most;
  }

  Status Raise(uint64_t hash) {
    BloomFilter* best = nullptr;
    uint32_t most = 0;
    for (const auto& filter : filters_) {
      const uint32_t count = filter->Get(hash);
      if (count > most) best = filter.get();
      most = std::max(most, count);
    }
    if (best == nullptr) {
      try {
        if (filters_.back()->full()) AddFilter();
      } catch (const std::bad_alloc&) {
        return NoMemory();
      }
      best = filters_.back().get();
    }
    best->Raise(hash);
    return Status();
  }

  void Forget(uint64_t) {}

  size_t keys() const {
    size_t sum = 0;
    for (const auto& filter : filters_) sum += filter->keys();
    return sum;
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& filter : filters_) sum += filter->bytes();
    return sum;
  }

  // | bits of a cell | capacity of the first filter | error rate's bits | filters | each ... |
  void Save(std::vector<int64_t>* numbers) const {
    numbers->push_back(options_.cell_bits);
    numbers->push_back(static_cast<int64_t>(options_.capacity));
    int64_t error_rate;
    std::memcpy(&error_rate, &options_.error_rate, sizeof(error_rate));
    numbers->push_back(error_rate);
    numbers->push_back(static_cast<int64_t>(filters_.size()));
    for (const auto& filter : filters_) filter->Save(numbers);
  }

  Status Load(const int64_t** at, const int64_t* end) {
    if (end - *at < 4) return Damaged();
    Options options = options_;
    if ((*at)[0] < 1 || (*at)[0] > 16) return Damaged();
    options.cell_bits = static_cast<int>((*at)[0]);
    options.capacity = static_cast<size_t>((*at)[1]);
    std::memcpy(&options.error_rate, *at + 2, sizeof(options.error_rate));
    const int64_t filters = (*at)[3];
    *at += 4;
    const bool good_bits = (options.cell_bits & (options.cell_bits - 1)) == 0;
    if (!good_bits || !(options.error_rate > 0.0 && options.error_rate < 1.0) ||
        options.capacity < 1 || options.capacity > static_cast<size_t>(end - *at) * 64 ||
        filters < 1 || filters > 64) {
      return Damaged();
    }
    options_ = options;
    filters_.clear();
    for (int64_t i = 0; i < filters; ++i) {
      // The saved numbers must hold its cells before memory is taken for them.
      if (WordsOfNext() > static_cast<double>(end - *at)) return Damaged();
      AddFilter();
      TF_EMBED_RETURN_IF_ERROR(filters_.back()->Load(at, end));
    }
    return Status();
  }

  bool CanMerge(const BloomFilters& other) const {
    return options_.cell_bits == other.options_.cell_bits &&
           options_.capacity == other.options_.capacity &&
           options_.error_rate == other.options_.error_rate;
  }

  Status Merge(const BloomFilters& other) {
    try {
      while (filters_.size() < other.filters_.size()) AddFilter();
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    for (size_t i = 0; i < other.filters_.size(); ++i) filters_[i]->Merge(*other.filters_[i]);
    return Status();
  }

 private:
  double WordsOfNext() const {
    const int number = static_cast<int>(filters_.size());
    return BloomFilter::WordsFor(std::ldexp(static_cast<double>(options_.capacity), number),
                                 std::ldexp(options_.error_rate, -number - 1), options_.cell_bits);
  }

  void AddFilter() {  // may throw std::bad_alloc
    const int number = static_cast<int>(filters_.size());
    const double needed =
        (static_cast<double>(bytes()) + WordsOfNext() * sizeof(uint64_t)) * options_.generations;
    // Cells are written at once, and without the memory for them the system would end the process.
    // This also keeps the numbers below within their types.
    if (!(needed < static_cast<double>(PhysicalMemoryBytes()))) throw std::bad_alloc();
    filters_.push_back(std::make_unique<BloomFilter>(allocator_, options_.capacity << number,
                                                     std::ldexp(options_.error_rate, -number - 1),
                                                     options_.cell_bits));
  }

  Allocator* const allocator_;
  Options options_;
  std::vector<std::unique_ptr<BloomFilter>> filters_;
};

}  // namespace

void Admission::SavedKeys(const std::vector<int64_t>& numbers, std::vector<int64_t>* keys) {
  if (numbers.empty() || numbers[0] != static_cast<int64_t>(Kind::kCounter)) return;
  // | kind | threshold | of each generation: keys | key, count ... |
  for (size_t at = 2; at < numbers.size();) {
    const size_t end = at + 1 + 2 * static_cast<size_t>(numbers[at]);
    for (++at; at < end; at += 2) keys->push_back(numbers[at]);
  }
}

std::shared_ptr<Admission> Admission::NewCounter(Allocator* allocator, uint32_t threshold,
                                                 size_t max_keys) {
  try {
    return std::make_shared<Waiting<Counts>>(allocator, Kind::kCounter, threshold, max_keys,
                                             Counts::Options{});
  } catch (const std::bad_alloc&) {  // null: no memory, an error of the caller
    return nullptr;
  }
}

std::shared_ptr<Admission> Admission::NewBloom(Allocator* allocator, uint32_t threshold,
                                               double error_rate, size_t max_keys) {
  BloomFilters::Options options;
  // A cell need not count beyond the number with which the next apply is admitted.
  options.cell_bits = 1;
  while (options.cell_bits < 16 && threshold > (1u << options.cell_bits)) options.cell_bits *= 2;
  options.capacity = kFirstFilterKeys;
  options.error_rate = error_rate;
  if (max_keys > 0) {  // a filter for a generation's keys; two generations share the errors
    options.capacity = std::max<size_t>(1, max_keys / 2);
    options.error_rate /= 2;
    options.generations = 3;  // the next generation is made before the oldest is freed
  }
  try {
    return std::make_shared<Waiting<BloomFilters>>(allocator, Kind::kBloom, threshold, max_keys,
                                                   options);
  } catch (const std::bad_alloc&) {  // null: no memory, an error of the caller
    return nullptr;
  }
}

}  // namespace tf_embed
