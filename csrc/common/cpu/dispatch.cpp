// Chooses the CPU kernels of the best instruction set that this CPU has. PAGEDATTN_CPU_ISA forces
// one by name.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pagedattn {
namespace {

struct InstructionSet {
  const char* name;
  const KernelTable* table;
  bool (*supported)();
  bool amx = false;
};

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("fma");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

// Linux saves AMX's registers only for a process that has asked, for all of its threads.
bool has_amx() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTileAndBf16 = 1u << 24 | 1u << 22;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kTileAndBf16) == kTileAndBf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// From best to least.
const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512_amx", &avx512_bf16::kernel_table, [] { return has_avx512_bf16() && has_amx(); }, true},
    {"avx512_bf16", &avx512_bf16::kernel_table, has_avx512_bf16},
    {"avx512", &avx512::kernel_table, has_avx512},
    {"avx2", &avx2::kernel_table,
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
     }},
#endif
    {"generic", &generic::kernel_table, [] { return true; }},
};

const InstructionSet& choose() {
  const char* const forced = std::getenv("PAGEDATTN_CPU_ISA");
  if (forced == nullptr || *forced == '\0') {
    for (const InstructionSet& set : kInstructionSets) {
      if (set.supported()) return set;
    }
  }
  std::string names;
  for (const InstructionSet& set : kInstructionSets) {
    if (std::string(set.name) == forced) {
      if (set.supported()) return set;
      throw std::runtime_error("PAGEDATTN_CPU_ISA=" + std::string(forced) +
                               ": this CPU does not have that instruction set");
    }
    names += names.empty() ? set.name : std::string(", ") + set.name;
  }
  throw std::runtime_error("PAGEDATTN_CPU_ISA=" + std::string(forced) +
                           ": unknown instruction set, want one of " + names);
}

const InstructionSet& chosen() {
  static const InstructionSet& set = choose();
  return set;
}

}  // namespace

const KernelTable& cpu_kernels() { return *chosen().table; }

bool cpu_uses_amx() { return chosen().amx; }

const char* cpu_isa_name() { return chosen().name; }

}  // namespace pagedattn
