// Headers of LibTorch that most files here include; they take longer to read than our own.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>
