// SPDX-License-Identifier: Apache-2.0
// The list of key types, used by op attributes, kernels, files and Python.
#ifndef TF_EMBED_CC_OPS_KEY_TYPES_H_
#define TF_EMBED_CC_OPS_KEY_TYPES_H_

// KEY(type, TensorFlow's enumerator, name, StoredType in files), a line for each integer type.
// String keys are stored by their dictionary numbers.
#define TF_EMBED_INTEGER_KEYS(KEY)            \
  KEY(int64_t, DT_INT64, "int64", kInt64)     \
  KEY(int32_t, DT_INT32, "int32", kInt32)     \
  KEY(uint64_t, DT_UINT64, "uint64", kUint64) \
  KEY(uint32_t, DT_UINT32, "uint32", kUint32)

namespace tf_embed {

// The op attribute.
inline constexpr char kKeyDtype[] = "key_dtype: {"
#define TF_EMBED_KEY(type, dtype, name, stored) name ", "
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
        "string}";

// The same for the keys of several tables.
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
