// The source line of a call, taken as a default argument. A line, unlike a return address, stays
// the same when the compiler duplicates code.
#pragma once

namespace simt {

struct Location {
  const char* file = "";
  int line = 0;

  static constexpr Location current(const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Location& other) const {
    return line == other.line && (file == other.file || __builtin_strcmp(file, other.file) == 0);
  }
};

}  // namespace simt
