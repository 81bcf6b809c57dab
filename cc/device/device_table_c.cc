// SPDX-License-Identifier: Apache-2.0
#include "cc/device/device_table_c.h"

#include <exception>
#include <memory>
#include <string>

#include "cc/core/rules/rule_list.h"
#include "cc/core/table/table.h"
#include "cc/device/device_table.h"

namespace te = tf_embed;

struct TfEmbedTable {
  std::unique_ptr<te::Table> table;
};

struct TfEmbedExport {
  const te::Table* table;
  size_t max_rows;
  te::ExportCursor cursor;
  te::WholeRows rows{te::HostAllocator()};
};

namespace {

static_assert(TF_EMBED_INVALID_ARGUMENT == int(te::StatusCode::kInvalidArgument), "");
static_assert(TF_EMBED_FAILED_PRECONDITION == int(te::StatusCode::kFailedPrecondition), "");
static_assert(TF_EMBED_RESOURCE_EXHAUSTED == int(te::StatusCode::kResourceExhausted), "");
static_assert(TF_EMBED_DATA_LOSS == int(te::StatusCode::kDataLoss), "");
static_assert(TF_EMBED_UNAVAILABLE == int(te::StatusCode::kUnavailable), "");
static_assert(TF_EMBED_FLOAT32 == int(te::DataType::kFloat), "");
static_assert(TF_EMBED_FLOAT16 == int(te::DataType::kHalf), "");
static_assert(TF_EMBED_BFLOAT16 == int(te::DataType::kBFloat16), "");
static_assert(TF_EMBED_FLOAT64 == int(te::DataType::kDouble), "");
static_assert(TF_EMBED_INT8 == int(te::DataType::kInt8), "");
static_assert(TF_EMBED_INT32 == int(te::DataType::kInt32), "");
static_assert(TF_EMBED_INT64 == int(te::DataType::kInt64), "");
static_assert(TF_EMBED_SGD == int(te::RuleKind::kSgd), "");
static_assert(TF_EMBED_MOMENTUM == int(te::RuleKind::kMomentum), "");
static_assert(TF_EMBED_ADAGRAD == int(te::RuleKind::kAdagrad), "");
static_assert(TF_EMBED_ROWWISE_ADAGRAD == int(te::RuleKind::kRowwiseAdagrad), "");
static_assert(TF_EMBED_ADAM == int(te::RuleKind::kAdam), "");
static_assert(TF_EMBED_ADAM_AMSGRAD == int(te::RuleKind::kAdamAmsgrad), "");
static_assert(TF_EMBED_RMSPROP == int(te::RuleKind::kRmsprop), "");
static_assert(TF_EMBED_FTRL == int(te::RuleKind::kFtrl), "");
static_assert(TF_EMBED_SMART_DECAY_ADAM == int(te::RuleKind::kSmartDecayAdam), "");
static_assert(sizeof(bool) == sizeof(uint8_t), "flags are bytes");

thread_local std::string last_error;  // NOLINT: the message of tf_embed_last_error

int Tell(te::StatusCode code, const char* message) {
  try {
    last_error = message;
  } catch (const std::exception&) {
    // No memory for the message; the code alone must do.
    last_error.clear();
  }
  return static_cast<int>(code);
}

// Runs a function that returns a Status. Stores its message, and lets no exception through to the
// caller.
template <typename Run>
int Guarded(const Run& run) {
  try {
    const te::Status status = run();
    return status.ok() ? TF_EMBED_OK : Tell(status.code(), status.message().c_str());
  } catch (const std::exception& error) {
    return Tell(te::StatusCode::kResourceExhausted, error.what());
  }
}

te::Status Invalid(const char* argument, const std::string& must, int64_t received) {
  return te::Status::InvalidArgument("`" + std::string(argument) + "` must be " + must +
                                     ". Received: " + std::to_string(received) + ".");
}

te::Status CheckArray(const char* name, const void* array, size_t count) {
  if (array != nullptr || count == 0) return te::Status();
  return te::Status::InvalidArgument("`" + std::string(name) +
                                     "` must be an array. Received: null.");
}

te::ExecContext On(void* stream) {
  te::ExecContext context = te::ExecContext::Serial();
  context.stream = stream;
  return context;
}

te::KeyBatch Batch(const int64_t* keys, size_t count) {
  te::KeyBatch batch;
  batch.keys = keys;
  batch.size = count;
  return batch;
}

te::DefaultRows Defaults(const void* default_row) {
  te::DefaultRows defaults;
  if (default_row != nullptr) {
    defaults.kind = te::DefaultRows::Kind::kOneForAll;
    defaults.rows = default_row;
  }
  return defaults;
}

te::Status OptionsOf(const TfEmbedTableOptions& given, te::TableOptions* options,
                     te::DeviceOptions* device) {
  if (given.type < TF_EMBED_FLOAT32 || given.type > TF_EMBED_INT64) {
    return Invalid("type", "a TfEmbedType", given.type);
  }
  constexpr uint64_t kMaxDim = 1 << 20;
  if (given.dim == 0 || given.dim > kMaxDim) {
    return Invalid("dim", "between 1 and " + std::to_string(kMaxDim),
                   static_cast<int64_t>(given.dim));
  }
  if (given.device < -1) return Invalid("device", "a GPU's number or -1", given.device);
  te::RowInitializer& initializer = options->initializer;
  switch (given.initializer) {
    case TF_EMBED_CONSTANT:
      initializer.kind = te::InitializerKind::kConstant;
      break;
    case TF_EMBED_UNIFORM:
      initializer.kind = te::InitializerKind::kUniform;
      break;
    case TF_EMBED_NORMAL:
      initializer.kind = te::InitializerKind::kNormal;
      break;
    case TF_EMBED_TRUNCATED_NORMAL:
      initializer.kind = te::InitializerKind::kTruncatedNormal;
      break;
    default:
      return Invalid("initializer", "a TfEmbedInitializer", given.initializer);
  }
  initializer.a = given.a;
  initializer.b = given.b;
  initializer.seed = given.seed;
  initializer.table_id = given.table_id;
  if (given.name != nullptr) options->name = given.name;
  options->value_type = static_cast<te::DataType>(given.type);
  options->dim = given.dim;
  options->init_size = given.init_size;
  device->device = given.device;
  if (given.max_bytes > 0) device->max_bytes = given.max_bytes;
  // Without room on the host a bound on rows in the card's memory would be a second name for
  // max_bytes.
  if (given.max_host_bytes > 0) {
    device->max_host_bytes = given.max_host_bytes;
    device->max_row_bytes = given.max_row_bytes;
  }
  return te::Status();
}

te::Status RuleOf(const TfEmbedStep& step, size_t dim, te::Rule* rule) {
  switch (step.kind) {
    case TF_EMBED_SGD:
    case TF_EMBED_MOMENTUM:
    case TF_EMBED_ADAGRAD:
    case TF_EMBED_ROWWISE_ADAGRAD:
    case TF_EMBED_ADAM:
    case TF_EMBED_ADAM_AMSGRAD:
    case TF_EMBED_RMSPROP:
    case TF_EMBED_FTRL:
    case TF_EMBED_SMART_DECAY_ADAM:
      break;
    default:
      return Invalid("kind", "a TfEmbedRule", step.kind);
  }
  if (step.step < 1) return Invalid("step", "at least 1", step.step);
  rule->slots.kind = static_cast<te::RuleKind>(step.kind);
  rule->step = step.step;
  rule->learning_rate = step.learning_rate;
  rule->weight_decay = step.weight_decay;
  const auto set = [rule](const char* name, double number) {
    // A rule takes its own numbers and ignores the other fields of the struct.
    const int place = te::FindHyper(rule->slots.kind, name);
    if (place >= 0) rule->hyper[place] = number;
  };
  set("initial_accumulator_value", step.initial_slot);
  set("momentum", step.momentum);
  set("nesterov", step.nesterov != 0 ? 1.0 : 0.0);
  set("epsilon", step.epsilon);
  set("beta_1", step.beta_1);
  set("beta_2", step.beta_2);
  set("rho", step.rho);
  set("learning_rate_power", step.learning_rate_power);
  set("l1", step.l1);
  set("l2", step.l2);
  set("l2_shrinkage", step.l2_shrinkage);
  set("beta", step.beta);
  te::SetFusedSlots(dim, rule);
  return te::Status();
}

}  // namespace

