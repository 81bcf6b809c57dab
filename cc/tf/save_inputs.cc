// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/save_inputs.h"

#include <cstdlib>
#include <utility>

#include "cc/tf/file_system.h"
#include "cc/tf/op_inputs.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status ReadPlace(tf::OpKernelContext* context, int input, SavePlace* place) {
  tf::tstring folder, file_name;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input), "folder", &folder));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 1), "file_name", &file_name));
  if (folder.empty()) return InvalidArgumentError("`folder` must name a folder. Received: ''.");
  place->folder = NewSaveFolder(std::string(folder));
  place->file_name = std::string(file_name);
  return absl::OkStatus();
}

absl::Status ReadPart(tf::OpKernelContext* context, int input, SavePlace* place) {
  int64_t save, rank, processes;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input), "save", &save));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 1), "rank", &rank));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(input + 2), "processes", &processes));
  if (save == 0) return InvalidArgumentError("`save` must not be 0. Received: 0.");
  if (processes < 1 || processes > SavePlace::kMaxParts || rank < 0 || rank >= processes) {
    return InvalidArgumentError("`rank` must be from 0 to `processes`, of at most ",
                                SavePlace::kMaxParts, ". Received: rank=", rank,
                                ", processes=", processes, ".");
  }
  place->joint_save = static_cast<uint64_t>(save);
  place->rank = static_cast<uint32_t>(rank);
  place->processes = static_cast<uint32_t>(processes);
  return absl::OkStatus();
}

absl::Status SaveAttributes::Read(tf::OpKernelConstruction* construction) {
  int64_t number, count;
  TF_RETURN_IF_ERROR(construction->GetAttr("folder_variable", &folder_variable_));
  TF_RETURN_IF_ERROR(construction->GetAttr("rank", &number));
  TF_RETURN_IF_ERROR(construction->GetAttr("processes", &count));
  if (count < 1 || count > INT32_MAX || number < 0 || number >= count) {
    return InvalidArgumentError("`rank` must be from 0 to `processes`. Received: rank=", number,
                                ", processes=", count, ".");
  }
  rank_ = static_cast<uint32_t>(number);
  processes_ = static_cast<uint32_t>(count);
  return absl::OkStatus();
}

absl::Status SaveAttributes::PlaceOf(tf::OpKernelContext* context, SavePlace* place) const {
  tf::tstring folder, file_name;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "dirpath", &folder));
  TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "file_name", &file_name));
  const char* const other =
      folder_variable_.empty() ? nullptr : std::getenv(folder_variable_.c_str());
  std::string path = other != nullptr ? other : "";
  if (path.empty()) path = std::string(folder);
  if (path.empty()) return InvalidArgumentError("`dirpath` must name a folder. Received: ''.");
  place->folder = NewSaveFolder(std::move(path));
  place->file_name = std::string(file_name);
  place->rank = rank_;
  place->processes = processes_;
  return absl::OkStatus();
}

static const CopiesOnHost<SharedVariant<OpenedRows>> copies_of_opened_rows;

tf::Variant VariantOf(std::shared_ptr<SavedRows> rows) {
  return SharedVariant<OpenedRows>(std::make_shared<OpenedRows>(OpenedRows{std::move(rows)}));
}

absl::Status ReadRowsInput(tf::OpKernelContext* context, int input, SavedRows** rows) {
  const OpenedRows* const opened = SharedVariant<OpenedRows>::In(context->input(input));
  if (opened == nullptr)
    return InvalidArgumentError("`rows` must be the open files of saved rows.");
  *rows = opened->rows.get();
  return absl::OkStatus();
}

absl::Status ReadBlockInput(tf::OpKernelContext* context, int input, SavedRows** rows,
                            size_t* block) {
  const tf::Tensor& number = context->input(input + 1);
  TF_RETURN_IF_ERROR(ReadRowsInput(context, input, rows));
  const int64_t wanted = number.dims() == 0 ? number.scalar<int64_t>()() : -1;
  if (wanted < 0 || wanted >= static_cast<int64_t>((*rows)->num_blocks())) {
    return InvalidArgumentError("`block` must be a scalar less than ", (*rows)->num_blocks(),
                                ". Received: ", number.DebugString(), ".");
  }
  *block = static_cast<size_t>(wanted);
  return absl::OkStatus();
}

}  // namespace tf_embed
