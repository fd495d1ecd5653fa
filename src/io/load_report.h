// What happened when tensors of a checkpoint were given to a model by name.
#pragma once

#include <string>
#include <vector>

#include "io/tensor.h"

namespace mhla::io {

struct LoadReport {
  struct Reshaped {
    std::string name;
    Shape stored, wanted;
    std::string how;  // "same elements, other shape", or what the model said it did
  };

  std::string source;                   // the file
  std::vector<std::string> loaded;      // names in the model
  std::vector<std::string> missing;     // the model has it, the file does not
  std::vector<std::string> kept;        // the same, but the model said that it may be
  std::vector<std::string> unexpected;  // the file has it, the model does not
  std::vector<std::string> ignored;     // in the file, left out on purpose
  std::vector<Reshaped> reshaped;       // loaded, after a change of shape
  std::vector<Reshaped> mismatched;     // not loaded: nothing says how to reshape it
  std::vector<std::string> notes;       // conversions and the like

  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  // One line when complete; otherwise a list of each kind, long lists shortened, and for a missing
  // name the unexpected one that resembles it most.
  std::string text() const;
  // Throws ErrorCode::invalid_argument with text() unless complete.
  void require_complete() const;
};

}  // namespace mhla::io
