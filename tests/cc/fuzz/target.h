// SPDX-License-Identifier: Apache-2.0
// A reader of bytes as a fuzzer sees it. Each *_fuzzer.cc defines the two functions. A program is
// one of them with libfuzzer.cc, which draws bytes, or with replay.cc, which reads the seeds and
// the corpus (tests/cc/fuzz/corpus).
#ifndef TF_EMBED_TESTS_CC_FUZZ_TARGET_H_
#define TF_EMBED_TESTS_CC_FUZZ_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

namespace tf_embed::fuzz {

// Reads bytes, whatever they are, and returns whether the reader took them. Ends the process if
// the reader breaks a promise.
bool Read(std::string_view bytes);

// Bytes that the library's own writers wrote. Read takes each of them.
std::vector<std::string> Seeds();

}  // namespace tf_embed::fuzz

#endif  // TF_EMBED_TESTS_CC_FUZZ_TARGET_H_
