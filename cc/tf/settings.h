// SPDX-License-Identifier: Apache-2.0
// Settings of a new table, read from attributes of an op or from scalar inputs of the same names.
#ifndef TF_EMBED_CC_TF_SETTINGS_H_
#define TF_EMBED_CC_TF_SETTINGS_H_

#include <cstdint>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

class Settings {
 public:
  virtual ~Settings() = default;
  virtual absl::Status Get(const char* name, int64_t* value) const = 0;
  virtual absl::Status Get(const char* name, float* value) const = 0;
  virtual absl::Status Get(const char* name, bool* value) const = 0;
  virtual absl::Status Get(const char* name, std::string* value) const = 0;

  // Fails if the value is less than `least`.
  absl::Status GetNumber(const char* name, int64_t least, int64_t* value) const;
};

class AttributeSettings final : public Settings {
 public:
  explicit AttributeSettings(tensorflow::OpKernelConstruction* construction)
      : construction_(construction) {}

  absl::Status Get(const char* name, int64_t* value) const override;
  absl::Status Get(const char* name, float* value) const override;
  absl::Status Get(const char* name, bool* value) const override;
  absl::Status Get(const char* name, std::string* value) const override;

 private:
  tensorflow::OpKernelConstruction* const construction_;
};

class InputSettings final : public Settings {
 public:
  explicit InputSettings(tensorflow::OpKernelContext* context) : context_(context) {}

  absl::Status Get(const char* name, int64_t* value) const override;
  absl::Status Get(const char* name, float* value) const override;
  absl::Status Get(const char* name, bool* value) const override;
  absl::Status Get(const char* name, std::string* value) const override;

 private:
  tensorflow::OpKernelContext* const context_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SETTINGS_H_
