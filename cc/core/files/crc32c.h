// SPDX-License-Identifier: Apache-2.0
// CRC-32C, the checksum by Castagnoli's polynomial (Castagnoli, Braeuer and Herrmann, "Optimization
// of cyclic redundancy-check codes with 24 and 32 parity bits", 1993). It finds all errors of up to
// 32 bits in a row, and x86-64 has an instruction for it.
#ifndef TF_EMBED_CC_CORE_FILES_CRC32C_H_
#define TF_EMBED_CC_CORE_FILES_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tf_embed {

// The checksum of the bytes that gave `crc` followed by these. 0 for no bytes.
uint32_t ExtendCrc32c(uint32_t crc, const void* bytes, size_t size);

// The same by a table, as on machines without the instruction; for tests.
uint32_t ExtendCrc32cByTable(uint32_t crc, const void* bytes, size_t size);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_FILES_CRC32C_H_
