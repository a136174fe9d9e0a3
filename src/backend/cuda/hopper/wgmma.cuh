// wgmma: asynchronous products of a warpgroup, 64 × (8 · groups) × 16, sums in registers; the second operand lies in
// shared memory, the first there or in registers.
#pragma once

#include <cstdint>

#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::hopper {

// Rows of 128 bytes (64 bf16 along K) that TMA wrote with 128-byte swizzle; eight rows are 1024 bytes, to which the
// matrix is aligned. Steps of 16 along K add kDescriptorStep.
constexpr uint64_t kDescriptorStep = 2;
TENDON_DEVICE uint64_t swizzled_rows(uint32_t shared) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16;
  return kLayout | (shared & 0x3ffff) >> 4;
}

// The same for rows of 32 bytes (16 bf16, one step) with 32-byte swizzle; aligned to 256 bytes.
TENDON_DEVICE uint64_t narrow_rows(uint32_t shared) {
  constexpr uint64_t kLayout = uint64_t{3} << 62 | uint64_t{256 >> 4} << 32 | uint64_t{1} << 16;
  return kLayout | (shared & 0x3ffff) >> 4;
}

// A second operand whose rows run along K, as attention's values do: blocks of 64 columns, each of them rows of 128
// bytes with 128-byte swizzle; from one block to the next so many bytes. 16 rows of K add kColumnStep.
constexpr uint64_t kColumnStep = 16 * 128 >> 4;
TENDON_DEVICE uint64_t swizzled_columns(uint32_t shared, uint32_t block_bytes) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
  return kLayout | uint64_t{block_bytes >> 4} << 16 | (shared & 0x3ffff) >> 4;
}
// The same for one block of 16 columns: rows of 32 bytes with 32-byte swizzle.
constexpr uint64_t kNarrowColumnStep = 16 * 32 >> 4;
TENDON_DEVICE uint64_t narrow_columns(uint32_t shared) {
  constexpr uint64_t kLayout = uint64_t{3} << 62 | uint64_t{256 >> 4} << 32 | uint64_t{1} << 16;
  return kLayout | (shared & 0x3ffff) >> 4;
}

