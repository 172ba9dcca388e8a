// The line that an Inspector answers with. Written by hand: a library for it would be a dependency of every
// embedder.
#include <unistd.h>

#include "inspect.h"

namespace tidelock {
namespace {

std::string json_string(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c >= ' ' && c < '\x7f' ? c : '?';
  }
  return json + '"';
}

/// The members of one object, in the order in which they are added.
class Object {
 public:
  Object& add(const char* name, const std::string& text) { return raw(name, json_string(text)); }
  Object& add(const char* name, std::uint64_t number) { return raw(name, std::to_string(number)); }
  Object& raw(const char* name, const std::string& json) {
    text_ += (text_.empty() ? "\"" : ",\"") + std::string(name) + "\":" + json;
    return *this;
  }
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <class T, class Make>
std::string list(const std::vector<T>& items, const Make& make) {
  std::string text;
  for (const T& item : items) text += (text.empty() ? "" : ",") + make(item);
  return "[" + text + "]";
}

std::string transition_json(const LinkTransitionInfo& change) {
  return Object().add("state", change.state).add("age_ns", change.age_ns).add("detail", change.detail).text();
}

std::string link_json(const LinkInfo& link) {
  Object json;
  json.add("shard", link.shard.value).add("peer_node", link.peer_node).add("kind", link.kind);
  json.add("state", link.state).add("description", link.description).add("generation", link.generation);
  json.add("batches_out", link.batches_out).add("batches_in", link.batches_in);
  json.add("bytes_out", link.bytes_out).add("bytes_in", link.bytes_in);
  json.add("control_out", link.control_out).add("control_in", link.control_in);
  json.add("peer_wakeups", link.peer_wakeups).add("full", link.full);
  json.add("last_heard_age_ns", link.last_heard_age_ns);
  return json.raw("transitions", list(link.transitions, transition_json)).text();
}

}  // namespace

std::string links_json(const Options& options, const std::vector<LinkInfo>& links) {
  Object json;
  json.add("node", options.node).add("role", options.role == NodeRole::primary ? "primary" : "replica");
  json.add("pid", static_cast<std::uint64_t>(::getpid())).add("shards", options.shards);
  return json.raw("links", list(links, link_json)).text();
}

}  // namespace tidelock
