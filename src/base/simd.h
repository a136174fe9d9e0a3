// One build runs well on any x86-64: hot loops are compiled for several instruction sets and chosen at load time.
#pragma once

// By levels of the architecture: GCC takes the name of a processor ("arch=haswell") for that processor alone.
// Put before a function whose loops the compiler can vectorise. Sanitizers and other compilers get the plain function.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TENDON_SANITIZED)
#define TENDON_SIMD_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TENDON_SIMD_CLONES
#endif
