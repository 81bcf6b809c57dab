// SPDX-License-Identifier: Apache-2.0
// Questions about the process in which an op runs: Build, Task, HasGpuTables.
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/status_op.h"
#include "tensorflow/core/framework/device_base.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

struct Search {
  uintptr_t within;      // an address of the library
  std::string build_id;  // its bytes
};

size_t Padded(size_t size) { return (size + 3) & ~size_t{3}; }

// The build ID among the notes of a loaded object. The file may have been replaced since.
std::string BuildIdIn(const char* notes, size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes, sizeof(header));
    const size_t name = Padded(header.n_namesz);
    const size_t whole = sizeof(header) + name + Padded(header.n_descsz);
    if (whole > size) break;
    const char* const name_begin = notes + sizeof(header);
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(name_begin, "GNU", 4) == 0) {
      return std::string(name_begin + name, header.n_descsz);
    }
    notes += whole;
    size -= whole;
  }
  return {};
}

int VisitObject(dl_phdr_info* object, size_t, void* argument) {
  Search* const search = static_cast<Search*>(argument);
  bool is_ours = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    is_ours |= segment.p_type == PT_LOAD && search->within >= begin &&
               search->within - begin < segment.p_memsz;
  }
  if (!is_ours) return 0;
  for (int i = 0; i < object->dlpi_phnum && search->build_id.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    search->build_id = BuildIdIn(reinterpret_cast<const char*>(begin), segment.p_memsz);
  }
  return 1;
}

absl::Status RunBuild(tf::OpKernelContext* context) {
  Search search = {reinterpret_cast<uintptr_t>(&VisitObject), {}};
  dl_iterate_phdr(&VisitObject, &search);
  return GiveScalar<tf::tstring>(context, 0, absl::BytesToHexString(search.build_id));
}

absl::Status RunTask(tf::OpKernelContext* context) {
  const auto& name = context->device()->parsed_name();
  return GiveScalar<int64_t>(context, 0, name.has_task ? name.task : 0);
}

absl::Status RunHasGpuTables(tf::OpKernelContext* context) {
  return GiveScalar<bool>(context, 0, NumGpus() > 0 || EmulatesDevice());
}

const Kernels<StatusFunction<RunBuild>> build("TfEmbedBuild");
const Kernels<StatusFunction<RunTask>> task("TfEmbedTask");
const Kernels<StatusFunction<RunHasGpuTables>> has_gpu_tables("TfEmbedHasGpuTables");

}  // namespace
}  // namespace tf_embed
