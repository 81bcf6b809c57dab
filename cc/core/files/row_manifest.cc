// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/row_manifest.h"

#include <charconv>

#include "cc/core/base/hash.h"
#include "cc/core/files/crc32c.h"

namespace tf_embed {
namespace {

std::string Hex(uint64_t number, int digits) {
  std::string text(static_cast<size_t>(digits), '0');
  for (size_t i = text.size(); i > 0; number >>= 4) text[--i] = "0123456789abcdef"[number & 15];
  return text;
}

// FNV-1a (Fowler, Noll and Vo), mixed. A part of file names, so it must never change.
uint64_t HashText(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix64(hash);
}

// Takes things off the front of a text, leniently. Malformed text is found by encoding the result
// again and comparing.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Take(std::string_view wanted) {
    if (text_.substr(0, wanted.size()) != wanted) return false;
    text_.remove_prefix(wanted.size());
    return true;
  }
  template <typename T>
  bool TakeNumber(T* number, int base = 10) {
    const char* const end = text_.data() + text_.size();
    const std::from_chars_result result = std::from_chars(text_.data(), end, *number, base);
    if (result.ec != std::errc()) return false;
    text_.remove_prefix(static_cast<size_t>(result.ptr - text_.data()));
    return true;
  }
  bool TakeWord(std::string* word) {
    *word = std::string(text_.substr(0, text_.find_first_of(" \n")));
    text_.remove_prefix(word->size());
    return !word->empty();
  }
  bool TakeLine(std::string* line) {
    const size_t end = text_.find('\n');
    if (end == std::string_view::npos) return false;
    *line = std::string(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return true;
  }
  bool TakeType(StoredType* type) {
    std::string word;
    if (!TakeWord(&word)) return false;
    for (int number = 0; number <= static_cast<int>(kLastStoredType); ++number) {
      *type = static_cast<StoredType>(number);
      if (word == NameOf(*type)) return true;
    }
    return false;
  }

 private:
  std::string_view text_;
};

// Whether a name leads to no other folder. A name that does is kept for the message.
bool IsInside(const std::string& name, std::string* outside) {
  if (RowManifest::IsFolderName(name)) return true;
  constexpr size_t kMostShown = 200;
  *outside = name.substr(0, kMostShown);
  for (char& c : *outside) c = c < ' ' ? '?' : c;  // a zero would end the message
  return false;
}

bool Scan(const std::string& text, RowManifest* manifest, std::string* outside) {
  Scanner scanner(text);
  const bool has_changes = scanner.Take("tf_embed changes 1\n");
  bool good = (has_changes || scanner.Take("tf_embed rows 1\n")) && scanner.Take("save ") &&
              scanner.TakeNumber(&manifest->save, 16) && scanner.Take("\ntime ") &&
              scanner.TakeNumber(&manifest->milliseconds) && scanner.Take("\nkeys ") &&
              scanner.TakeType(&manifest->key_type) && scanner.Take("\nvalues ") &&
              scanner.TakeType(&manifest->value_type) && scanner.Take("\ndim ") &&
              scanner.TakeNumber(&manifest->dim) && scanner.Take("\nrank ") &&
              scanner.TakeNumber(&manifest->rank) && scanner.Take(" of ") &&
              scanner.TakeNumber(&manifest->processes) && scanner.Take("\n") &&
              manifest->rank < manifest->processes;
  if (good && has_changes) {
    good = scanner.Take("since ") && scanner.TakeNumber(&manifest->since, 16) &&
           scanner.Take(" ") && scanner.TakeLine(&manifest->since_name) && manifest->since != 0 &&
           IsInside(manifest->since_name, outside);
  }
  while (good && manifest->files.size() < RowManifest::kMaxFiles && scanner.Take("file ")) {
    RowManifest::File file;
    good = scanner.TakeWord(&file.name) && IsInside(file.name, outside) && scanner.Take(" ") &&
           scanner.TakeNumber(&file.bytes) && scanner.Take(" ") && scanner.TakeNumber(&file.rows) &&
           scanner.Take(" ") && scanner.TakeNumber(&file.checksum, 16) && scanner.Take("\n");
    manifest->files.push_back(file);
  }
  while (good && manifest->links.size() < RowManifest::kMaxLinks && scanner.Take("link ")) {
    RowManifest::Link link;
    good = scanner.TakeWord(&link.name) && IsInside(link.name, outside) && scanner.Take(" ") &&
           scanner.TakeNumber(&link.bytes) && scanner.Take(" ") &&
           scanner.TakeNumber(&link.checksum, 16) && scanner.Take("\n");
    manifest->links.push_back(link);
  }
  return good && !manifest->files.empty();
}

// Reads "RANKofPROCESSES." off the front.
bool TakeRank(Scanner* scanner, uint32_t* rank, uint32_t* processes) {
  return scanner->TakeNumber(rank) && scanner->Take("of") && scanner->TakeNumber(processes) &&
         scanner->Take(".") && *rank < *processes;
}

}  // namespace

