// Backward pass of one head.
#if defined(MHLA_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_CPU_BACKWARD_INL_H_
#undef MHLA_CPU_BACKWARD_INL_H_
#else
#define MHLA_CPU_BACKWARD_INL_H_
#endif
#include "mhla/cpu/head-inl.h"
#include "mhla/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mhla::cpu {
namespace HWY_NAMESPACE {
template <class T>
void BackwardHeads(const BackwardCall&, Team&) {}
}  // namespace HWY_NAMESPACE
}  // namespace mhla::cpu
HWY_AFTER_NAMESPACE();
#endif
