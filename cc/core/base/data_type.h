// SPDX-License-Identifier: Apache-2.0
// The types a weight can have. They are values at run time; DispatchDataType turns a value into a
// template argument around an inner loop.
#ifndef TF_EMBED_CC_CORE_BASE_DATA_TYPE_H_
#define TF_EMBED_CC_CORE_BASE_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/half.h"
#include "cc/core/base/platform.h"

namespace tf_embed {

enum class DataType : uint8_t { kFloat, kHalf, kBFloat16, kDouble, kInt8, kInt32, kInt64, kBool };
inline constexpr DataType kLastDataType = DataType::kBool;

// The arithmetic of a stored T. Sums and optimizer rules run in Number<T>::Compute.
template <typename T>
struct Number {
  using Compute = T;
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Load(T stored) { return stored; }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Store(T computed) { return computed; }
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T FromDouble(double value) {
    return static_cast<T>(value);
  }
};

template <typename T>
struct NarrowFloat {
  using Compute = float;
  static TF_EMBED_HOST_DEVICE float Load(T stored) { return stored.ToFloat(); }
  static TF_EMBED_HOST_DEVICE T Store(float computed) { return T::FromFloat(computed); }
  static TF_EMBED_HOST_DEVICE T FromDouble(double value) {
    return T::FromFloat(static_cast<float>(value));
  }
};
template <>
struct Number<Half> : NarrowFloat<Half> {};
template <>
struct Number<BFloat16> : NarrowFloat<BFloat16> {};

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls `function(TypeTag<T>())` with the T of `type`.
template <typename Function>
auto DispatchDataType(DataType type, const Function& function) {
  switch (type) {
    case DataType::kHalf:
      return function(TypeTag<Half>());
    case DataType::kBFloat16:
      return function(TypeTag<BFloat16>());
    case DataType::kDouble:
      return function(TypeTag<double>());
    case DataType::kInt8:
      return function(TypeTag<int8_t>());
    case DataType::kInt32:
      return function(TypeTag<int32_t>());
    case DataType::kInt64:
      return function(TypeTag<int64_t>());
    case DataType::kBool:
      return function(TypeTag<bool>());
    case DataType::kFloat:
      break;
  }
  return function(TypeTag<float>());
}

// As DispatchDataType, for the types that an optimizer can train.
template <typename Function>
auto DispatchFloating(DataType type, const Function& function) {
  switch (type) {
    case DataType::kHalf:
      return function(TypeTag<Half>());
    case DataType::kBFloat16:
      return function(TypeTag<BFloat16>());
    case DataType::kDouble:
      return function(TypeTag<double>());
    default:
      return function(TypeTag<float>());
  }
}

inline size_t SizeOf(DataType type) {
  return DispatchDataType(type, [](auto tag) { return sizeof(typename decltype(tag)::Type); });
}

inline bool IsFloating(DataType type) { return type <= DataType::kDouble; }

// Optimizer slots are float, or double if the weights are double.
inline size_t SlotSize(DataType type) {
  return type == DataType::kDouble ? sizeof(double) : sizeof(float);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_DATA_TYPE_H_
