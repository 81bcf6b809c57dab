// SPDX-License-Identifier: Apache-2.0
// Manifests of saves, as they are and with a correct checksum, and file names.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/files/row_manifest.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

std::string Repaired(std::string_view bytes) {
  std::string text(bytes.substr(0, bytes.rfind("checksum ")));
  char line[32];
  std::snprintf(line, sizeof(line), "checksum %08x\n", ExtendCrc32c(0, text.data(), text.size()));
  return text + line;
}

bool ReadManifest(const std::string& text) {
  RowManifest manifest;
  if (!RowManifest::Decode(text, "manifest", &manifest).ok()) return false;
  Require(manifest.Encode() == text, "a manifest that is taken is what it would be written as");
  Require(manifest.rank < manifest.processes, "a rank is one of the processes");
  Require(!manifest.files.empty() && manifest.files.size() <= RowManifest::kMaxFiles,
          "a save has files");
  const auto in_folder = [](const std::string& name) {
    Require(!name.empty() && name.find('/') == std::string::npos, "files lie beside the manifest");
  };
  for (const RowManifest::File& file : manifest.files) in_folder(file.name);
  for (const RowManifest::Link& link : manifest.links) in_folder(link.name);
  if (manifest.since != 0) {
    Require(RowManifest::IsFolderName(manifest.since_name), "changes are of a folder beside");
  }
  return true;
}

void ReadName(std::string_view name) {
  uint32_t rank, processes;
  const RowFileNames names("layer/table:0");
  if (!names.IsOurs(name, &rank, &processes)) return;
  Require(rank < processes, "a rank is one of the processes");
  if (names.IsManifest(name, &rank, &processes)) {
    Require(name == names.Manifest(rank, processes), "a manifest has one name");
  }
}

}  // namespace

bool Read(std::string_view bytes) {
  const bool taken = ReadManifest(std::string(bytes));
  (void)ReadManifest(Repaired(bytes));
  ReadName(bytes);
  return taken;
}

std::vector<std::string> Seeds() {
  RowManifest manifest;
  manifest.save = 0x00c0ffee00c0ffee;
  manifest.milliseconds = 1790000000000;
  manifest.dim = 64;
  manifest.processes = 2;
  const RowFileNames names("layer/table:0");
  manifest.files = {{names.Rows(0, 2, manifest.save, 0, 2), 100, 3, 7},
                    {names.Rows(0, 2, manifest.save, 1, 2), 200, 4, 8}};
  std::vector<std::string> seeds = {manifest.Encode()};
  manifest.links = {{names.Link(0, 2, manifest.save, 0), 4096, 9}};
  manifest.key_type = StoredType::kString;
  manifest.value_type = StoredType::kBFloat16;
  manifest.since = 5;
  manifest.since_name = "step-5";
  seeds.push_back(manifest.Encode());
  return seeds;
}

}  // namespace tf_embed::fuzz
