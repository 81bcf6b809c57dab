// The tables that the suites of the contract run on. A program defines which: the everyday tests
// all that this machine has (contract_tables_on_host.cc), `make cuda-test` those on a GPU
// (gpu_test.cc).
#ifndef TF_EMBED_TESTS_CC_CUDA_CONTRACT_TABLES_H_
#define TF_EMBED_TESTS_CC_CUDA_CONTRACT_TABLES_H_

#include <vector>

#include "tests/cc/core/test_tables.h"

namespace tf_embed {

std::vector<TableKind> ContractTables();

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_CUDA_CONTRACT_TABLES_H_
