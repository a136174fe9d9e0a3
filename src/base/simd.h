// One build runs well on any x86-64: hot loops are compiled for several instruction sets and chosen at load time.
#pragma once

// Put before a function whose loops the compiler can vectorise. Sanitizers and other compilers get the plain function.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TENDON_SANITIZED)
#define TENDON_SIMD_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define TENDON_SIMD_CLONES
#endif
