// What every network offers, and how one is made from its name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost.h"
#include "models/naming.h"

namespace mhla::models {

// A network's tensors as another package stores them.
struct Exported {
  StateDict tensors;                       // they share the network's memory
  std::vector<std::string> left_out = {};  // our names of what the package has no place for
  std::vector<std::string> notes = {};
  std::string config = {};  // config.json of the package's folders; empty: it has none
};

class Model : public torch::nn::Module {
 public:
  // What forward takes, in this order: "x"; "x", "t", "y"; "ids".
  virtual std::vector<std::string> input_names() const = 0;
  virtual at::Tensor forward(const std::vector<at::Tensor>& inputs) = 0;
  // Random inputs of the size the model was made for, for timing and tests.
  virtual std::vector<at::Tensor> example_inputs(std::int64_t batch) const = 0;
  // The arithmetic of one sample of that size.
  virtual CostSheet cost() const = 0;
  // Where checkpoints of other sizes are moved to this model's: `stored` in the shape of the
  // parameter or buffer `name`, or undefined where nothing says how. `how` is for the report.
  virtual at::Tensor fit(const std::string& name, const at::Tensor& stored, std::string& how) const;

  // The tensors of another package's checkpoint under this model's names, joined and split where
  // needed: the package is told by its names. `notes` says what was done.
  virtual StateDict adopt(StateDict tensors, std::vector<std::string>& notes) const;
  // The reverse, for one of packages(). Throws where the package's network computes something else
  // or lacks tensors, unless `partial`.
  Exported export_as(const std::string& package, bool partial = false) const;
  // "upstream", whose names the network has itself, and those that namings() lists.
  std::vector<std::string> packages() const;

  // Parameters and buffers under their names.
  StateDict state() const;

  // What a checkpoint need not hold: tensors that are computed.
  virtual bool may_lack(const std::string& name) const;

  // Brings mixing matrices back into their range; to be called after each update of the weights.
  void constrain();

  // The name it was made by, its family, and every option that was given or implied.
  std::string name, family, options;

 protected:
  // How other packages store it.
  virtual std::vector<Naming> namings() const { return {}; }
  // Throws unless as many inputs came as input_names() has.
  void check_inputs(const std::vector<at::Tensor>& inputs) const;
};

// What a family's factory gets: options of the network, and those of its attention layers.
struct Request {
  std::string name;       // "dit-s/2"
  std::string options;    // "dim=384 depth=12 attention=mhla"
  std::string attention;  // "preset=paper lepe=3": given as attention.preset=paper
};

using ModelFactory = std::function<std::shared_ptr<Model>(const Request& request)>;

// At namespace scope of the family's file: its sizes are `{"deit-t", "dim=192 heads=3"}`.
struct ModelFamily {
  struct Size {
    const char* name;
    const char* options;
  };
  ModelFamily(std::string family, std::vector<Size> sizes, ModelFactory factory);
};

std::vector<std::string> model_names();

struct CreateOptions {
  c10::Device device = c10::kCPU;  // meta: shapes without memory
};

// options: `attention=mhla image_size=512 attention.preset=paper`. Unknown names, options and
// values are errors that name the nearest known one.
std::shared_ptr<Model> create_model(const std::string& name, std::string_view options,
                                    const CreateOptions& create = {});

std::int64_t count_parameters(const torch::nn::Module& module);

}  // namespace mhla::models
