// EXPECT(condition): prints and counts a failure. main returns whether there was one.
#pragma once

#include <cstdio>

namespace pagedattn::test {

inline int num_failures = 0;

inline void expect(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  ++num_failures;
  std::printf("%s:%d: expected %s\n", file, line, text);
}

}  // namespace pagedattn::test

#define EXPECT(condition) ::pagedattn::test::expect((condition), #condition, __FILE__, __LINE__)

#define EXPECT_THROWS(expression, Error)                                                    \
  do {                                                                                      \
    bool caught = false;                                                                    \
    try {                                                                                   \
      (void)(expression);                                                                   \
    } catch (const Error&) {                                                                \
      caught = true;                                                                        \
    }                                                                                       \
    ::pagedattn::test::expect(caught, #expression " to throw " #Error, __FILE__, __LINE__); \
  } while (false)
