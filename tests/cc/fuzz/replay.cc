// SPDX-License-Identifier: Apache-2.0
// Reads the corpus of a target, and its seeds with each of some bits flipped.
//
//     replay [FOLDER...]          also reads the files in these folders
//     replay --seeds=FOLDER       writes the seeds there instead
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace {

constexpr char kSeeds[] = "--seeds=";
// Bits that are flipped in each seed, one at a time, evenly spaced.
constexpr size_t kFlips = 2000;

void WriteSeeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : tf_embed::fuzz::Seeds()) {
    std::ofstream file(folder / ("seed" + std::to_string(number++)), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
  }
}

size_t ReadFolder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::filesystem::path& path : paths) {
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);
    std::ifstream file(path, std::ios::binary);
    tf_embed::fuzz::Read(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return paths.size();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && arguments[0].rfind(kSeeds, 0) == 0) {
    WriteSeeds(arguments[0].substr(sizeof(kSeeds) - 1));
    return 0;
  }
  size_t flips = 0, files = 0;
  const std::vector<std::string> seeds = tf_embed::fuzz::Seeds();
  for (std::string seed : seeds) {
    tf_embed::fuzz::Require(tf_embed::fuzz::Read(seed), "a reader takes what was written");
    const size_t step = std::max<size_t>(1, seed.size() * 8 / kFlips);
    for (size_t bit = 0; bit < seed.size() * 8; bit += step, ++flips) {
      char& byte = seed[bit / 8];
      byte = static_cast<char>(byte ^ (1 << bit % 8));
      tf_embed::fuzz::Read(seed);
      byte = static_cast<char>(byte ^ (1 << bit % 8));
    }
  }
  for (const std::string& folder : arguments) files += ReadFolder(folder);
  std::printf("%zu seeds, %zu flipped bits, %zu files\n", seeds.size(), flips, files);
}
