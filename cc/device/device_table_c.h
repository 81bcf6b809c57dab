// SPDX-License-Identifier: Apache-2.0
/* A DeviceTable by C functions: for Python beside PyTorch or CuPy, and whatever else can call C.
 *
 * Arrays of a batch (keys, weights, gradients, flags) are in memory that the table's device reads
 * and writes, dense, and ready on `stream`: a cudaStream_t, null for the default one. A verb
 * returns when its work is queued there; its results are ready on that stream. The arrays must live
 * until then. What is exported is in memory of the host.
 *
 * Each function that can fail returns a TfEmbedCode, and tf_embed_last_error tells more. No
 * exception comes through. All but tf_embed_table_free and those of one export may be called from
 * many threads at once. cc/core/table/table.h says what the verbs do. */
#ifndef TF_EMBED_CC_DEVICE_DEVICE_TABLE_C_H_
#define TF_EMBED_CC_DEVICE_DEVICE_TABLE_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* The numbers of what follows never change; new ones come at the end. */
typedef enum {
  TF_EMBED_OK = 0,
  TF_EMBED_INVALID_ARGUMENT = 1,
  TF_EMBED_FAILED_PRECONDITION = 2,
  TF_EMBED_RESOURCE_EXHAUSTED = 3,
  TF_EMBED_DATA_LOSS = 4,
  TF_EMBED_UNAVAILABLE = 5
} TfEmbedCode;

typedef enum {
  TF_EMBED_FLOAT32 = 0,
  TF_EMBED_FLOAT16 = 1,
  TF_EMBED_BFLOAT16 = 2,
  TF_EMBED_FLOAT64 = 3,
  TF_EMBED_INT8 = 4,
  TF_EMBED_INT32 = 5,
  TF_EMBED_INT64 = 6
} TfEmbedType;

/* What the first value of a row that nobody wrote is: a; even between a and b; normal, and
 * truncated at two deviations, around a with deviation b. */
typedef enum {
  TF_EMBED_CONSTANT = 0,
  TF_EMBED_UNIFORM = 1,
  TF_EMBED_NORMAL = 2,
  TF_EMBED_TRUNCATED_NORMAL = 3
} TfEmbedInitializer;

typedef enum {
  TF_EMBED_SGD = 1,
  TF_EMBED_MOMENTUM = 2,
  TF_EMBED_ADAGRAD = 3,
  TF_EMBED_ROWWISE_ADAGRAD = 4,
  TF_EMBED_ADAM = 5,
  TF_EMBED_ADAM_AMSGRAD = 6,
  TF_EMBED_RMSPROP = 7,
  TF_EMBED_FTRL = 11,
  TF_EMBED_SMART_DECAY_ADAM = 24
} TfEmbedRule;

/* Zeros are defaults, but for `dim`, `type` and `device`. */
typedef struct {
  const char* name; /* for messages; null: "table" */
  int32_t type;     /* TfEmbedType */
  int32_t device;   /* the GPU's number; -1: the host in its place, and its arrays */
  uint64_t dim;
  uint64_t init_size;  /* rows to make room for */
  uint64_t max_bytes;  /* of index and rows on the device; 0: what it has */
  int32_t initializer; /* TfEmbedInitializer */
  int32_t reserved;
  double a;
  double b;
  uint64_t seed;
  uint64_t table_id;
  /* Bytes of pinned memory of the host for the rows that are more than `max_row_bytes` on the
   * device; 0: none, and the rows on the device have no bound of their own. */
  uint64_t max_host_bytes;
  uint64_t max_row_bytes;
} TfEmbedTableOptions;

/* One step of an optimizer; what its rule does not name is ignored. */
typedef struct {
  int32_t kind; /* TfEmbedRule */
  int32_t nesterov;
  int64_t step; /* from 1 */
  double learning_rate;
  double weight_decay;
  double initial_slot; /* what Adagrad's accumulator starts from */
  double momentum;
  double epsilon;
  double beta_1;
  double beta_2;
  double rho;
  double learning_rate_power;
  double l1;
  double l2;
  double l2_shrinkage;
  double beta;
} TfEmbedStep;

typedef struct {
  uint64_t rows;
  uint64_t payload_bytes;
  uint64_t index_bytes;
  uint64_t slack_bytes;
  uint64_t admitted;
  uint64_t refused;
  uint64_t evicted;
  uint64_t hits;
  uint64_t misses;
  uint64_t pinned_bytes; /* of payload and slack, on the host */
} TfEmbedTableStats;

typedef struct TfEmbedTable TfEmbedTable;
typedef struct TfEmbedExport TfEmbedExport;

/* Why the last function of this thread that failed did; "" where none has. Valid until the next. */
const char* tf_embed_last_error(void);

int tf_embed_table_new(const TfEmbedTableOptions* options, TfEmbedTable** table);
void tf_embed_table_free(TfEmbedTable* table); /* null is fine */

/* `weights` [count, dim]; `exists` [count], one byte each, may be null. Absent keys get
 * `default_row` [dim], or their initial rows where that is null. */
int tf_embed_table_find(const TfEmbedTable* table, void* stream, const int64_t* keys, size_t count,
                        const void* default_row, void* weights, uint8_t* exists);
int tf_embed_table_contains(const TfEmbedTable* table, void* stream, const int64_t* keys,
                            size_t count, uint8_t* exists);
int tf_embed_table_find_or_insert(TfEmbedTable* table, void* stream, const int64_t* keys,
                                  size_t count, const void* default_row, void* weights,
                                  uint8_t* exists);
int tf_embed_table_insert_or_assign(TfEmbedTable* table, void* stream, const int64_t* keys,
                                    size_t count, const void* weights);

/* `gradients`: [count, dim], of `type`, which is that of the table, or float32 beside float16 and
 * bfloat16 rows. `begins` [count]: where among their values the gradient of each key begins, as
 * those of the keys of a bag do at one place; null: one behind the other. `factors` [count],
 * float32, or float64 beside float64 rows: what each is multiplied with; null: 1. Equal keys are
 * summed. */
int tf_embed_table_apply(TfEmbedTable* table, void* stream, const int64_t* keys, size_t count,
                         const void* gradients, int32_t type, const size_t* begins,
                         const void* factors, const TfEmbedStep* step);
int tf_embed_table_erase(TfEmbedTable* table, void* stream, const int64_t* keys, size_t count);

/* These wait for the device. */
int tf_embed_table_clear(TfEmbedTable* table);
int tf_embed_table_size(const TfEmbedTable* table, uint64_t* rows);
int tf_embed_table_stats(const TfEmbedTable* table, TfEmbedTableStats* stats);

/* All rows, in parts of about `max_rows`, each once while nobody changes the table. */
int tf_embed_export_new(const TfEmbedTable* table, uint64_t max_rows, TfEmbedExport** exported);
/* The next part, valid until the next call; a count of 0 is the end. */
int tf_embed_export_next(TfEmbedExport* exported, const int64_t** keys, const void** weights,
                         uint64_t* count);
void tf_embed_export_free(TfEmbedExport* exported);

#if defined(__cplusplus)
}
#endif

#endif /* TF_EMBED_CC_DEVICE_DEVICE_TABLE_C_H_ */
