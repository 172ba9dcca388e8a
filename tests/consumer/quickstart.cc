// The README's example: one node, one shard, no replica.
#include <cstdio>
#include <string>

#include <tidelock/engine/engine.h>

int main() {
  tidelock::Options options;
  options.overprovisioned = true;  // shares its cores: sleeps instead of spinning

  auto engine = tidelock::Engine::open(options);
  if (!engine) return std::fprintf(stderr, "open: %s\n", engine.error().message().c_str()), 1;

  const auto receipt = (*engine)->put("greeting", "hello, world");
  if (!receipt) return std::fprintf(stderr, "put: %s\n", receipt.error().message().c_str()), 1;

  std::string value;
  const auto lsn = (*engine)->get("greeting", value, tidelock::ReadOptions::after(*receipt));
  if (!lsn) return std::fprintf(stderr, "get: %s\n", lsn.error().message().c_str()), 1;
  std::printf("%s (LSN %llu)\n", value.c_str(), static_cast<unsigned long long>(lsn->value));

  return (*engine)->close(tidelock::seconds(5)) ? 0 : 1;
}
