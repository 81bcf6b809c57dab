// SPDX-License-Identifier: Apache-2.0
// Objects in variant tensors.
#ifndef TF_EMBED_CC_TF_SHARED_VARIANT_H_
#define TF_EMBED_CC_TF_SHARED_VARIANT_H_

#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_embed {

// A reference-counted object. It can't be sent to another process. REQUIRES: T::kTypeName is the
// type's name for TensorFlow.
template <class T>
class SharedVariant {
 public:
  SharedVariant() = default;
  explicit SharedVariant(std::shared_ptr<T> object) : object_(std::move(object)) {}

  // The object in a tensor; null if the tensor is not a scalar with such an object.
  static T* In(const tensorflow::Tensor& tensor) {
    if (tensor.dtype() != tensorflow::DT_VARIANT || tensor.dims() != 0) return nullptr;
    const auto* const held = tensor.scalar<tensorflow::Variant>()().get<SharedVariant>();
    return held == nullptr ? nullptr : held->object_.get();
  }

  // The interface that TensorFlow requires of a type in a variant.
  std::string TypeName() const { return T::kTypeName; }
  std::string DebugString() const { return TypeName(); }
  void Encode(tensorflow::VariantTensorData* data) const { data->set_type_name(TypeName()); }
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<T> object_;
};

// Lets TensorFlow copy variants of T to and from GPUs, as it does in eager execution with each
// output of a GPU's kernel. T stays in host memory.
template <class T>
struct CopiesOnHost {
  CopiesOnHost() {
    namespace tf = ::tensorflow;
    for (const auto direction : {tf::VariantDeviceCopyDirection::HOST_TO_DEVICE,
                                 tf::VariantDeviceCopyDirection::DEVICE_TO_HOST,
                                 tf::VariantDeviceCopyDirection::DEVICE_TO_DEVICE}) {
      tf::variant_op_registry_fn_registration::UnaryVariantDeviceCopyRegistration<T>(
          direction, tf::TypeIndex::Make<T>(),
          [](const T& from, T* to, const tf::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn&) {
            *to = from;
            return absl::OkStatus();
          });
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SHARED_VARIANT_H_
