/* The operator from C: opaque handles, status codes, no exceptions.
 *
 * Every function returns MHLA_OK or a status; mhla_last_error() then says what was wrong, on the
 * calling thread. Handles are freed by their own destroy function, which accepts NULL. */
#ifndef MHLA_C_API_H_
#define MHLA_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MHLA_BUILDING_SHARED) && defined(__GNUC__)
#define MHLA_C_API __attribute__((visibility("default")))
#else
#define MHLA_C_API
#endif

typedef enum {
  MHLA_OK = 0,
  MHLA_INVALID_ARGUMENT = 1,
  MHLA_UNSUPPORTED = 2,
  MHLA_CORRUPT_DATA = 3,
  MHLA_IO = 4,
  MHLA_DEVICE = 5,
  MHLA_INTERNAL = 6
} mhla_status;

typedef enum { MHLA_F32 = 0, MHLA_F64 = 1, MHLA_BF16 = 2, MHLA_F16 = 3 } mhla_dtype;
typedef enum { MHLA_CPU = 0, MHLA_CUDA = 1 } mhla_device_kind;

/* A strided tensor; strides count elements. rank 0 means "not given". */
typedef struct {
  void* data;
  int32_t dtype;       /* mhla_dtype */
  int32_t device_kind; /* mhla_device_kind */
  int32_t device_index;
  int32_t rank;
  int64_t shape[4];
  int64_t strides[4];
} mhla_tensor;

typedef struct mhla_problem mhla_problem;
typedef struct mhla_plan mhla_plan;
typedef struct mhla_mixing mhla_mixing;
typedef struct mhla_state mhla_state;

typedef struct {
  mhla_tensor q, k, v, mixing, q_den, k_den;
} mhla_forward_inputs;

typedef struct {
  mhla_tensor q, k, v, mixing, o, d_o, q_den, k_den;
} mhla_backward_inputs;

typedef struct {
  mhla_tensor d_q, d_k, d_v, d_mixing, d_q_den, d_k_den;
} mhla_gradients;

MHLA_C_API const char* mhla_version(void);
MHLA_C_API const char* mhla_last_error(void); /* "" when the last call on this thread succeeded */

/* text: what `mhla explain` prints as the problem, e.g.
 * "grid=32x32 block=8x8 batch=2 heads=6 dk=64 dv=64 dtype=bf16 device=cuda:0". */
MHLA_C_API mhla_status mhla_problem_create(const char* text, mhla_problem** problem);
MHLA_C_API const char* mhla_problem_text(const mhla_problem* problem);
MHLA_C_API void mhla_problem_destroy(mhla_problem* problem);

/* implementation: a name to force, or NULL for the planner's choice. threads: 0 for all. */
MHLA_C_API mhla_status mhla_plan_create(const mhla_problem* problem, const char* implementation,
                                        int threads, mhla_plan** plan);
MHLA_C_API const char* mhla_plan_implementation(const mhla_plan* plan);
MHLA_C_API const char* mhla_plan_explain(const mhla_plan* plan);
MHLA_C_API size_t mhla_plan_forward_workspace(const mhla_plan* plan);
MHLA_C_API size_t mhla_plan_backward_workspace(const mhla_plan* plan);
MHLA_C_API void mhla_plan_destroy(mhla_plan* plan);

/* workspace: on the problem's device, of at least the plan's size; NULL where that is 0.
 * stream: a cudaStream_t, or NULL. */
#define MHLA_WORKSPACE_ALIGNMENT 256 /* bytes */
MHLA_C_API mhla_status mhla_forward(const mhla_plan* plan, const mhla_forward_inputs* inputs,
                                    const mhla_tensor* o, void* workspace, size_t workspace_bytes,
                                    void* stream);
MHLA_C_API mhla_status mhla_backward(const mhla_plan* plan, const mhla_backward_inputs* inputs,
                                     const mhla_gradients* gradients, void* workspace,
                                     size_t workspace_bytes, void* stream);

/* how: "locality", "uniform", "causal_uniform", "linear", "cos", "exp", "gaussian", "local". */
MHLA_C_API mhla_status mhla_mixing_create(const mhla_problem* problem, const char* how,
                                          mhla_mixing** mixing);
MHLA_C_API mhla_status mhla_mixing_from(const float* weights, int64_t heads, int64_t rows,
                                        int64_t cols, mhla_mixing** mixing);
MHLA_C_API mhla_tensor mhla_mixing_view(const mhla_mixing* mixing);
MHLA_C_API void mhla_mixing_destroy(mhla_mixing* mixing);

MHLA_C_API mhla_status mhla_state_create(const mhla_problem* problem, const mhla_mixing* mixing,
                                         mhla_state** state);
/* inputs->mixing stays empty: a state keeps the weights it was created with.
 * stream: a cudaStream_t, or NULL; the work is only put there. */
MHLA_C_API mhla_status mhla_state_prefill(mhla_state* state, const mhla_forward_inputs* inputs,
                                          const mhla_tensor* o, void* stream);
MHLA_C_API mhla_status mhla_state_step(mhla_state* state, const mhla_forward_inputs* inputs,
                                       const mhla_tensor* o, void* stream);
MHLA_C_API mhla_status mhla_state_fork(const mhla_state* state, mhla_state** branch);
MHLA_C_API mhla_status mhla_state_rewind(mhla_state* state, int64_t tokens);
MHLA_C_API int64_t mhla_state_tokens(const mhla_state* state);
MHLA_C_API size_t mhla_state_bytes(const mhla_state* state);
MHLA_C_API mhla_status mhla_state_save(const mhla_state* state, const char* path);
MHLA_C_API mhla_status mhla_state_load(const char* path, mhla_state** state);
MHLA_C_API void mhla_state_destroy(mhla_state* state);

#ifdef __cplusplus
}
#endif

#endif /* MHLA_C_API_H_ */
