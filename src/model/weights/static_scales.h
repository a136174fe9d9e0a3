// Static scales: the operands of the products behind attention and GELU become codes by scales that are known before a
// call, one for each column, so that what makes an operand can write its codes. `tendon tune --calibrate` finds how
// large each column becomes on given observations and keeps it in a file beside the checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/weights/weights.h"

namespace tendon {

// The largest magnitudes of operands' columns.
struct OperandMaxima {
  struct Layer {
    std::vector<float> attended, hidden;  // (K) of the product behind attention, and of the one behind GELU
  };
  std::vector<Layer> vision, prefix;  // the prefix's last layer has neither product
  int64_t observations = 0;           // that they were found on
  std::string weights = {};           // weights_mark() of the model that ran
};

// Zeros for every operand of the model.
OperandMaxima no_maxima(const ModelConfig& config);
// "vision.hidden.3": the stage, "vision" or "prefix", the operand, "attended" or "hidden", and the layer.
std::string operand_name(const char* stage, const char* operand, int64_t layer);
// f(operand_name, maxima) for each operand.
void visit_maxima(OperandMaxima& maxima, const std::function<void(const std::string&, std::vector<float>&)>& f);

// Of a model's weights: changes where they are trained further. 16 hexadecimal digits.
std::string weights_mark(const Weights& weights);

// The file beside a checkpoint, which is a directory or a .safetensors file.
std::filesystem::path static_scales_file(const std::string& checkpoint);
// A .safetensors file with one vector operand_name (K) f32 for each operand. Both throw
// Error(kBadInput) naming the file; reading also when a vector is missing, of another length than the model's, or holds
// a number that is negative or not finite.
void write_maxima(const OperandMaxima& maxima, const std::filesystem::path& path);
OperandMaxima read_maxima(const std::filesystem::path& path, const ModelConfig& config);

// An operand's number x[k] becomes the code nearest to x[k] · factors[k]; the weights of its product are multiplied by
// scales[k] = 1 / factors[k] before they become codes themselves.
struct ColumnScales {
  std::vector<float> scales, factors;
};
// A column's scale goes with the root of its largest magnitude: large columns keep to their codes, and the weights get
// the other half of the difference, not all of it (SmoothQuant, arXiv 2211.10438). The largest column uses two thirds
// of the codes; the rest is for larger numbers than were seen.
ColumnScales column_scales(std::span<const float> maxima, DType codes);

}  // namespace tendon
