// Writes a valid message of each kind, one a file: the seeds of the kept corpus.
//   wire_seeds tests/fuzz/corpus/wire_fuzz
#include <cstdio>
#include <fstream>

#include "wire_seeds.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: wire_seeds DIRECTORY\n");
    return 2;
  }
  for (const tidelock::test::WireSeed& seed : tidelock::test::wire_seeds()) {
    const std::string path = std::string(argv[1]) + "/" + seed.name;
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(seed.bytes.data()),
              static_cast<std::streamsize>(seed.bytes.size()));
    if (!out.flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