const char* tf_embed_last_error(void) { return last_error.c_str(); }

int tf_embed_table_new(const TfEmbedTableOptions* options, TfEmbedTable** table) {
  *table = nullptr;
  return Guarded([&] {
    te::TableOptions table_options;
    te::DeviceOptions device_options;
    TF_EMBED_RETURN_IF_ERROR(OptionsOf(*options, &table_options, &device_options));
    auto made = std::make_unique<TfEmbedTable>();
    if (device_options.device < 0) {
      device_options.device = 0;
      TF_EMBED_RETURN_IF_ERROR(
          te::NewEmulatedDeviceTable(table_options, device_options, &made->table));
    } else {
      TF_EMBED_RETURN_IF_ERROR(te::NewDeviceTable(table_options, device_options, &made->table));
    }
    *table = made.release();
    return te::Status();
  });
}

void tf_embed_table_free(TfEmbedTable* table) { delete table; }

int tf_embed_table_find(const TfEmbedTable* table, void* stream, const int64_t* keys, size_t count,
                        const void* default_row, void* weights, uint8_t* exists) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    TF_EMBED_RETURN_IF_ERROR(CheckArray("weights", weights, count));
    return table->table->Find(On(stream), Batch(keys, count), Defaults(default_row), weights,
                              reinterpret_cast<bool*>(exists), {});
  });
}

