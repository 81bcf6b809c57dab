// SPDX-License-Identifier: Apache-2.0
// TensorFlow's file systems behind the engine's folders. Paths are local, or have a scheme that
// TensorFlow supports, such as gs://, or s3:// once tensorflow-io is imported.
#ifndef TF_EMBED_CC_TF_FILE_SYSTEM_H_
#define TF_EMBED_CC_TF_FILE_SYSTEM_H_

#include <memory>
#include <string>

#include "cc/core/saves/save_folder.h"

namespace tf_embed {

std::unique_ptr<SaveFolder> NewSaveFolder(std::string path);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_FILE_SYSTEM_H_
