/// What `tidelock pingpong` is asked to do, and what the two sides tell each other of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/engine/options.h>
#include <tidelock/replication/wire.h>

namespace tidelock::tools {

enum class PingVerb : std::uint8_t {
  link = 1,  ///< a control frame there, a batch of the log back
  send = 2,  ///< a control frame there and back
};
const char* to_string(PingVerb verb);

/// Of both sides' links: the default of tidelock's nodes.
inline constexpr std::uint64_t kPingRingBytes = 4ULL << 20;
/// What a batch takes beside its header: a quarter of the ring is a batch.
inline constexpr std::uint32_t kPingBytesMax =
    static_cast<std::uint32_t>(kPingRingBytes / 4) - kFrameHeaderBytes;
/// The smallest entry: a batch has at least one.
inline constexpr std::uint32_t kPingBytesMin = kEntryHeaderBytes;

struct PingpongOptions {
  LinkKind link = LinkKind::verbs;
  std::string device;  ///< verbs; empty: chosen
  std::string server;  ///< client: where the server is; empty: this is the server
  std::string listen;  ///< server: where it listens; empty: chosen
  std::uint16_t port = 18515;
  PingVerb verb = PingVerb::link;
  std::uint64_t iterations = 1000;
  std::uint32_t bytes = 64;
  bool all_sizes = false;
  double duration = 0;  ///< seconds a size; 0: by iterations
  std::uint64_t warmup = 100;
  int cpu = -1;                       ///< -1: not pinned
  bool overprovisioned = false;       ///< parks instead of spinning
  double timeout = 60;                ///< seconds without a word from the other side
  bool no_frequency_warning = false;  ///< there is none anyway
  bool json = false;
  std::string command;

  [[nodiscard]] bool is_server() const { return server.empty(); }
  [[nodiscard]] Duration patience() const { return {static_cast<std::int64_t>(timeout * 1e9)}; }
  /// Payload bytes, in the order in which they are measured.
  [[nodiscard]] std::vector<std::uint32_t> sizes() const;
  /// shm: the server's socket if none is named.
  [[nodiscard]] std::string shm_address() const;
  /// Errors:   EINVAL: flags that do not go together, and what to use instead
  [[nodiscard]] Status validate() const;
};

/// Agreed before the first ping: the client says, the server checks. It travels as a replication Hello, whose
/// history is one that no engine has, so that a node and a ping-pong refuse each other.
struct PingTerms {
  PingVerb verb = PingVerb::link;
  std::uint32_t bytes_max = 0;  ///< of an answer
};
Hello hello_of(const PingTerms& terms, NodeRole role);
/// What a client's hello says. `refusal` is what to answer if it is no good.
/// Errors:   refused, with both values
Result<PingTerms> terms_of(const Hello& hello, Refusal& refusal);
/// Does a server's hello speak of a ping-pong.
Status check_server(const Hello& hello);
FrameContext ping_context();

}  // namespace tidelock::tools
