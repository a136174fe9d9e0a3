// An executor of an io_context whose work another thread can take over at once.
#pragma once

#include <utility>

#include <boost/asio/execution/any_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/require.hpp>

namespace tendon {

// While one of these lives, the next function that its thread hands to a HereExecutor runs in the call: through a
// strand it is what was posted to an idle strand, and through a busy one nothing. The thread is none of the
// io_context's, so what runs may begin operations as ever.
class RunHere {
 public:
  RunHere() { wanted_ = true; }
  ~RunHere() { wanted_ = false; }
  RunHere(const RunHere&) = delete;
  RunHere& operator=(const RunHere&) = delete;

  static bool take() { return std::exchange(wanted_, false); }

 private:
  static inline thread_local bool wanted_ = false;
};

// As the executor inside, but for RunHere.
template <class Inner>
class HereExecutor {
 public:
  explicit HereExecutor(Inner inner) noexcept : inner_(std::move(inner)) {}

  template <class Property>
  auto query(const Property& property) const noexcept
      -> decltype(boost::asio::query(std::declval<const Inner&>(), property)) {
    return boost::asio::query(inner_, property);
  }
  template <class Property>
  auto require(const Property& property) const
      -> HereExecutor<std::decay_t<decltype(boost::asio::require(std::declval<const Inner&>(), property))>> {
    return HereExecutor<std::decay_t<decltype(boost::asio::require(inner_, property))>>(
        boost::asio::require(inner_, property));
  }

  template <class Function>
  void execute(Function&& function) const {
    if (RunHere::take()) {
      std::decay_t<Function> kept(std::forward<Function>(function));
      kept();
    } else {
      inner_.execute(std::forward<Function>(function));
    }
  }

  bool operator==(const HereExecutor& other) const noexcept { return inner_ == other.inner_; }
  bool operator!=(const HereExecutor& other) const noexcept { return inner_ != other.inner_; }

 private:
  Inner inner_;
};

}  // namespace tendon
