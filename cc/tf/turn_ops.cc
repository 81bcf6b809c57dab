// SPDX-License-Identifier: Apache-2.0
// Ops by which steps that read rows and write them back take turns on a table.
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/shared_variant.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

using StorePtr = tf::core::RefCountPtr<TableResource>;

// A turn on a table, released at the latest with the last copy of its variant. So a step that fails
// or is cancelled between the two ops releases it.
class Turn {
 public:
  static constexpr char kTypeName[] = "tf_embed::Turn";

  explicit Turn(StorePtr table) : table_(std::move(table)) {}
  ~Turn() { End(); }

  const TableResource* table() const { return table_.get(); }
  void Begin() { begun_ = true; }
  void End() {
    // TfEmbedEndTurn and the last copy may end a turn concurrently; only the first leaves the
    // queue.
    if (begun_.exchange(false)) table_->turns()->Leave();
  }

 private:
  const StorePtr table_;
  std::atomic<bool> begun_{false};
};

using TurnVariant = SharedVariant<Turn>;

// GPU versions of the ops use turns in host memory, and TensorFlow copies them back and forth.
const CopiesOnHost<TurnVariant> copies_of_turns;

class TakeTurnOp : public tf::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    StorePtr table;
    OP_REQUIRES_OK_ASYNC(context, LookUpTable(context, context->input(0), "table", &table), done);
    tf::Tensor* output;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &output), done);
    try {
      Wait(context, done, std::move(table), output);
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for the turn of a table."));
      done();
    }
  }

 private:
  // Everything that may throw runs before the request is queued, so no granted turn can leak.
  static void Wait(tf::OpKernelContext* context, const DoneCallback& done, StorePtr table,
                   tf::Tensor* output) {
    TableResource* const resource = table.get();
    // The turn itself may be released, with its reference, while the queue still runs code of the
    // table.
    resource->Ref();
    const std::shared_ptr<TableResource> kept(resource, [](TableResource* one) { one->Unref(); });
    // Moved to the output, so that the closures below do not keep the turn.
    const auto turn =
        std::make_shared<std::shared_ptr<Turn>>(std::make_shared<Turn>(std::move(table)));
    tf::CancellationManager* const cancellations = context->cancellation_manager();
    const tf::CancellationToken token = cancellations == nullptr
                                            ? tf::CancellationManager::kInvalidToken
                                            : cancellations->get_cancellation_token();
    // Use the context only if the queue cancels the request. Once granted, the op may finish at any
    // moment.
    const auto give_up = [context, done, kept, turn] {
      if (!kept->turns()->Cancel(turn.get())) return;
      context->SetStatus(absl::CancelledError("The step was cancelled while it waited."));
      done();
    };
    // Registered before the request is queued, or a cancellation in between would be missed and the
    // step would wait for ever.
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    if (cancellations != nullptr && !cancellations->RegisterCallback(token, [cancelled, give_up] {
          *cancelled = true;
          give_up();
        })) {
      context->SetStatus(absl::CancelledError("The step was cancelled."));
      done();
      return;
    }
    // May run right here, or on the thread of the step that ends the turn before.
    kept->turns()->Enter(turn.get(), [cancellations, token, done, turn, output] {
      (*turn)->Begin();
      // Only tries: the running cancellation may be the code that releases the turn here, and
      // waiting for it would deadlock.
      if (cancellations != nullptr) cancellations->TryDeregisterCallback(token);
      output->scalar<tf::Variant>()() = TurnVariant(std::move(*turn));
      done();
    });
    if (*cancelled) give_up();  // a cancellation before queuing found no request
  }
};

absl::Status RunEndTurn(tf::OpKernelContext* context, TableResource* table) {
  const tf::Tensor& input = context->input(1);
  Turn* const turn = TurnVariant::In(input);
  if (turn == nullptr || turn->table() != table) {
    return InvalidArgumentError("`turn` must be one of table '", table->name(),
                                "'. Received: ", input.DebugString(), ".");
  }
  turn->End();
  return absl::OkStatus();
}

const Kernels<TakeTurnOp> take_turn("TfEmbedTakeTurn", {"table", "turn"});
const Kernels<TableFunction<RunEndTurn>> end_turn("TfEmbedEndTurn", {"table", "turn"});

}  // namespace
}  // namespace tf_embed
