// Small problems that between them reach every kernel of an implementation.
#pragma once

#include <string>
#include <vector>

// few: those that CI has time for.
std::vector<std::string> problems(const std::string& implementation, bool few);
