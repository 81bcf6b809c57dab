// SPDX-License-Identifier: Apache-2.0
// Folders in memory, any call of which can fail.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_MEMORY_FOLDER_H_
#define TF_EMBED_TESTS_CC_SUPPORT_MEMORY_FOLDER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/saves/save_folder.h"

namespace tf_embed {

struct MemoryDisk {
  std::map<std::string, std::string> files;  // by path
  // The calls that may fail, and the number of the call that does; 0: none.
  uint64_t calls = 0;
  uint64_t fails = 0;

  Status Call() {
    return ++calls == fails ? Status::Unavailable("The disk has failed.") : Status();
  }
};

class MemoryFolder final : public SaveFolder {
 public:
  MemoryFolder(MemoryDisk* disk, std::string path) : disk_(disk), path_(std::move(path)) {}

  const std::string& path() const override { return path_; }
  std::string PathOf(const std::string& file) const override { return path_ + "/" + file; }
  std::unique_ptr<SaveFolder> Sibling(const std::string& name) const override {
    return std::make_unique<MemoryFolder>(disk_, path_.substr(0, path_.rfind('/') + 1) + name);
  }
  Status Create() const override { return disk_->Call(); }
  Status List(std::vector<std::string>* files) const override {
    files->clear();
    for (const auto& [path, bytes] : disk_->files) {
      if (path.rfind(path_ + "/", 0) == 0) files->push_back(path.substr(path_.size() + 1));
    }
    return disk_->Call();
  }
  Status NewFile(const std::string& file, std::unique_ptr<FileSink>* sink) const override {
    *sink = std::make_unique<Sink>(disk_, PathOf(file));
    disk_->files[PathOf(file)].clear();
    return disk_->Call();
  }
  Status Open(const std::string& file, bool, std::unique_ptr<ByteSource>* source) const override {
    TF_EMBED_RETURN_IF_ERROR(CheckExists(file));
    *source = std::make_unique<Source>(PathOf(file), disk_->files[PathOf(file)]);
    return Status();
  }
  Status ReadWhole(const std::string& file, uint64_t most, std::string* bytes) const override {
    TF_EMBED_RETURN_IF_ERROR(CheckExists(file));
    *bytes = disk_->files[PathOf(file)];
    return bytes->size() <= most ? Status() : Status::DataLoss("too long");
  }
  Status CheckExists(const std::string& file) const override {
    if (disk_->files.count(PathOf(file)) == 0) return Status::NotFound("'" + PathOf(file) + "'");
    return disk_->Call();
  }
  Status Replace(const std::string& file, const std::string& text) const override {
    TF_EMBED_RETURN_IF_ERROR(disk_->Call());
    disk_->files[PathOf(file)] = text;
    return disk_->Call();  // the file is there, and perhaps its name was not flushed
  }
  void Remove(const std::string& file) const override { disk_->files.erase(PathOf(file)); }
  bool IsLocal() const override { return false; }
  bool Link(const std::string&, const std::string&) const override { return false; }
  Status Sync() const override { return disk_->Call(); }

 private:
  class Sink final : public FileSink {
   public:
    Sink(MemoryDisk* disk, std::string path) : disk_(disk), path_(std::move(path)) {}
    Status Append(const void* bytes, size_t size) override {
      disk_->files[path_].append(static_cast<const char*>(bytes), size);
      return disk_->Call();
    }
    Status Close() override { return disk_->Call(); }

   private:
    MemoryDisk* const disk_;
    const std::string path_;
  };

  class Source final : public ByteSource {
   public:
    Source(std::string name, std::string bytes)
        : name_(std::move(name)), bytes_(std::move(bytes)) {}
    const std::string& name() const override { return name_; }
    uint64_t size() const override { return bytes_.size(); }
    Status Read(uint64_t offset, size_t size, void* bytes) const override {
      if (offset + size > bytes_.size()) return Status::DataLoss("'" + name_ + "' ends.");
      std::memcpy(bytes, bytes_.data() + offset, size);
      return Status();
    }

   private:
    const std::string name_;
    const std::string bytes_;
  };

  MemoryDisk* const disk_;
  const std::string path_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_MEMORY_FOLDER_H_
