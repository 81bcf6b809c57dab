// Rows are read while they may be written. The reader notices afterwards, by the version word of
// the row's bucket, and reads again; but in C++ a plain copy that meets a writer is undefined even
// when its result is thrown away. So every access to the bytes of a row that others can see goes
// through here, as relaxed atomic words: plain moves on x86-64, and data-race-free by the standard.
#ifndef TF_EMBED_CC_CORE_ROW_COPY_H_
#define TF_EMBED_CC_CORE_ROW_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tf_embed {

// Reads `bytes` of a row into memory that is the caller's alone. `row` is aligned to a word.
inline void LoadRow(const char* row, size_t bytes, void* out) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(row);
  char* const to = static_cast<char*>(out);
  const size_t whole = bytes / sizeof(uint64_t);
  for (size_t i = 0; i < whole; ++i) {
    const uint64_t word = __atomic_load_n(words + i, __ATOMIC_RELAXED);
    std::memcpy(to + i * sizeof(word), &word, sizeof(word));
  }
  const size_t rest = bytes % sizeof(uint64_t);
  if (rest > 0) {
    const uint64_t word = __atomic_load_n(words + whole, __ATOMIC_RELAXED);
    std::memcpy(to + whole * sizeof(word), &word, rest);
  }
}

// Writes `bytes` into a row; the last word is filled with zeros. The caller is the only writer.
inline void StoreRow(const void* from, size_t bytes, char* row) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(row);
  const char* const source = static_cast<const char*>(from);
  const size_t whole = bytes / sizeof(uint64_t);
  for (size_t i = 0; i < whole; ++i) {
    uint64_t word;
    std::memcpy(&word, source + i * sizeof(word), sizeof(word));
    __atomic_store_n(words + i, word, __ATOMIC_RELAXED);
  }
  const size_t rest = bytes % sizeof(uint64_t);
  if (rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, source + whole * sizeof(word), rest);
    __atomic_store_n(words + whole, word, __ATOMIC_RELAXED);
  }
}

inline void PrefetchRow(const char* row, size_t bytes) {
  // Beyond a few lines the hardware's own prefetcher has seen the stream.
  constexpr size_t kLine = 64;
  constexpr size_t kMostLines = 16;
  const size_t end = bytes < kMostLines * kLine ? bytes : kMostLines * kLine;
  for (size_t offset = 0; offset < end; offset += kLine) __builtin_prefetch(row + offset, 1);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROW_COPY_H_
