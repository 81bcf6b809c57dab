// SPDX-License-Identifier: Apache-2.0
// The types of keys. Attributes of ops, kernels, files and Python take them from this list.
#ifndef TF_EMBED_CC_OPS_KEY_TYPES_H_
#define TF_EMBED_CC_OPS_KEY_TYPES_H_

// KEY(type, TensorFlow's enumerator, name, StoredType in files): one line for each type of
// integers. Strings are keys by the numbers that a dictionary gives them.
#define TF_EMBED_INTEGER_KEYS(KEY)            \
  KEY(int64_t, DT_INT64, "int64", kInt64)     \
  KEY(int32_t, DT_INT32, "int32", kInt32)     \
  KEY(uint64_t, DT_UINT64, "uint64", kUint64) \
  KEY(uint32_t, DT_UINT32, "uint32", kUint32)

namespace tf_embed {

// The attribute of an op.
inline constexpr char kKeyDtype[] = "key_dtype: {"
#define TF_EMBED_KEY(type, dtype, name, stored) name ", "
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
        "string}";

// The same of keys of several tables.
inline constexpr char kKeyDtypes[] = "key_dtypes: list({"
#define TF_EMBED_KEY(type, dtype, name, stored) name ", "
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
        "string}) >= 1";

inline constexpr const char* kKeyTypeNames[] = {
#define TF_EMBED_KEY(type, dtype, name, stored) name,
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
        "string"};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_OPS_KEY_TYPES_H_
