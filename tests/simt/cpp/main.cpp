// Runs all tests, or those whose name contains an argument.
#include <cstdio>
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  int num_failed = 0;
  int num_run = 0;
  for (const Test& test : all_tests()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    ++num_run;
    try {
      test.run();
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
    }
  }
  std::printf("%d of %d tests passed\n", num_run - num_failed, num_run);
  return num_run == 0 || num_failed != 0;
}
