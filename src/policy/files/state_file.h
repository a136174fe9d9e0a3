// Numbers that the user gives on the command line, inline or in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tendon {

// `argument` is a file name or an inline list ("0.1,-0.2,0.3"). Text is a JSON array or numbers separated by commas,
// semicolons or white space; '.' is the decimal point in every locale. The `width` values are in the robot's own units
// (ALOHA: radians). Throws kBadInput: neither file nor list, wrong count, not a number, NaN or infinity (with index).
std::vector<double> parse_state(const std::string& argument, int width);

// The same for token ids: integers 0 <= id < vocab_size, at least one.
std::vector<int32_t> parse_tokens(const std::string& argument, int vocab_size);

// The list in `text`; `name` says in messages where it came from. Throws kBadInput.
std::vector<double> parse_numbers(std::string_view text, std::string_view name);

}  // namespace tendon
