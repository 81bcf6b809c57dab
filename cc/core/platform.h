// Marks for functions that the host compiler and nvcc both compile.
#ifndef TF_EMBED_CC_CORE_PLATFORM_H_
#define TF_EMBED_CC_CORE_PLATFORM_H_

#if defined(__CUDACC__)
#define TF_EMBED_HOST_DEVICE __host__ __device__
#else
#define TF_EMBED_HOST_DEVICE
#endif

#endif  // TF_EMBED_CC_CORE_PLATFORM_H_
