#include "nn/modules/creation.h"

namespace mhla::nn {
namespace {

thread_local Creation current;

}  // namespace

const Creation& creation() { return current; }

CreateWith::CreateWith(Creation creation) : before_(current) { current = creation; }

CreateWith::~CreateWith() { current = before_; }

}  // namespace mhla::nn
