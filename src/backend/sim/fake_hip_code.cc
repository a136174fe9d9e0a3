#include "backend/sim/fake_hip_code.h"

#include <cxxabi.h>
#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/check.h"

namespace tendon::sim {
namespace {

template <class T>
T read_at(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// A number in msgpack as the notes have it; 0 for anything else.
unsigned packed_number(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text.at(i))); };
  if (byte(0) < 0x80) return byte(0);
  if (byte(0) == 0xcc) return byte(1);
  if (byte(0) == 0xcd) return byte(1) << 8 | byte(2);
  return 0;
}
// A string in msgpack.
std::string_view packed_text(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text.at(i))); };
  if (byte(0) >= 0xa0 && byte(0) < 0xc0) return text.substr(1, byte(0) - 0xa0);
  if (byte(0) == 0xd9) return text.substr(2, byte(1));
  if (byte(0) == 0xda) return text.substr(3, byte(1) << 8 | byte(2));
  return {};
}

// The notes name each kernel's limit before its symbol: keys are sorted.
void read_limits(std::string_view notes, CodeObject& code) {
  constexpr std::string_view kLimit = ".max_flat_workgroup_size";
  constexpr std::string_view kSymbol = ".symbol";
  for (size_t at = notes.find(kLimit); at != std::string_view::npos; at = notes.find(kLimit, at)) {
    at += kLimit.size();
    const unsigned threads = packed_number(notes.substr(at));
    const size_t symbol = notes.find(kSymbol, at);
    TENDON_CHECK(symbol != std::string_view::npos, "a kernel's notes have no symbol");
    std::string name(packed_text(notes.substr(symbol + kSymbol.size())));
    if (name.ends_with(".kd")) name.resize(name.size() - 3);
    if (const auto found = code.kernels.find(name); found != code.kernels.end()) found->second.most_threads = threads;
  }
}

}  // namespace

CodeObject read_code_object(const void* image) {
  const auto* const bytes = static_cast<const char*>(image);
  const auto header = read_at<Elf64_Ehdr>(bytes);
  constexpr unsigned kAmdGpu = 224;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kAmdGpu)
    throw_bad_input("the image is no code object for AMD cards");
  CodeObject code;
  const unsigned machine = header.e_flags & 0xffU;
  code.architecture = machine == 0x4c ? 942 : machine == 0x4f ? 950 : 0;

  const auto section = [&](size_t i) { return read_at<Elf64_Shdr>(bytes + header.e_shoff + i * sizeof(Elf64_Shdr)); };
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr symbols = section(i);
    if (symbols.sh_type != SHT_DYNSYM) continue;
    const char* const names = bytes + section(symbols.sh_link).sh_offset;
    for (size_t at = 0; at < symbols.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(bytes + symbols.sh_offset + at);
      const std::string name = names + symbol.st_name;
      if (!name.ends_with(".kd")) continue;
      // The kernel descriptor: bytes of shared memory, then of scratch memory.
      const Elf64_Shdr home = section(symbol.st_shndx);
      const char* const descriptor = bytes + home.sh_offset + (symbol.st_value - home.sh_addr);
      code.kernels[name.substr(0, name.size() - 3)] = {.static_shared_bytes = read_at<uint32_t>(descriptor),
                                                       .scratch_bytes = read_at<uint32_t>(descriptor + 4)};
    }
  }
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr notes = section(i);
    if (notes.sh_type == SHT_NOTE) read_limits({bytes + notes.sh_offset, notes.sh_size}, code);
  }
  return code;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? text.get() : name;
}

}  // namespace tendon::sim
