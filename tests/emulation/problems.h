// Small problems that between them reach every kernel of an implementation.
#pragma once

#include <string>
#include <vector>

std::vector<std::string> problems(const std::string& implementation);
