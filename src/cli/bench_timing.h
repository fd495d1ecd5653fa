// Medians of interleaved runs.
#pragma once

#include <functional>
#include <vector>

namespace mhla::cli {

// Milliseconds of one call now.
double time_once(const std::function<void()>& call);

// The median of each call, in milliseconds. Each is warmed up, then they take turns, so that a
// change of the machine's speed meets all of them alike. `seconds`: how long each is measured.
std::vector<double> race(const std::vector<std::function<void()>>& calls, double seconds);

// Lets the threads of the contender before come to rest.
void pause_between();

double median(std::vector<double> values);

}  // namespace mhla::cli