// Before the first product that reads registers or memory which ordinary instructions wrote.
TENDON_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TENDON_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kLeft of the committed groups are running.
template <int kLeft>
TENDON_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// Keeps the compiler from moving sums across a wait.
template <int kCount>
TENDON_DEVICE void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kCount>
TENDON_DEVICE void hold(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Operands in registers that a running product may still read.
template <int kCount>
TENDON_DEVICE void hold(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// d = a · bᵀ + (add ? d : 0) for one step of 16.  a (64, K), b (8 · kGroups, K); d[4g + 2h + i] of a thread is the sum
// of row 16 · (warp % 4) + lane / 4 + 8h of a and row 8g + 2 · (lane % 4) + i of b.
template <int kGroups>
struct Wgmma;

// clang-format off
#define TENDON_D1 "%0,%1,%2,%3"
#define TENDON_FLOAT(x) "+f"(x)
#define TENDON_INT(x) "+r"(x)
#define TENDON_F1(c) c(d[0]),c(d[1]),c(d[2]),c(d[3])
#define TENDON_D2 TENDON_D1 ",%4,%5,%6,%7"
#define TENDON_F2(c) TENDON_F1(c),c(d[4]),c(d[5]),c(d[6]),c(d[7])
#define TENDON_D3 TENDON_D2 ",%8,%9,%10,%11"
#define TENDON_F3(c) TENDON_F2(c),c(d[8]),c(d[9]),c(d[10]),c(d[11])
#define TENDON_D4 TENDON_D3 ",%12,%13,%14,%15"
#define TENDON_F4(c) TENDON_F3(c),c(d[12]),c(d[13]),c(d[14]),c(d[15])
#define TENDON_D5 TENDON_D4 ",%16,%17,%18,%19"
#define TENDON_F5(c) TENDON_F4(c),c(d[16]),c(d[17]),c(d[18]),c(d[19])
#define TENDON_D6 TENDON_D5 ",%20,%21,%22,%23"
#define TENDON_F6(c) TENDON_F5(c),c(d[20]),c(d[21]),c(d[22]),c(d[23])
#define TENDON_D7 TENDON_D6 ",%24,%25,%26,%27"
#define TENDON_F7(c) TENDON_F6(c),c(d[24]),c(d[25]),c(d[26]),c(d[27])
#define TENDON_D8 TENDON_D7 ",%28,%29,%30,%31"
#define TENDON_F8(c) TENDON_F7(c),c(d[28]),c(d[29]),c(d[30]),c(d[31])
#define TENDON_D9 TENDON_D8 ",%32,%33,%34,%35"
#define TENDON_F9(c) TENDON_F8(c),c(d[32]),c(d[33]),c(d[34]),c(d[35])
#define TENDON_D10 TENDON_D9 ",%36,%37,%38,%39"
#define TENDON_F10(c) TENDON_F9(c),c(d[36]),c(d[37]),c(d[38]),c(d[39])
#define TENDON_D11 TENDON_D10 ",%40,%41,%42,%43"
#define TENDON_F11(c) TENDON_F10(c),c(d[40]),c(d[41]),c(d[42]),c(d[43])
#define TENDON_D12 TENDON_D11 ",%44,%45,%46,%47"
#define TENDON_F12(c) TENDON_F11(c),c(d[44]),c(d[45]),c(d[46]),c(d[47])
#define TENDON_D13 TENDON_D12 ",%48,%49,%50,%51"
#define TENDON_F13(c) TENDON_F12(c),c(d[48]),c(d[49]),c(d[50]),c(d[51])
#define TENDON_D14 TENDON_D13 ",%52,%53,%54,%55"
#define TENDON_F14(c) TENDON_F13(c),c(d[52]),c(d[53]),c(d[54]),c(d[55])
#define TENDON_D15 TENDON_D14 ",%56,%57,%58,%59"
#define TENDON_F15(c) TENDON_F14(c),c(d[56]),c(d[57]),c(d[58]),c(d[59])
#define TENDON_D16 TENDON_D15 ",%60,%61,%62,%63"
#define TENDON_F16(c) TENDON_F15(c),c(d[60]),c(d[61]),c(d[62]),c(d[63])
#define TENDON_D17 TENDON_D16 ",%64,%65,%66,%67"
#define TENDON_F17(c) TENDON_F16(c),c(d[64]),c(d[65]),c(d[66]),c(d[67])
#define TENDON_D18 TENDON_D17 ",%68,%69,%70,%71"
#define TENDON_F18(c) TENDON_F17(c),c(d[68]),c(d[69]),c(d[70]),c(d[71])
#define TENDON_D19 TENDON_D18 ",%72,%73,%74,%75"
#define TENDON_F19(c) TENDON_F18(c),c(d[72]),c(d[73]),c(d[74]),c(d[75])
#define TENDON_D20 TENDON_D19 ",%76,%77,%78,%79"
#define TENDON_F20(c) TENDON_F19(c),c(d[76]),c(d[77]),c(d[78]),c(d[79])
#define TENDON_D21 TENDON_D20 ",%80,%81,%82,%83"
#define TENDON_F21(c) TENDON_F20(c),c(d[80]),c(d[81]),c(d[82]),c(d[83])
#define TENDON_D22 TENDON_D21 ",%84,%85,%86,%87"
#define TENDON_F22(c) TENDON_F21(c),c(d[84]),c(d[85]),c(d[86]),c(d[87])
#define TENDON_D23 TENDON_D22 ",%88,%89,%90,%91"
#define TENDON_F23(c) TENDON_F22(c),c(d[88]),c(d[89]),c(d[90]),c(d[91])
#define TENDON_D24 TENDON_D23 ",%92,%93,%94,%95"
#define TENDON_F24(c) TENDON_F23(c),c(d[92]),c(d[93]),c(d[94]),c(d[95])
#define TENDON_D25 TENDON_D24 ",%96,%97,%98,%99"
#define TENDON_F25(c) TENDON_F24(c),c(d[96]),c(d[97]),c(d[98]),c(d[99])
#define TENDON_D26 TENDON_D25 ",%100,%101,%102,%103"
#define TENDON_F26(c) TENDON_F25(c),c(d[100]),c(d[101]),c(d[102]),c(d[103])
#define TENDON_D27 TENDON_D26 ",%104,%105,%106,%107"
#define TENDON_F27(c) TENDON_F26(c),c(d[104]),c(d[105]),c(d[106]),c(d[107])
#define TENDON_D28 TENDON_D27 ",%108,%109,%110,%111"
#define TENDON_F28(c) TENDON_F27(c),c(d[108]),c(d[109]),c(d[110]),c(d[111])
#define TENDON_D29 TENDON_D28 ",%112,%113,%114,%115"
#define TENDON_F29(c) TENDON_F28(c),c(d[112]),c(d[113]),c(d[114]),c(d[115])
#define TENDON_D30 TENDON_D29 ",%116,%117,%118,%119"
#define TENDON_F30(c) TENDON_F29(c),c(d[116]),c(d[117]),c(d[118]),c(d[119])
#define TENDON_D31 TENDON_D30 ",%120,%121,%122,%123"
#define TENDON_F31(c) TENDON_F30(c),c(d[120]),c(d[121]),c(d[122]),c(d[123])
#define TENDON_D32 TENDON_D31 ",%124,%125,%126,%127"
#define TENDON_F32(c) TENDON_F31(c),c(d[124]),c(d[125]),c(d[126]),c(d[127])
#define TENDON_WGMMA_OF(name, sum, held, types, flags, groups, n, a_, b_, p_)                                 \
  template <> struct name<groups> {                                                                          \
    static TENDON_DEVICE void run(sum (&d)[4 * groups], uint64_t a, uint64_t b, int add) {                    \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " p_ ", 0;"                                                 \
                   "wgmma.mma_async.sync.aligned.m64n" n types " {" TENDON_D##groups "}, " a_ ", " b_ ", p" flags ";}" \
                   : TENDON_F##groups(held) : "l"(a), "l"(b), "r"(add));                                      \
    }                                                                                                         \
  };
#define TENDON_WGMMA(...) TENDON_WGMMA_OF(Wgmma, float, TENDON_FLOAT, "k16.f32.bf16.bf16", ", 1, 1, 0, 0", __VA_ARGS__)
TENDON_WGMMA(1, "8", "%4", "%5", "%6")
TENDON_WGMMA(2, "16", "%8", "%9", "%10")
TENDON_WGMMA(3, "24", "%12", "%13", "%14")
TENDON_WGMMA(4, "32", "%16", "%17", "%18")
TENDON_WGMMA(5, "40", "%20", "%21", "%22")
TENDON_WGMMA(6, "48", "%24", "%25", "%26")
TENDON_WGMMA(7, "56", "%28", "%29", "%30")
TENDON_WGMMA(8, "64", "%32", "%33", "%34")
TENDON_WGMMA(9, "72", "%36", "%37", "%38")
TENDON_WGMMA(10, "80", "%40", "%41", "%42")
TENDON_WGMMA(11, "88", "%44", "%45", "%46")
TENDON_WGMMA(12, "96", "%48", "%49", "%50")
TENDON_WGMMA(13, "104", "%52", "%53", "%54")
TENDON_WGMMA(14, "112", "%56", "%57", "%58")
TENDON_WGMMA(15, "120", "%60", "%61", "%62")
TENDON_WGMMA(16, "128", "%64", "%65", "%66")
TENDON_WGMMA(17, "136", "%68", "%69", "%70")
TENDON_WGMMA(18, "144", "%72", "%73", "%74")
TENDON_WGMMA(19, "152", "%76", "%77", "%78")
TENDON_WGMMA(20, "160", "%80", "%81", "%82")
TENDON_WGMMA(21, "168", "%84", "%85", "%86")
TENDON_WGMMA(22, "176", "%88", "%89", "%90")
TENDON_WGMMA(23, "184", "%92", "%93", "%94")
TENDON_WGMMA(24, "192", "%96", "%97", "%98")
TENDON_WGMMA(25, "200", "%100", "%101", "%102")
TENDON_WGMMA(26, "208", "%104", "%105", "%106")
TENDON_WGMMA(27, "216", "%108", "%109", "%110")
TENDON_WGMMA(28, "224", "%112", "%113", "%114")
TENDON_WGMMA(29, "232", "%116", "%117", "%118")
TENDON_WGMMA(30, "240", "%120", "%121", "%122")
TENDON_WGMMA(31, "248", "%124", "%125", "%126")
TENDON_WGMMA(32, "256", "%128", "%129", "%130")
#undef TENDON_WGMMA

// The same for codes, a step of 32 bytes. Of i8: sums of whole numbers, for an even number of groups. Of e4m3: sums in
// f32, of which the card keeps some 13 bits behind the leading one.
template <int kGroups>
struct WgmmaI8;
template <int kGroups>
struct WgmmaE4m3;
#define TENDON_WGMMA_E4M3(...) TENDON_WGMMA_OF(WgmmaE4m3, float, TENDON_FLOAT, "k32.f32.e4m3.e4m3", ", 1, 1", __VA_ARGS__)
#define TENDON_WGMMA(...)                                                        \
  TENDON_WGMMA_OF(WgmmaI8, int32_t, TENDON_INT, "k32.s32.s8.s8", "", __VA_ARGS__) \
  TENDON_WGMMA_E4M3(__VA_ARGS__)
TENDON_WGMMA(8, "64", "%32", "%33", "%34")
TENDON_WGMMA(12, "96", "%48", "%49", "%50")
TENDON_WGMMA(14, "112", "%56", "%57", "%58")
TENDON_WGMMA(16, "128", "%64", "%65", "%66")
TENDON_WGMMA(18, "144", "%72", "%73", "%74")
TENDON_WGMMA(20, "160", "%80", "%81", "%82")
TENDON_WGMMA(24, "192", "%96", "%97", "%98")
TENDON_WGMMA_E4M3(25, "200", "%100", "%101", "%102")
TENDON_WGMMA(26, "208", "%104", "%105", "%106")
#undef TENDON_WGMMA
#undef TENDON_WGMMA_E4M3

// The same as the first, with a (64, 16) in registers, as the sums of two products of 8 columns lie, in pairs of bf16: a[2c + h] is
// row 16 · (warp % 4) + lane / 4 + 8h, columns 8c + 2 · (lane % 4) + {0, 1}.  b (8 · kGroups, 16), or, with kColumns,
// (16, 8 · kGroups) with rows along K (swizzled_columns, narrow_columns).
template <int kGroups, bool kColumns>
struct WgmmaRegisters;
#define TENDON_WGMMA(groups, n, columns, a_, b_, p_)                                                      \
  template <> struct WgmmaRegisters<groups, columns == 1> {                                               \
    static TENDON_DEVICE void run(float (&d)[4 * groups], const uint32_t (&a)[4], uint64_t b, int add) {  \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " p_ ", 0;"                                             \
                   "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" TENDON_D##groups "}, {" a_ \
                   "}, " b_ ", p, 1, 1, " #columns ";}"                                                   \
                   : TENDON_F##groups(TENDON_FLOAT) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));    \
    }                                                                                                     \
  };
TENDON_WGMMA(2, "16", 1, "%8,%9,%10,%11", "%12", "%13")
TENDON_WGMMA(8, "64", 0, "%32,%33,%34,%35", "%36", "%37")
TENDON_WGMMA(8, "64", 1, "%32,%33,%34,%35", "%36", "%37")
TENDON_WGMMA(16, "128", 0, "%64,%65,%66,%67", "%68", "%69")
TENDON_WGMMA(32, "256", 1, "%128,%129,%130,%131", "%132", "%133")
#undef TENDON_WGMMA
// clang-format on

}  // namespace tendon::gpu::hopper
