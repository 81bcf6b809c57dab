// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/row_manifest.h"

#include <string>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

RowManifest Example() {
  RowManifest manifest;
  manifest.save = 0x0123456789abcdefu;
  manifest.milliseconds = 1790000000000;
  manifest.key_type = StoredType::kString;
  manifest.value_type = StoredType::kBFloat16;
  manifest.dim = 64;
  manifest.rank = 1;
  manifest.processes = 12;
  manifest.files = {{"a.rows", 100, 3, 0xdeadbeef}, {"b.rows", ~uint64_t{0}, 0, 0}};
  return manifest;
}

TEST(RowManifest, SurvivesTheRoundTrip) {
  RowManifest read;
  ASSERT_TRUE(RowManifest::Decode(Example().Encode(), "m", &read).ok());
  EXPECT_EQ(Example().Encode(), read.Encode());
  EXPECT_EQ(0x0123456789abcdefu, read.save);
  EXPECT_EQ(1790000000000u, read.milliseconds);
  EXPECT_EQ(StoredType::kString, read.key_type);
  EXPECT_EQ(StoredType::kBFloat16, read.value_type);
  EXPECT_EQ(64u, read.dim);
  EXPECT_EQ(1u, read.rank);
  EXPECT_EQ(12u, read.processes);
  ASSERT_EQ(2u, read.files.size());
  EXPECT_EQ("a.rows", read.files[0].name);
  EXPECT_EQ(0xdeadbeefu, read.files[0].checksum);
  EXPECT_EQ(~uint64_t{0}, read.files[1].bytes);
}

TEST(RowManifest, NamesLinkedFiles) {
  RowManifest manifest = Example(), read;
  manifest.links = {{"c.rows", 4096, 7}, {"d.rows", 8192, 0xffffffff}};
  ASSERT_TRUE(RowManifest::Decode(manifest.Encode(), "m", &read).ok());
  ASSERT_EQ(2u, read.links.size());
  EXPECT_EQ("d.rows", read.links[1].name);
  EXPECT_EQ(8192u, read.links[1].bytes);
  EXPECT_EQ(7u, read.links[0].checksum);
  manifest.links[0].name = "../c.rows";
  EXPECT_FALSE(RowManifest::Decode(manifest.Encode(), "m", &read).ok());
}

TEST(RowManifest, SaysWhatItIsChangesOf) {
  RowManifest manifest = Example();
  manifest.since = 0xfedcba9876543210u;
  manifest.since_name = "a name, with blanks";
  RowManifest read;
  ASSERT_TRUE(RowManifest::Decode(manifest.Encode(), "m", &read).ok());
  EXPECT_EQ(manifest.since, read.since);
  EXPECT_EQ(manifest.since_name, read.since_name);
  ASSERT_TRUE(RowManifest::Decode(Example().Encode(), "m", &read).ok());
  EXPECT_EQ(0u, read.since);
  for (const char* const name : {"", ".", "..", "a/b"}) {
    EXPECT_FALSE(RowManifest::IsFolderName(name)) << name;
    manifest.since_name = name;
    EXPECT_FALSE(RowManifest::Decode(manifest.Encode(), "m", &read).ok()) << name;
  }
}

TEST(RowManifest, EveryFlippedBitIsFound) {
  RowManifest example = Example();
  example.links = {{"c.rows", 4096, 7}};
  example.since = 5;
  example.since_name = "base";
  const std::string good = example.Encode();
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string text = good;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    RowManifest read;
    const Status status = RowManifest::Decode(text, "here/m", &read);
    EXPECT_EQ(StatusCode::kDataLoss, status.code()) << text;
    EXPECT_NE(std::string::npos, status.message().find("'here/m'"));
  }
}

TEST(RowManifest, EveryOtherLengthIsFound) {
  const std::string good = Example().Encode();
  RowManifest read;
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(RowManifest::Decode(good.substr(0, size), "m", &read).ok()) << size;
  }
  EXPECT_FALSE(RowManifest::Decode(good + "\n", "m", &read).ok());
}

TEST(RowManifest, NamesNoFileOfAnotherFolder) {
  RowManifest manifest = Example();
  manifest.files[0].name = "../a.rows";
  RowManifest read;
  EXPECT_FALSE(RowManifest::Decode(manifest.Encode(), "m", &read).ok());
}

TEST(RowManifest, NamesAPlaceAmongTheProcesses) {
  RowManifest manifest = Example();
  manifest.rank = manifest.processes;
  RowManifest read;
  EXPECT_FALSE(RowManifest::Decode(manifest.Encode(), "m", &read).ok());
}

TEST(RowFileNames, AreOfOneVariable) {
  const RowFileNames names("user/emb.1");
  EXPECT_EQ("user=2femb=2e1.rank0of2.manifest", names.Manifest(0, 2));
  EXPECT_EQ("user=2femb=2e1.rank0of2.00000000000000ff.shard1of3.rows", names.Rows(0, 2, 255, 1, 3));
  uint32_t rank, processes;
  EXPECT_TRUE(names.IsOurs(names.Rows(3, 4, 255, 1, 3), &rank, &processes));
  EXPECT_EQ(3u, rank);
  EXPECT_EQ(4u, processes);
  EXPECT_TRUE(names.IsManifest(names.Manifest(3, 4), &rank, &processes));
  EXPECT_FALSE(names.IsManifest(names.Rows(3, 4, 255, 1, 3), &rank, &processes));
  for (const char* other : {"user", "user/emb", "user/emb.1.rank0of2", "user_emb_1"}) {
    const RowFileNames others(other);
    EXPECT_FALSE(others.IsOurs(names.Manifest(0, 2), &rank, &processes)) << other;
    EXPECT_FALSE(names.IsOurs(others.Manifest(0, 2), &rank, &processes)) << other;
  }
  for (const char* file : {"user=2femb=2e1.rank2of2.manifest", "user=2femb=2e1.rank0of2",
                           "user=2femb=2e1.rank-1of2.manifest", "user=2femb=2e1.rankof.manifest"}) {
    EXPECT_FALSE(names.IsOurs(file, &rank, &processes)) << file;
  }
  // Otherwise a manifest with another spelling of its numbers would be read twice.
  EXPECT_FALSE(names.IsManifest("user=2femb=2e1.rank00of2.manifest", &rank, &processes));
}

TEST(RowFileNames, OfLongNamesFitIntoAFileSystem) {
  const std::string kept(RowFileNames::kMaxName, 'n');
  EXPECT_EQ(kept + ".rank0of1.manifest", RowFileNames(kept).Manifest(0, 1));
  // Each of these characters takes three bytes in a file name.
  for (const std::string& name : {kept + "n", std::string(1024, 'n'), std::string(300, '/')}) {
    const RowFileNames names(name);
    EXPECT_EQ(255u, names.Rows(65535, 65536, 255, 65535, 65536).size()) << name;
    EXPECT_LE(names.Manifest(65535, 65536).size() + std::string(".0123456789abcdef.aside").size(),
              255u);
    EXPECT_NE(names.Manifest(0, 1), RowFileNames(name + "n").Manifest(0, 1));
  }
  // Every later version must find saved files.
  EXPECT_EQ(std::string(180, 'n') + "==e97df10f812c7fe2.rank0of1.manifest",
            RowFileNames(std::string(300, 'n')).Manifest(0, 1));
  EXPECT_EQ(std::string(300, 'n') + ".rank0of1.manifest",
            RowFileNames(std::string(300, 'n'), /*shortens=*/false).Manifest(0, 1));
}

}  // namespace
}  // namespace tf_embed
