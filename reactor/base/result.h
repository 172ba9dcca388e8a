/// Result<T>: a value, or an Error that says what to do about it. Operating errors travel as values; no
/// exception crosses a public header.
/// Thread:   any; a Result is owned by one thread at a time
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <tidelock/base/check.h>

namespace tidelock {

/// An error code and, where there is more to say, one line of text that names the remedy. The text is shared
/// and immutable, so copying an Error is cheap and a success carries none.
class [[nodiscard]] Error {
 public:
  explicit Error(std::error_code code) : code_(code) {}
  template <class E, class = std::enable_if_t<std::is_error_code_enum_v<E>>>
  explicit Error(E code) : code_(make_error_code(code)) {}
  Error(std::error_code code, std::string detail)
      : code_(code), detail_(std::make_shared<const std::string>(std::move(detail))) {}
  template <class E, class = std::enable_if_t<std::is_error_code_enum_v<E>>>
  Error(E code, std::string detail) : Error(make_error_code(code), std::move(detail)) {}

  /// Takes a positive errno value.
  static Error from_errno(int errno_value, std::string detail) {
    return Error(std::error_code(errno_value, std::generic_category()), std::move(detail));
  }

  [[nodiscard]] std::error_code code() const { return code_; }
  /// One line: the detail if there is one, followed by the code's own text.
  [[nodiscard]] std::string message() const {
    return detail_ ? *detail_ + " (" + code_.message() + ")" : code_.message();
  }
  template <class E, class = std::enable_if_t<std::is_error_code_enum_v<E>>>
  friend bool operator==(const Error& error, E code) {
    return error.code_ == make_error_code(code);
  }

 private:
  std::error_code code_;
  std::shared_ptr<const std::string> detail_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(const T& value) : value_(value) {}          // NOLINT(google-explicit-constructor)
  Result(T&& value) : value_(std::move(value)) {}    // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  template <class E, class = std::enable_if_t<std::is_error_code_enum_v<E>>>
  Result(E code) : error_(Error(code)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return value_.has_value(); }
  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const {
    TL_ASSERT(error_.has_value(), "error() of a Result that holds a value");
    return *error_;
  }

 private:
  void check() const { TL_ASSERT(value_.has_value(), "value() of a Result that holds an error"); }

  std::optional<T> value_;
  std::optional<Error> error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  template <class E, class = std::enable_if_t<std::is_error_code_enum_v<E>>>
  Result(E code) : error_(Error(code)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const {
    TL_ASSERT(error_.has_value(), "error() of a Result that holds a value");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tidelock

// TL_TRY(expression)            returns the error of a failed Result from this function
// TL_TRY(auto x, expression)    the same, else x takes the value
#define TL_TRY_CONCAT_(a, b) a##b
#define TL_TRY_NAME_(line) TL_TRY_CONCAT_(tl_try_, line)
#define TL_TRY_1_(expression)                                                            \
  do {                                                                                   \
    if (auto tl_try_status = (expression); !tl_try_status) return tl_try_status.error(); \
  } while (false)
#define TL_TRY_2_(declaration, expression)                            \
  auto TL_TRY_NAME_(__LINE__) = (expression);                         \
  if (!TL_TRY_NAME_(__LINE__)) return TL_TRY_NAME_(__LINE__).error(); \
  declaration = *std::move(TL_TRY_NAME_(__LINE__))
#define TL_TRY_PICK_(a, b, name, ...) name
#define TL_TRY(...) TL_TRY_PICK_(__VA_ARGS__, TL_TRY_2_, TL_TRY_1_, )(__VA_ARGS__)
