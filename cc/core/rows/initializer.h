// SPDX-License-Identifier: Apache-2.0
// The initial row of a key is a pure function of (seed, table, key): the same on any shard, tier,
// device, batch, order and restart, to the last bit. Hence
//   - a counter-based generator: lane j of a row is the j-th number of a SplitMix64 stream that
//     starts at a hash of the three, so any lane can be computed alone;
//   - nothing from libm, whose last bit differs between versions: the quantile of the normal
//     distribution is computed here from the four operations and a square root, which IEEE 754
//     rounds correctly everywhere;
//   - no contraction of a * b + c into one rounding: the core is compiled with -ffp-contract=off
//     and device code with --fmad=false.
#ifndef TF_EMBED_CC_CORE_ROWS_INITIALIZER_H_
#define TF_EMBED_CC_CORE_ROWS_INITIALIZER_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/core/base/data_type.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/platform.h"

namespace tf_embed {

enum class InitializerKind : uint8_t { kConstant, kRow, kUniform, kNormal, kTruncatedNormal };

struct RowInitializer {
  InitializerKind kind = InitializerKind::kConstant;
  // kConstant: the value, 0. kUniform: from a to b; only rounding to the value type can give b
  // itself. kNormal, kTruncatedNormal: mean, standard deviation.
  double a = 0.0;
  double b = 0.0;
  std::vector<double> row;  // kRow: dim values
  uint64_t seed = 0;
  uint64_t table_id = 0;

  bool is_random() const {
    return kind != InitializerKind::kConstant && kind != InitializerKind::kRow;
  }
};

// The start of the random stream of a key.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE uint64_t InitialState(uint64_t seed, uint64_t table_id,
                                                           int64_t key) {
  const uint64_t table = Mix64(Mix64(seed + kGolden64) ^ table_id);
  return Mix64(table + Mix64(static_cast<uint64_t>(key) + kGolden64));
}

// A number in (0, 1): the middle of one of 2^52 equal intervals, so never 0 or 1.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double UnitNumber(uint64_t state, uint64_t lane) {
  const uint64_t random = Mix64(state + (lane + 1) * kGolden64);
  return (static_cast<double>(random >> 12) + 0.5) * 2.220446049250313e-16;  // 2^-52
}

// The natural logarithm of a positive normal number, to about 1e-16: the exponent is split off and
// the rest, in [sqrt(1/2), sqrt(2)), goes through the series of 2 atanh((x - 1) / (x + 1)).
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double PortableLog(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
  double m;
  memcpy(&m, &bits, sizeof(m));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double sum = 1.0 / 21.0;
  for (int odd = 19; odd >= 1; odd -= 2) sum = sum * s2 + 1.0 / odd;
  return 2.0 * s * sum + exponent * 0.6931471805599453;
}

// p[0] + p[1] x + ... + p[7] x^7.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double Polynomial7(const double* p, double x) {
  double sum = p[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + p[i];
  return sum;
}

// The quantile function of the standard normal distribution, 0 < p < 1: algorithm AS 241, PPND16
// (Wichura, Applied Statistics 37, 1988); relative error about 1e-16.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double NormalQuantile(double p) {
  const double a[8] = {3.3871328727963666080,   1.3314166789178437745e2, 1.9715909503065514427e3,
                       1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                       3.3430575583588128105e4, 2.5090809287301226727e3};
  const double b[8] = {1.0,
                       4.2313330701600911252e1,
                       6.8718700749205790830e2,
                       5.3941960214247511077e3,
                       2.1213794301586595867e4,
                       3.9307895800092710610e4,
                       2.8729085735721942674e4,
                       5.2264952788528545610e3};
  const double c[8] = {1.42343711074968357734,    4.63033784615654529590,
                       5.76949722146069140550,    3.64784832476320460504,
                       1.27045825245236838258,    2.41780725177450611770e-1,
                       2.27238449892691845833e-2, 7.74545014278341407640e-4};
  const double d[8] = {1.0,
                       2.05319162663775882187,
                       1.67638483018380384940,
                       6.89767334985100004550e-1,
                       1.48103976427480074590e-1,
                       1.51986665636164571966e-2,
                       5.47593808499534494600e-4,
                       1.05075007164441684324e-9};
  const double e[8] = {6.65790464350110377720,    5.46378491116411436990,
                       1.78482653991729133580,    2.96560571828504891230e-1,
                       2.65321895265761230930e-2, 1.24266094738807843860e-3,
                       2.71155556874348757815e-5, 2.01033439929228813265e-7};
  const double f[8] = {1.0,
                       5.99832206555887937690e-1,
                       1.36929880922735805310e-1,
                       1.48753612908506148525e-2,
                       7.86869131145613259100e-4,
                       1.84631831751005468180e-5,
                       1.42151175831644588870e-7,
                       2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (q > -0.425 && q < 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial7(a, r) / Polynomial7(b, r);
  }
  const double tail = q < 0.0 ? p : 1.0 - p;
  const double r = std::sqrt(-PortableLog(tail));
  const double quantile = r <= 5.0 ? Polynomial7(c, r - 1.6) / Polynomial7(d, r - 1.6)
                                   : Polynomial7(e, r - 5.0) / Polynomial7(f, r - 5.0);
  return q < 0.0 ? -quantile : quantile;
}

// Lane `lane` of the stream at `state`, for the random kinds.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE double RandomLane(InitializerKind kind, double a, double b,
                                                       uint64_t state, uint64_t lane) {
  const double u = UnitNumber(state, lane);
  if (kind == InitializerKind::kUniform) return a + (b - a) * u;
  // The normal distribution between two standard deviations: the quantiles of that part.
  constexpr double kBelow = 0.022750131948179207;  // Phi(-2)
  constexpr double kBetween = 0.9544997361036416;  // Phi(2) - Phi(-2)
  const double p = kind == InitializerKind::kTruncatedNormal ? kBelow + kBetween * u : u;
  return a + b * NormalQuantile(p);
}

// Writes a row of a random kind to `out` [dim].
template <typename T>
TF_EMBED_INLINE void InitializeRandom(InitializerKind kind, double a, double b, uint64_t state,
                                      size_t dim, T* out) {
  if (kind == InitializerKind::kUniform) {  // a separate loop, which compilers vectorize
    for (size_t i = 0; i < dim; ++i)
      out[i] = Number<T>::FromDouble(a + (b - a) * UnitNumber(state, i));
    return;
  }
  for (size_t i = 0; i < dim; ++i) out[i] = Number<T>::FromDouble(RandomLane(kind, a, b, state, i));
}

template <typename T>
void InitializeWeights(const RowInitializer& initializer, int64_t key, size_t dim, T* out) {
  switch (initializer.kind) {
    case InitializerKind::kConstant: {
      const T value = Number<T>::FromDouble(initializer.a);
      for (size_t i = 0; i < dim; ++i) out[i] = value;
      return;
    }
    case InitializerKind::kRow:
      for (size_t i = 0; i < dim; ++i) out[i] = Number<T>::FromDouble(initializer.row[i]);
      return;
    default: {
      InitializeRandom(initializer.kind, initializer.a, initializer.b,
                       InitialState(initializer.seed, initializer.table_id, key), dim, out);
    }
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_INITIALIZER_H_
