// SPDX-License-Identifier: Apache-2.0
// Mutants that are compiled into one program, which the environment chooses among. The campaign of
// mutants (mutants.py) writes them into copies of the sources:
//
//   a < b      a < Infix<'<', 7>{} < b      as the operator has the same precedence, nothing moves
//   a && b     a && Not<7>{} ^ b
//   a += b     a += Negative<7>{} = b
//   5, true    Next<7>(5), Next<7>(true)
//
// TF_EMBED_MUTANT=7 makes the change of number 7 and no other. Numbers begin with 1.
// TF_EMBED_MUTANTS_REACHED is a file with a byte for each number, which becomes 1 if the place is
// evaluated. A place in a constant expression stays as it was.
#ifndef TF_EMBED_TESTS_CAMPAIGNS_MUTANT_SWITCH_H_
#define TF_EMBED_TESTS_CAMPAIGNS_MUTANT_SWITCH_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <type_traits>
#include <utility>

// `a && Not<7>{} ^ b == c` is meant so.
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wsign-compare"

// Each is inlined: files with other instruction sets share no code.
#define TF_EMBED_MUTANT_INLINE [[gnu::always_inline]] constexpr

namespace tf_embed_mutants {

struct Run {
  int chosen = 0;
  unsigned char* reached = nullptr;
};

inline Run OfEnvironment() {
  Run run;
  if (const char* chosen = std::getenv("TF_EMBED_MUTANT")) run.chosen = std::atoi(chosen);
  const char* file = std::getenv("TF_EMBED_MUTANTS_REACHED");
  if (file == nullptr) return run;
  // A map of the file, so that a process that is killed leaves its marks.
  const int handle = open(file, O_RDWR | O_CLOEXEC);
  struct stat facts;
  if (handle < 0 || fstat(handle, &facts) != 0) std::abort();
  void* bytes = mmap(nullptr, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
  if (bytes == MAP_FAILED) std::abort();
  run.reached = static_cast<unsigned char*>(bytes);
  return run;
}

// All zeros, so no mutant, until it is initialized.
inline const Run kRun = OfEnvironment();

template <int kNumber>
TF_EMBED_MUTANT_INLINE bool On() {
  if (__builtin_is_constant_evaluated()) return false;
  if (kRun.reached != nullptr) kRun.reached[kNumber] = 1;
  return kRun.chosen == kNumber;
}

template <int kNumber>
TF_EMBED_MUTANT_INLINE bool Next(bool value) {
  return On<kNumber>() ? !value : value;
}
template <int kNumber, typename T>
TF_EMBED_MUTANT_INLINE T Next(T value) {
  return On<kNumber>() ? value + 1 : value;
}

template <char kOperator, int kNumber>
struct Infix {};

template <typename L, char kOperator, int kNumber>
struct Left {
  const L& value;
};

// The code is one letter: '<' for <, 'l' for <=, and so on. Operands without the other operator, as
// strings that are joined, do not compile.
#define TF_EMBED_MUTANT_INFIX(op, code, other)                                                     \
  template <typename L, int kNumber>                                                               \
  TF_EMBED_MUTANT_INLINE Left<L, code, kNumber> operator op(const L& left, Infix<code, kNumber>) { \
    return {left};                                                                                 \
  }                                                                                                \
  template <typename L, typename R, int kNumber>                                                   \
  TF_EMBED_MUTANT_INLINE auto operator op(const Left<L, code, kNumber>& left, const R& right)      \
      ->decltype(left.value other right, left.value op right) {                                    \
    using Result = decltype(left.value op right);                                                  \
    if (On<kNumber>()) return static_cast<Result>(left.value other right);                         \
    return left.value op right;                                                                    \
  }

TF_EMBED_MUTANT_INFIX(<, '<', <=)
TF_EMBED_MUTANT_INFIX(<=, 'l', <)
TF_EMBED_MUTANT_INFIX(>, '>', >=)
TF_EMBED_MUTANT_INFIX(>=, 'g', >)
TF_EMBED_MUTANT_INFIX(==, '=', !=)
TF_EMBED_MUTANT_INFIX(!=, '!', ==)
TF_EMBED_MUTANT_INFIX(+, '+', -)
TF_EMBED_MUTANT_INFIX(-, '-', +)
TF_EMBED_MUTANT_INFIX(|, '|', &)
TF_EMBED_MUTANT_INFIX(&, '&', |)
#undef TF_EMBED_MUTANT_INFIX

template <int kNumber>
struct Not {};

template <typename R, int kNumber>
TF_EMBED_MUTANT_INLINE bool operator^(Not<kNumber>, const R& right) {
  return On<kNumber>() ? !static_cast<bool>(right) : static_cast<bool>(right);
}

// In b's own type, so what is added to a wider one wraps around first.
template <int kNumber>
struct Negative {
  template <typename R>
  TF_EMBED_MUTANT_INLINE R operator=(const R& right) const {
    if (On<kNumber>()) return static_cast<R>(R() - right);
    return right;
  }
};

}  // namespace tf_embed_mutants

#endif  // TF_EMBED_TESTS_CAMPAIGNS_MUTANT_SWITCH_H_
