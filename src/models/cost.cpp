#include "models/cost.h"

#include <algorithm>

namespace mhla::models {

void CostSheet::add(const std::string& part, double macs, double kept) {
  auto found = std::find_if(parts_.begin(), parts_.end(),
                            [&part](const Cost& cost) { return cost.part == part; });
  if (found == parts_.end()) found = parts_.insert(parts_.end(), Cost{.part = part});
  found->macs += macs;
  found->kept += kept;
}

void CostSheet::linear(const std::string& part, double rows, double in, double out) {
  add(part, rows * in * out, rows * in);
}

double CostSheet::macs() const {
  double sum = 0;
  for (const Cost& cost : parts_) sum += cost.macs;
  return sum;
}

double CostSheet::kept() const {
  double sum = 0;
  for (const Cost& cost : parts_) sum += cost.kept;
  return sum;
}

double CostSheet::macs_of(const std::string& part) const {
  for (const Cost& cost : parts_) {
    if (cost.part == part) return cost.macs;
  }
  return 0;
}

}  // namespace mhla::models