std::string RowManifest::Encode() const {
  std::string text = std::string(since == 0 ? "tf_embed rows 1" : "tf_embed changes 1") +
                     "\nsave " + Hex(save, 16) + "\ntime " + std::to_string(milliseconds) +
                     "\nkeys " + NameOf(key_type) + "\nvalues " + NameOf(value_type) + "\ndim " +
                     std::to_string(dim) + "\nrank " + std::to_string(rank) + " of " +
                     std::to_string(processes) + "\n";
  if (since != 0) text += "since " + Hex(since, 16) + " " + since_name + "\n";
  for (const File& file : files) {
    text += "file " + file.name + " " + std::to_string(file.bytes) + " " +
            std::to_string(file.rows) + " " + Hex(file.checksum, 8) + "\n";
  }
  for (const Link& link : links) {
    text +=
        "link " + link.name + " " + std::to_string(link.bytes) + " " + Hex(link.checksum, 8) + "\n";
  }
  return text + "checksum " + Hex(ExtendCrc32c(0, text.data(), text.size()), 8) + "\n";
}

bool RowManifest::IsFolderName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\n\0", 3)) == std::string_view::npos;
}

Status RowManifest::Decode(const std::string& text, const std::string& name,
                           RowManifest* manifest) {
  *manifest = RowManifest();
  std::string outside;
  const bool good = Scan(text, manifest, &outside);
  if (!outside.empty()) {
    return Status::DataLoss("'" + name + "' is damaged: it names '" + outside +
                            "', which must be a name, not a path.");
  }
  if (!good || manifest->Encode() != text) {
    return Status::DataLoss("'" + name + "' is damaged, or no manifest of a save of this format.");
  }
  return Status();
}

RowFileNames::RowFileNames(std::string_view variable, bool shortens) {
  for (const char c : variable) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-';
    if (plain) {
      stem_ += c;
    } else {
      stem_ += "=" + Hex(static_cast<unsigned char>(c), 2);
    }
  }
  if (shortens && stem_.size() > kMaxName) {
    const std::string hash = "==" + Hex(HashText(variable), 16);
    stem_.resize(kMaxName - hash.size());
    stem_ += hash;
  }
  stem_ += ".rank";
}

std::string RowFileNames::Rank(uint32_t rank, uint32_t processes) const {
  return stem_ + std::to_string(rank) + "of" + std::to_string(processes) + ".";
}

std::string RowFileNames::Manifest(uint32_t rank, uint32_t processes) const {
  return Rank(rank, processes) + "manifest";
}

std::string RowFileNames::Rows(uint32_t rank, uint32_t processes, uint64_t save, uint32_t shard,
                               uint32_t num_shards) const {
  return Rank(rank, processes) + Hex(save, 16) + ".shard" + std::to_string(shard) + "of" +
         std::to_string(num_shards) + ".rows";
}

std::string RowFileNames::Link(uint32_t rank, uint32_t processes, uint64_t save,
                               uint32_t number) const {
  return Rank(rank, processes) + Hex(save, 16) + ".link" + std::to_string(number) + ".rows";
}

bool RowFileNames::IsOurs(std::string_view file, uint32_t* rank, uint32_t* processes) const {
  Scanner scanner(file);
  return scanner.Take(stem_) && TakeRank(&scanner, rank, processes);
}

bool RowFileNames::IsManifest(std::string_view file, uint32_t* rank, uint32_t* processes) const {
  return IsOurs(file, rank, processes) && file == Manifest(*rank, *processes);
}

}  // namespace tf_embed
