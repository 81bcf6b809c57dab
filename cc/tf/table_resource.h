// SPDX-License-Identifier: Apache-2.0
// The object behind a table handle: a table, with the types that TensorFlow has for it.
#ifndef TF_EMBED_CC_TF_TABLE_RESOURCE_H_
#define TF_EMBED_CC_TF_TABLE_RESOURCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/base/data_type.h"
#include "cc/core/rows/initializer.h"
#include "cc/core/table/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/types.h"

namespace tf_embed {

// The core type for a TensorFlow type that a table can hold.
DataType CoreType(tensorflow::DataType type);

// The type in files for a TensorFlow type that a table can hold.
StoredType StoredTypeOf(tensorflow::DataType type);

// The TensorFlow type of a core type.
tensorflow::DataType TensorFlowType(DataType type);

// The same status for TensorFlow, and for the core.
absl::Status ToTensorFlow(const Status& status);
Status FromTensorFlow(const absl::Status& status);

// A status whose message is the concatenated arguments.
template <typename... Parts>
absl::Status InvalidArgumentError(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhaustedError(const Parts&... parts) {
  return absl::ResourceExhaustedError(absl::StrCat(parts...));
}

// Parses decimal numbers separated by blanks, exactly and independent of the locale. Accepts "nan"
// and "inf".
absl::Status ReadNumbers(const std::string& text, const char* attribute,
                         std::vector<double>* numbers);

// Makes the initializer named `kind`, a value of the ops' attribute.
absl::Status NewInitializer(const std::string& kind, std::vector<double> numbers, int64_t dim,
                            int64_t seed, int64_t table_id, RowInitializer* initializer);

struct StorageSettings;

class TableResource : public tensorflow::ResourceBase, public Table {
 public:
  // Arguments of the handle op. A second op of the same shared_name must repeat them.
  struct Signature {
    tensorflow::DataType key_dtype = tensorflow::DT_INVALID;
    tensorflow::DataType value_dtype = tensorflow::DT_INVALID;
    int64_t dim = 0;
    int64_t num_shards = 0;
    PolicySettings policy;

    std::string DebugString() const;
    bool operator==(const Signature& other) const;
  };

  // Reads the attributes for types and sizes. The policy's settings are read separately.
  static absl::Status ReadSignature(tensorflow::OpKernelConstruction* construction,
                                    Signature* signature);
  // Everything except the initializer. REQUIRES: init_size >= 0.
  static absl::Status NewOptions(const Signature& signature, std::string name, int64_t init_size,
                                 StoreOptions* options);

  // Creates the stores on GPU `gpu`, or on the host if it is -1.
  static absl::Status Create(const Signature& signature, const StoreOptions& options,
                             const StorageSettings& storage, int gpu, TableResource** resource);

  const Signature& signature() const { return signature_; }
  std::string DebugString() const override;

 private:
  TableResource(const Signature& signature, const StoreOptions& options);

  const Signature signature_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_RESOURCE_H_
