// SPDX-License-Identifier: Apache-2.0
// device_store_benchmark.cu as a compiler without CUDA sees it: with the host for a device, to try
// the program where there is no GPU.
#include "benchmarks/device_store_benchmark.cu"
