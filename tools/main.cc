#include "tool_main.h"

int main(int argc, char** argv) { return tidelock::tools::tool_main(argc, argv, nullptr); }