int tf_embed_table_contains(const TfEmbedTable* table, void* stream, const int64_t* keys,
                            size_t count, uint8_t* exists) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    TF_EMBED_RETURN_IF_ERROR(CheckArray("exists", exists, count));
    return table->table->Contains(On(stream), Batch(keys, count), reinterpret_cast<bool*>(exists));
  });
}

int tf_embed_table_find_or_insert(TfEmbedTable* table, void* stream, const int64_t* keys,
                                  size_t count, const void* default_row, void* weights,
                                  uint8_t* exists) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    TF_EMBED_RETURN_IF_ERROR(CheckArray("weights", weights, count));
    return table->table->FindOrInsert(On(stream), Batch(keys, count), Defaults(default_row),
                                      weights, reinterpret_cast<bool*>(exists));
  });
}

int tf_embed_table_insert_or_assign(TfEmbedTable* table, void* stream, const int64_t* keys,
                                    size_t count, const void* weights) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    TF_EMBED_RETURN_IF_ERROR(CheckArray("weights", weights, count));
    return table->table->InsertOrAssign(On(stream), Batch(keys, count), weights, {});
  });
}

int tf_embed_table_apply(TfEmbedTable* table, void* stream, const int64_t* keys, size_t count,
                         const void* gradients, int32_t type, const size_t* begins,
                         const void* factors, const TfEmbedStep* step) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    TF_EMBED_RETURN_IF_ERROR(CheckArray("gradients", gradients, count));
    if (type < TF_EMBED_FLOAT32 || type > TF_EMBED_INT64) {
      return Invalid("type", "a TfEmbedType", type);
    }
    te::Rule rule;
    TF_EMBED_RETURN_IF_ERROR(RuleOf(*step, table->table->options().dim, &rule));
    te::ExecContext context = On(stream);
    context.training = true;
    const te::Gradients given{gradients, static_cast<te::DataType>(type), begins, factors};
    return table->table->Apply(context, Batch(keys, count), given, rule);
  });
}

int tf_embed_table_erase(TfEmbedTable* table, void* stream, const int64_t* keys, size_t count) {
  return Guarded([&] {
    TF_EMBED_RETURN_IF_ERROR(CheckArray("keys", keys, count));
    return table->table->Erase(On(stream), Batch(keys, count));
  });
}

int tf_embed_table_clear(TfEmbedTable* table) {
  return Guarded([&] { return table->table->Clear(); });
}

int tf_embed_table_size(const TfEmbedTable* table, uint64_t* rows) {
  return Guarded([&] {
    size_t count = 0;
    TF_EMBED_RETURN_IF_ERROR(table->table->Count(&count));
    *rows = count;
    return te::Status();
  });
}

int tf_embed_table_stats(const TfEmbedTable* table, TfEmbedTableStats* stats) {
  return Guarded([&] {
    const te::TableStats from = table->table->Stats();
    *stats = {from.rows,     from.payload_bytes, from.index_bytes, from.slack_bytes,
              from.admitted, from.refused,       from.evicted,     from.hits,
              from.misses,   from.pinned_bytes};
    return te::Status();
  });
}

int tf_embed_export_new(const TfEmbedTable* table, uint64_t max_rows, TfEmbedExport** exported) {
  *exported = nullptr;
  return Guarded([&] {
    *exported = new TfEmbedExport{table->table.get(), static_cast<size_t>(max_rows), {}};
    return te::Status();
  });
}

int tf_embed_export_next(TfEmbedExport* exported, const int64_t** keys, const void** weights,
                         uint64_t* count) {
  *count = 0;
  return Guarded([&] {
    // A part of an export may be empty; for the caller 0 rows mean the end.
    while (*count == 0 && !exported->cursor.done) {
      TF_EMBED_RETURN_IF_ERROR(exported->table->maintenance()->ExportBatch(
          exported->max_rows, &exported->cursor, &exported->rows));
      *count = exported->rows.size;
    }
    *keys = exported->rows.keys.data();
    *weights = exported->rows.weights.data();
    return te::Status();
  });
}

void tf_embed_export_free(TfEmbedExport* exported) { delete exported; }
