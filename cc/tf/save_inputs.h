// SPDX-License-Identifier: Apache-2.0
// Reads the inputs and attributes of ops that save and load.
#ifndef TF_EMBED_CC_TF_SAVE_INPUTS_H_
#define TF_EMBED_CC_TF_SAVE_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/saves/save_place.h"
#include "cc/core/saves/saved_rows.h"
#include "cc/tf/shared_variant.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Reads two inputs of an op: `folder`, followed by `file_name`.
absl::Status ReadPlace(tensorflow::OpKernelContext* context, int input, SavePlace* place);
// Reads three inputs of an op that writes a part of a save: `save`, `rank` and `processes`.
absl::Status ReadPart(tensorflow::OpKernelContext* context, int input, SavePlace* place);

// Attributes shared by the save and load ops.
class SaveAttributes {
 public:
  absl::Status Read(tensorflow::OpKernelConstruction* construction);
  // Reads the inputs `folder`, which the environment may override, and `file_name`.
  absl::Status PlaceOf(tensorflow::OpKernelContext* context, SavePlace* place) const;

 private:
  std::string folder_variable_;  // environment variable that overrides the folder
  uint32_t rank_ = 0;
  uint32_t processes_ = 1;
};

// Open files of saved rows, in the output of an op.
struct OpenedRows {
  static constexpr char kTypeName[] = "tf_embed::SavedRows";
  std::shared_ptr<SavedRows> rows;
};
tensorflow::Variant VariantOf(std::shared_ptr<SavedRows> rows);

// Reads the input `rows` of an op.
absl::Status ReadRowsInput(tensorflow::OpKernelContext* context, int input, SavedRows** rows);
// The same, followed by a block number.
absl::Status ReadBlockInput(tensorflow::OpKernelContext* context, int input, SavedRows** rows,
                            size_t* block);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SAVE_INPUTS_H_
