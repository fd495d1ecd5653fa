// Headers of LibTorch that every file here includes; they take longer to read than our files.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>
