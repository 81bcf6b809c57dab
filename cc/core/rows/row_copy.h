// SPDX-License-Identifier: Apache-2.0
// Rows are read while they may be written. The reader notices afterwards, by the version word of
// the row's bucket, and reads again. But in C++ a plain copy that meets a writer is undefined even
// if its result is discarded. So every access to the bytes of a row that others can see goes
// through here. It is a volatile access of a whole pack: the compiler may neither leave it out, nor
// repeat it, nor take it apart. Each aligned word in it is read or written at once, on x86-64 and
// on 64-bit ARM. ThreadSanitizer does not know such accesses; under it they are relaxed atomic
// words, so it checks the protocol around them.
#ifndef TF_EMBED_CC_CORE_ROWS_ROW_COPY_H_
#define TF_EMBED_CC_CORE_ROWS_ROW_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/core/base/pack.h"
#include "cc/core/base/platform.h"

namespace tf_embed {

// Reads a pack of bytes out of a row. `from` is aligned to a word.
template <typename V>
TF_EMBED_INLINE V LoadShared(const char* from) {
#if defined(TF_EMBED_THREAD_SANITIZER)
  V pack;
  for (size_t i = 0; i < sizeof(V); i += sizeof(uint64_t)) {
    const uint64_t word =
        __atomic_load_n(reinterpret_cast<const uint64_t*>(from + i), __ATOMIC_RELAXED);
    std::memcpy(reinterpret_cast<char*>(&pack) + i, &word, sizeof(word));
  }
  return pack;
#else
  using Unaligned = typename PackOf<uint64_t, sizeof(V)>::Unaligned;
  const Unaligned pack = *reinterpret_cast<const volatile Unaligned*>(from);
  return (V)pack;
#endif
}

// Writes a number or a pack of numbers into a row. The caller is the only writer.
template <typename T, typename V>
TF_EMBED_INLINE void StoreShared(V value, T* to) {
#if defined(TF_EMBED_THREAD_SANITIZER)
  const T* const numbers = reinterpret_cast<const T*>(&value);
  for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) {
    __atomic_store(to + i, const_cast<T*>(numbers + i), __ATOMIC_RELAXED);
  }
#else
  if constexpr (sizeof(V) == sizeof(T)) {
    *static_cast<volatile T*>(to) = value;
  } else {
    using Unaligned = typename PackOf<T, sizeof(V)>::Unaligned;
    *reinterpret_cast<volatile Unaligned*>(to) = value;
  }
#endif
}

// Reads `bytes` of a row into private memory of the caller, by packs of at most kPackBytes. `row`
// is aligned to a word.
template <size_t kPackBytes = 16>
TF_EMBED_INLINE void LoadRow(const char* row, size_t bytes, void* out) {
  char* const to = static_cast<char*>(out);
  const size_t words = bytes / sizeof(uint64_t);
  ForEachPack<kPackBytes, uint64_t>(words, [&](size_t i, auto pack) {
    if constexpr (sizeof(pack) == sizeof(uint64_t)) {
      pack = __atomic_load_n(reinterpret_cast<const uint64_t*>(row) + i, __ATOMIC_RELAXED);
    } else {
      pack = LoadShared<decltype(pack)>(row + i * sizeof(uint64_t));
    }
    std::memcpy(to + i * sizeof(uint64_t), &pack, sizeof(pack));
  });
  const size_t rest = bytes % sizeof(uint64_t);
  if (rest > 0) {
    const uint64_t word =
        __atomic_load_n(reinterpret_cast<const uint64_t*>(row) + words, __ATOMIC_RELAXED);
    std::memcpy(to + words * sizeof(word), &word, rest);
  }
}

// Writes `bytes` into a row; the last word is filled with zeros. The caller is the only writer.
template <size_t kPackBytes = 16>
TF_EMBED_INLINE void StoreRow(const void* from, size_t bytes, char* row) {
  const char* const source = static_cast<const char*>(from);
  uint64_t* const to = reinterpret_cast<uint64_t*>(row);
  const size_t words = bytes / sizeof(uint64_t);
  ForEachPack<kPackBytes, uint64_t>(words, [&](size_t i, auto pack) {
    std::memcpy(&pack, source + i * sizeof(uint64_t), sizeof(pack));
    StoreShared(pack, to + i);
  });
  const size_t rest = bytes % sizeof(uint64_t);
  if (rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, source + words * sizeof(word), rest);
    StoreShared(word, to + words);
  }
}

// Prefetches the lines of a row, to read or to write it.
template <bool kToWrite = true>
TF_EMBED_INLINE void PrefetchRow(const char* row, size_t bytes) {
  // Beyond a few lines the hardware prefetcher has detected the stream.
  constexpr size_t kLine = 64;
  constexpr size_t kMaxLines = 16;
  const size_t end = bytes < kMaxLines * kLine ? bytes : kMaxLines * kLine;
  for (size_t offset = 0; offset < end; offset += kLine) {
    __builtin_prefetch(row + offset, kToWrite ? 1 : 0);
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_ROW_COPY_H_
