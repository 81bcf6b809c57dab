// SPDX-License-Identifier: Apache-2.0
// The result of an operation that can fail. The core throws nothing and knows no other status type,
// so it can be used with any framework.
#ifndef TF_EMBED_CC_CORE_BASE_STATUS_H_
#define TF_EMBED_CC_CORE_BASE_STATUS_H_

#include <new>
#include <string>
#include <utility>

namespace tf_embed {

// The canonical codes of gRPC, with their numbers. The core itself returns those with a name; a
// file system may return the others.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument = 3,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,      // a server was lost; the same may succeed later
  kUnavailable = 14,  // a file can't be read or written
  kDataLoss = 15,     // a file is damaged
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status FailedPrecondition(std::string message) {
    return Status(StatusCode::kFailedPrecondition, std::move(message));
  }
  static Status NotFound(std::string message) {
    return Status(StatusCode::kNotFound, std::move(message));
  }
  static Status DataLoss(std::string message) {
    return Status(StatusCode::kDataLoss, std::move(message));
  }
  static Status Unavailable(std::string message) {
    return Status(StatusCode::kUnavailable, std::move(message));
  }
  static Status Aborted(std::string message) {
    return Status(StatusCode::kAborted, std::move(message));
  }

  // A result of another system, such as a file system. REQUIRES: `code` is not kOk.
  static Status Of(StatusCode code, std::string message) {
    return Status(code, std::move(message));
  }

  // `describe` returns the message. If there is no memory for the message, only the code is kept.
  template <typename Describe>
  static Status ResourceExhausted(const Describe& describe) {
    Status status(StatusCode::kResourceExhausted, std::string());
    try {
      status.message_ = describe();
    } catch (const std::bad_alloc&) {  // the code is enough
    }
    return status;
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tf_embed

#define TF_EMBED_RETURN_IF_ERROR(expression)           \
  do {                                                 \
    ::tf_embed::Status tf_embed_status = (expression); \
    if (!tf_embed_status.ok()) return tf_embed_status; \
  } while (false)

#endif  // TF_EMBED_CC_CORE_BASE_STATUS_H_
