// SPDX-License-Identifier: Apache-2.0
// Marks for functions that the host compiler and nvcc both compile.
#ifndef TF_EMBED_CC_CORE_BASE_PLATFORM_H_
#define TF_EMBED_CC_CORE_BASE_PLATFORM_H_

#if defined(__CUDACC__)
#define TF_EMBED_HOST_DEVICE __host__ __device__
#else
#define TF_EMBED_HOST_DEVICE
#endif

// For functions that files compiled for different instruction sets share. An inline function that
// is not inlined exists once in the program, in the instructions of whichever file it is taken
// from.
#define TF_EMBED_INLINE inline __attribute__((always_inline))

// ThreadSanitizer only treats an access as atomic if the compiler does.
#if defined(__SANITIZE_THREAD__)
#define TF_EMBED_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TF_EMBED_THREAD_SANITIZER 1
#endif
#endif

#endif  // TF_EMBED_CC_CORE_BASE_PLATFORM_H_
