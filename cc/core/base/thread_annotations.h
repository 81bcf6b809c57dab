// SPDX-License-Identifier: Apache-2.0
// Clang's attributes for locks: which mutex guards a field, and which a caller must hold. Clang
// checks them with -Wthread-safety (`make thread-safety`); other compilers see nothing. The mutexes
// and lock_guard of libc++ have such attributes too; unique_lock and shared_lock have none, so what
// they hold is not checked.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#ifndef TF_EMBED_CC_CORE_BASE_THREAD_ANNOTATIONS_H_
#define TF_EMBED_CC_CORE_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define TF_EMBED_LOCK_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define TF_EMBED_LOCK_ATTRIBUTE(attribute)
#endif

// For fields and functions.
#define TF_EMBED_GUARDED_BY(mutex) TF_EMBED_LOCK_ATTRIBUTE(guarded_by(mutex))
#define TF_EMBED_REQUIRES(mutex) TF_EMBED_LOCK_ATTRIBUTE(requires_capability(mutex))
// For a function whose locks the analysis can't follow: the comment beside it says why it is right.
#define TF_EMBED_LOCKS_UNCHECKED TF_EMBED_LOCK_ATTRIBUTE(no_thread_safety_analysis)

// For the class of a mutex and its functions.
#define TF_EMBED_MUTEX TF_EMBED_LOCK_ATTRIBUTE(capability("mutex"))
#define TF_EMBED_LOCKS TF_EMBED_LOCK_ATTRIBUTE(acquire_capability())
#define TF_EMBED_LOCKS_SHARED TF_EMBED_LOCK_ATTRIBUTE(acquire_shared_capability())
#define TF_EMBED_LOCKS_IF_TRUE TF_EMBED_LOCK_ATTRIBUTE(try_acquire_capability(true))
#define TF_EMBED_LOCKS_SHARED_IF_TRUE TF_EMBED_LOCK_ATTRIBUTE(try_acquire_shared_capability(true))
#define TF_EMBED_UNLOCKS TF_EMBED_LOCK_ATTRIBUTE(release_capability())
#define TF_EMBED_UNLOCKS_SHARED TF_EMBED_LOCK_ATTRIBUTE(release_shared_capability())

#endif  // TF_EMBED_CC_CORE_BASE_THREAD_ANNOTATIONS_H_
