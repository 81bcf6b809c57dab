// SPDX-License-Identifier: Apache-2.0
// Ops for the floors of benchmarks: what the same bytes cost without a table.
//
// TfEmbedBenchNoop has the inputs and outputs of a lookup, and allocates the outputs.
//
// TfEmbedBenchFloor works on an array. It gets a key's row from one random cache line of an index,
// by the key's hash, and reads or writes the row: no search, no lock, no absent keys. A step finds
// the equal keys of the batch by one pass over a hash table, sums their gradients, and changes each
// row once. Lines and rows are prefetched. Keys with the same line and lane have one row, so values
// mean nothing, and threads may write to one row.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace {

using tensorflow::Tensor;

REGISTER_OP("TfEmbedBenchNoop")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("owners: int32")
    .Input("defaults: float")
    .Output("values: float")
    .Output("exists: bool")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

class NoopOp : public tensorflow::OpKernel {
 public:
  explicit NoopOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::TensorShape shape = context->input(1).shape();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &output));
    shape.AddDim(dim_);
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
  }

 private:
  tensorflow::int64 dim_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedBenchNoop").Device(tensorflow::DEVICE_CPU), NoopOp);

// given: find: none. write: the rows [keys, dim]. accum: rows to subtract and rows to add. step:
//   the gradients of bags of `length` keys [keys / length, dim].
// out: find: the sums of the rows of each bag [keys / length, dim]; otherwise [0].
// lines, rows: Addresses of the index [2^line_bits, 16], uint32, and of the array [.., width].
REGISTER_OP("TfEmbedBenchFloor")
    .Input("keys: int64")
    .Input("given: num_given * float")
    .Output("out: float")
    .Attr("num_given: int >= 0")
    .Attr("verb: {'find', 'write', 'accum', 'step'}")
    .Attr("length: int >= 1 = 1")
    .Attr("lines: int")
    .Attr("line_bits: int")
    .Attr("rows: int")
    .Attr("dim: int >= 1")
    .Attr("width: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

// Loops over the values of a row, compiled for the best instructions of the machine.
#define TF_EMBED_BENCH_LOOP __attribute__((target_clones("avx512f", "avx2", "default")))

TF_EMBED_BENCH_LOOP void Add(const float* __restrict more, int64_t dim, float* __restrict sum) {
  for (int64_t j = 0; j < dim; ++j) sum[j] += more[j];
}

TF_EMBED_BENCH_LOOP void AddDifference(const float* __restrict from, const float* __restrict to,
                                       int64_t dim, float* __restrict row) {
  for (int64_t j = 0; j < dim; ++j) row[j] += to[j] - from[j];
}

// As much arithmetic as momentum: the bytes are a table's.
TF_EMBED_BENCH_LOOP void StepRow(const float* __restrict sum, int64_t dim, int64_t width,
                                 float* __restrict row) {
  for (int64_t j = 0; j < dim; ++j) row[j] -= 0.01f * sum[j];
  for (int64_t k = dim; k < width; k += dim) {
    for (int64_t j = 0; j < dim; ++j) row[k + j] = 0.9f * row[k + j] + 0.1f * sum[j];
  }
}

class FloorOp : public tensorflow::OpKernel {
 public:
  explicit FloorOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    tensorflow::int64 lines, rows, line_bits;
    OP_REQUIRES_OK(context, context->GetAttr("verb", &verb_));
    OP_REQUIRES_OK(context, context->GetAttr("length", &length_));
    OP_REQUIRES_OK(context, context->GetAttr("lines", &lines));
    OP_REQUIRES_OK(context, context->GetAttr("line_bits", &line_bits));
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
    lines_ = reinterpret_cast<const uint32_t*>(lines);
    rows_ = reinterpret_cast<float*>(rows);
    shift_ = static_cast<int>(64 - line_bits);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    const int64_t count = keys.NumElements();
    const int64_t* const ids = static_cast<const int64_t*>(keys.data());
    const auto given = [&](int i) { return static_cast<const float*>(context->input(i).data()); };
    Tensor* output = nullptr;
    tensorflow::TensorShape shape({verb_ == "find" ? count / length_ : 0, dim_});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    tensorflow::thread::ThreadPool* const pool =
        context->device()->tensorflow_cpu_worker_threads()->workers;
    if (verb_ == "step") {
      const int64_t parts = pool->NumThreads();
      return pool->ParallelFor(parts, kRowCost * count, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) Step(ids, count, given(1), part, parts);
      });
    }
    float* const out = static_cast<float*>(output->data());
    const int64_t bytes = dim_ * static_cast<int64_t>(sizeof(float));
    pool->ParallelFor(count / length_, kRowCost * length_, [&](int64_t begin, int64_t end) {
      ForEachRow(ids + begin * length_, (end - begin) * length_, [&](int64_t i, float* row) {
        const int64_t at = (begin * length_ + i) * dim_;
        if (verb_ == "write") {
          std::memcpy(row, given(1) + at, bytes);
        } else if (verb_ == "accum") {
          AddDifference(given(1) + at, given(2) + at, dim_, row);
        } else if (length_ == 1) {
          std::memcpy(out + at, row, bytes);
        } else {
          float* const sum = out + (begin + i / length_) * dim_;
          if (i % length_ == 0) std::fill_n(sum, dim_, 0.0f);
          Add(row, dim_, sum);
        }
      });
    });
  }

 private:
  static constexpr int64_t kRowCost = 50;  // nanoseconds
  static constexpr int64_t kAhead = 12;    // keys from the prefetch of a line to that of its row

  static uint64_t Hash(int64_t key) {
    return static_cast<uint64_t>(key) * uint64_t{0x9E3779B97F4A7C15};
  }
  const uint32_t* Entry(int64_t key) const {
    const uint64_t hash = Hash(key);
    return lines_ + (hash >> shift_ << 4) + (hash & 15);
  }
  float* Row(int64_t key) const { return rows_ + int64_t{*Entry(key)} * width_; }

  // Calls visit(i, row), with lines and rows prefetched.
  template <typename Visit>
  void ForEachRow(const int64_t* ids, int64_t count, const Visit& visit) const {
    for (int64_t i = -2 * kAhead; i < count; ++i) {
      if (i + 2 * kAhead < count) __builtin_prefetch(Entry(ids[i + 2 * kAhead]));
      if (i + kAhead >= 0 && i + kAhead < count) {
        const float* const row = Row(ids[i + kAhead]);
        const int64_t used = verb_ == "step" ? width_ : dim_;
        for (int64_t j = 0; j < used; j += 16) __builtin_prefetch(row + j);
      }
      if (i >= 0) visit(i, Row(ids[i]));
    }
  }

  // Scratch memory of a thread, kept, so that no step touches new memory.
  struct Scratch {
    std::vector<uint32_t> places;  // hash table of groups, from 1
    std::vector<int64_t> keys;     // of the groups
    std::vector<uint32_t> first, last;
    std::vector<uint32_t> next;  // position with the same key
  };

  // A step for the keys of a part.
  void Step(const int64_t* ids, int64_t count, const float* gradients, int64_t part,
            int64_t parts) const {
    static thread_local Scratch scratch;
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * count / parts) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    scratch.places.assign(mask + 1, 0);
    scratch.keys.clear();
    scratch.first.clear();
    scratch.last.clear();
    scratch.next.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = Hash(ids[i]);
      if (static_cast<int64_t>((hash >> 32) * static_cast<uint64_t>(parts) >> 32) != part) continue;
      uint64_t place = hash >> 8 & mask;
      while (scratch.places[place] != 0 && scratch.keys[scratch.places[place] - 1] != ids[i]) {
        place = (place + 1) & mask;
      }
      scratch.next[i] = UINT32_MAX;
      if (scratch.places[place] == 0) {
        scratch.keys.push_back(ids[i]);
        scratch.first.push_back(static_cast<uint32_t>(i));
        scratch.last.push_back(static_cast<uint32_t>(i));
        scratch.places[place] = static_cast<uint32_t>(scratch.keys.size());
      } else {
        const uint32_t group = scratch.places[place] - 1;
        scratch.next[scratch.last[group]] = static_cast<uint32_t>(i);
        scratch.last[group] = static_cast<uint32_t>(i);
      }
    }
    std::vector<float> sum(dim_);
    ForEachRow(scratch.keys.data(), static_cast<int64_t>(scratch.keys.size()),
               [&](int64_t group, float* row) {
                 uint32_t i = scratch.first[group];
                 std::copy_n(gradients + i / length_ * dim_, dim_, sum.data());
                 for (i = scratch.next[i]; i != UINT32_MAX; i = scratch.next[i]) {
                   Add(gradients + i / length_ * dim_, dim_, sum.data());
                 }
                 StepRow(sum.data(), dim_, width_, row);
               });
  }

  std::string verb_;
  tensorflow::int64 length_ = 1, dim_ = 0, width_ = 0;
  const uint32_t* lines_ = nullptr;
  float* rows_ = nullptr;
  int shift_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedBenchFloor").Device(tensorflow::DEVICE_CPU), FloorOp);

}  // namespace
