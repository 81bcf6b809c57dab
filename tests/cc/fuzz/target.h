// SPDX-License-Identifier: Apache-2.0
// A reader of bytes, as fuzzers call it. Each *_fuzzer.cc defines the two functions. A program
// links it with libfuzzer.cc, which makes up bytes, or with replay.cc, which reads the seeds and
// the corpus (tests/cc/fuzz/corpus).
#ifndef TF_EMBED_TESTS_CC_FUZZ_TARGET_H_
#define TF_EMBED_TESTS_CC_FUZZ_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

namespace tf_embed::fuzz {

// Reads any bytes. Returns whether the reader accepted them. Ends the process if the reader breaks
// a promise.
bool Read(std::string_view bytes);

// Bytes that the library's writers wrote. Read accepts all of them.
std::vector<std::string> Seeds();

}  // namespace tf_embed::fuzz

#endif  // TF_EMBED_TESTS_CC_FUZZ_TARGET_H_
