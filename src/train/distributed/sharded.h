// An optimiser whose state is divided among the processes (ZeRO, stage 1).
#pragma once

#include <memory>
#include <vector>

#include "train/optimizer.h"
#include "train/processes.h"

namespace mhla::train {

// Every parameter is updated by one process, which alone keeps its moments, and sent to the others.
// step() and state() are calls that all processes make; state() is the whole state, as one process
// would have it, so that a run may go on with another number of processes.
std::unique_ptr<Optimizer> make_sharded_optimizer(const OptimizerOptions& options,
                                                  std::vector<Parameter> parameters,
                                                  Processes& processes);

// Who updates what: the largest first, each to whoever has the least so far.
std::vector<int> owners_of(const std::vector<Parameter>& parameters, int world);

}  // namespace mhla::train
