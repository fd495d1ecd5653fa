/* The C interface, used from plain C: results worked out by hand, every kind of error. */
#define _POSIX_C_SOURCE 200809L

#include "mhla/c_api.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int failures = 0;

#define EXPECT(condition)                                                                       \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      ++failures;                                                                               \
      fprintf(stderr, "%s:%d: failed: %s (last error: '%s')\n", __FILE__, __LINE__, #condition, \
              mhla_last_error());                                                               \
    }                                                                                           \
  } while (0)

#define EXPECT_OK(call) EXPECT((call) == MHLA_OK && mhla_last_error()[0] == '\0')
/* The call fails with this status and a message that contains `part`. */
#define EXPECT_FAILS(call, status, part) \
  EXPECT((call) == (status) && strstr(mhla_last_error(), part) != NULL)

static int near_values(const float* values, const float* expected, int count) {
  for (int i = 0; i < count; ++i) {
    /* A comparison with NaN is false, so poison never passes. */
    if (!(fabsf(values[i] - expected[i]) <= 1e-5f * fabsf(expected[i]))) {
      fprintf(stderr, "value %d: expected %g, got %g\n", i, expected[i], values[i]);
      return 0;
    }
  }
  return 1;
}

static void poison(float* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = NAN;
}

/* [1, tokens, 1, 1] */
static mhla_tensor column(float* data, int64_t tokens) {
  const mhla_tensor tensor = {.data = data,
                              .dtype = MHLA_F32,
                              .device_kind = MHLA_CPU,
                              .rank = 4,
                              .shape = {1, tokens, 1, 1},
                              .strides = {tokens, 1, 1, 1}};
  return tensor;
}

/* Two blocks of two tokens, one head, dk = dv = 1:
 * S = sum of k v per block = {4, 11}, z = sum of k = {3, 7}. */
static float q[] = {1, 2, 3, 4};
static float k[] = {1, 2, 3, 4};
static float v[] = {2, 1, 1, 2};
static const float weights[] = {.75f, .25f, .25f, .75f};
static const char* const kPlain =
    "sequence=4 block=2 dk=1 dv=1 feature_map=identity normalizer=none";

static void* workspace_of(size_t bytes) {
  const size_t unit = MHLA_WORKSPACE_ALIGNMENT;
  return aligned_alloc(unit, (bytes / unit + 1) * unit);
}

static mhla_forward_inputs inputs_with(const mhla_mixing* mixing) {
  mhla_forward_inputs inputs;
  memset(&inputs, 0, sizeof inputs);
  inputs.q = column(q, 4);
  inputs.k = column(k, 4);
  inputs.v = column(v, 4);
  if (mixing != NULL) inputs.mixing = mhla_mixing_view(mixing);
  return inputs;
}

static void run_forward(const char* text, const float* expected) {
  mhla_problem* problem = NULL;
  mhla_plan* plan = NULL;
  mhla_mixing* mixing = NULL;
  float o_data[4];
  poison(o_data, 4);
  EXPECT_OK(mhla_problem_create(text, &problem));
  EXPECT_OK(mhla_plan_create(problem, NULL, 1, &plan));
  EXPECT_OK(mhla_mixing_from(weights, 0, 2, 2, &mixing));
  const size_t bytes = mhla_plan_forward_workspace(plan);
  void* workspace = workspace_of(bytes);
  const mhla_forward_inputs inputs = inputs_with(mixing);
  const mhla_tensor o = column(o_data, 4);
  EXPECT_OK(mhla_forward(plan, &inputs, &o, workspace, bytes, NULL));
  EXPECT(near_values(o_data, expected, 4));
  free(workspace);
  mhla_mixing_destroy(mixing);
  mhla_plan_destroy(plan);
  mhla_problem_destroy(problem);
}

static void forward_gives_the_values_worked_out_by_hand(void) {
  /* Mixed summaries: {.75*4 + .25*11, .25*4 + .75*11} = {5.75, 9.25}; denominators {4, 6}. */
  const float plain[] = {5.75f, 11.5f, 27.75f, 37.f};
  run_forward(kPlain, plain);
  const float exact[] = {1.4375f, 1.4375f, 9.25f / 6, 9.25f / 6};
  run_forward("sequence=4 block=2 dk=1 dv=1 feature_map=identity normalizer=exact", exact);
  const float causal[] = {1.5f, 6.f, 9.75f, 37.f};
  run_forward("sequence=4 block=2 dk=1 dv=1 feature_map=identity normalizer=none mask=causal",
              causal);
}

static void backward_gives_the_values_worked_out_by_hand(void) {
  mhla_problem* problem = NULL;
  mhla_plan* plan = NULL;
  mhla_mixing* mixing = NULL;
  float o[] = {5.75f, 11.5f, 27.75f, 37.f};
  float d_o[] = {1, 1, 1, 1};
  float d_q[4], d_k[4], d_v[4], d_m[4];
  poison(d_q, 4);
  poison(d_k, 4);
  poison(d_v, 4);
  poison(d_m, 4);
  EXPECT_OK(mhla_problem_create(kPlain, &problem));
  EXPECT_OK(mhla_plan_create(problem, "reference", 1, &plan));
  EXPECT(strcmp(mhla_plan_implementation(plan), "reference") == 0);
  EXPECT(strstr(mhla_plan_explain(plan), "reference") != NULL);
  EXPECT_OK(mhla_mixing_from(weights, 0, 2, 2, &mixing));
  mhla_backward_inputs inputs;
  memset(&inputs, 0, sizeof inputs);
  inputs.q = column(q, 4);
  inputs.k = column(k, 4);
  inputs.v = column(v, 4);
  inputs.mixing = mhla_mixing_view(mixing);
  inputs.o = column(o, 4);
  inputs.d_o = column(d_o, 4);
  mhla_gradients gradients;
  memset(&gradients, 0, sizeof gradients);
  gradients.d_q = column(d_q, 4);
  gradients.d_k = column(d_k, 4);
  gradients.d_v = column(d_v, 4);
  gradients.d_mixing = inputs.mixing;
  gradients.d_mixing.data = d_m;
  const size_t bytes = mhla_plan_backward_workspace(plan);
  void* workspace = workspace_of(bytes);
  EXPECT_OK(mhla_backward(plan, &inputs, &gradients, workspace, bytes, NULL));
  /* Gradients of the mixed summaries: sums of q = {3, 7}; of the summaries: {4, 6}. */
  const float expected_q[] = {5.75f, 5.75f, 9.25f, 9.25f};
  const float expected_k[] = {8, 4, 6, 12};
  const float expected_v[] = {4, 8, 18, 24};
  const float expected_m[] = {12, 33, 28, 77};
  EXPECT(near_values(d_q, expected_q, 4));
  EXPECT(near_values(d_k, expected_k, 4));
  EXPECT(near_values(d_v, expected_v, 4));
  EXPECT(near_values(d_m, expected_m, 4));
  EXPECT_FAILS(mhla_backward(NULL, &inputs, &gradients, workspace, bytes, NULL),
               MHLA_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(mhla_backward(plan, NULL, &gradients, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT,
               "inputs is NULL");
  EXPECT_FAILS(mhla_backward(plan, &inputs, NULL, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT,
               "gradients is NULL");
  gradients.d_v.dtype = -1;
  EXPECT_FAILS(mhla_backward(plan, &inputs, &gradients, workspace, bytes, NULL),
               MHLA_INVALID_ARGUMENT, "d_v.dtype: -1");
  free(workspace);
  mhla_mixing_destroy(mixing);
  mhla_plan_destroy(plan);
  mhla_problem_destroy(problem);
}

static void mixing_matrices_have_their_initial_values(void) {
  mhla_problem* problem = NULL;
  mhla_mixing* mixing = NULL;
  EXPECT_OK(mhla_problem_create("grid=4x4 blocks=2x2 heads=3", &problem));
  const char* hows[] = {"locality", "uniform", "causal_uniform", "linear",
                        "cos",      "exp",     "gaussian",       "local"};
  const float corner[] = {.630602f, .25f, 1, .630602f, 0, 0, 1, .25f}; /* 0: not looked at */
  for (int i = 0; i < 8; ++i) {
    EXPECT_OK(mhla_mixing_create(problem, hows[i], &mixing));
    const mhla_tensor view = mhla_mixing_view(mixing);
    EXPECT(view.rank == 2 && view.shape[0] == 4 && view.shape[1] == 4 && view.strides[0] == 4);
    EXPECT(view.dtype == MHLA_F32 && view.device_kind == MHLA_CPU);
    if (corner[i] > 0) EXPECT(near_values(view.data, &corner[i], 1));
    mhla_mixing_destroy(mixing);
  }
  EXPECT_FAILS(mhla_mixing_create(problem, "magic", &mixing), MHLA_INVALID_ARGUMENT, "'magic'");
  EXPECT(mixing == NULL);
  EXPECT_FAILS(mhla_mixing_create(problem, NULL, &mixing), MHLA_INVALID_ARGUMENT, "how is NULL");
  EXPECT_FAILS(mhla_mixing_create(NULL, "local", &mixing), MHLA_INVALID_ARGUMENT, "problem is");
  EXPECT_FAILS(mhla_mixing_create(problem, "local", NULL), MHLA_INVALID_ARGUMENT, "mixing is");
  EXPECT_FAILS(mhla_mixing_from(NULL, 0, 1, 1, &mixing), MHLA_INVALID_ARGUMENT, "weights is");
  EXPECT_FAILS(mhla_mixing_from(weights, 0, 0, 1, &mixing), MHLA_INVALID_ARGUMENT, "0 x 1");
  EXPECT_FAILS(mhla_mixing_from(weights, 0, INT64_MAX, INT64_MAX, &mixing), MHLA_INVALID_ARGUMENT,
               "larger than");
  EXPECT(mhla_mixing_view(NULL).rank == 0);
  EXPECT(strstr(mhla_last_error(), "mixing is NULL") != NULL);
  mhla_problem_destroy(problem);

  EXPECT_OK(mhla_problem_create("grid=4x4 blocks=2x2 heads=3 mixing_per_head=true", &problem));
  EXPECT_OK(mhla_mixing_create(problem, "locality", &mixing));
  EXPECT(mhla_mixing_view(mixing).rank == 3 && mhla_mixing_view(mixing).shape[0] == 3);
  mhla_mixing_destroy(mixing);
  mhla_problem_destroy(problem);

  EXPECT_OK(mhla_problem_create("grid=4x4 blocks=2x2 sequence_k=6 block_k=2", &problem));
  EXPECT_OK(mhla_mixing_create(problem, "uniform", &mixing));
  EXPECT(mhla_mixing_view(mixing).shape[0] == 4 && mhla_mixing_view(mixing).shape[1] == 3);
  mhla_mixing_destroy(mixing);
  EXPECT_FAILS(mhla_mixing_create(problem, "locality", &mixing), MHLA_INVALID_ARGUMENT,
               "cross-attention");
  mhla_problem_destroy(problem);
}

static void problems_and_plans_refuse_what_has_no_meaning(void) {
  mhla_problem* problem = NULL;
  mhla_plan* plan = NULL;
  const char* bad[] = {"",
                       "sequence",
                       "sequence=-4 block=2",
                       "sequence=4 block=0",
                       "sequence=4 block=2 heeds=3",
                       "sequence=4 block=2 mask=sideways",
                       "sequence=99999999999999999999 block=2",
                       "sequence=4 block=2 dk=nan"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    EXPECT_FAILS(mhla_problem_create(bad[i], &problem), MHLA_INVALID_ARGUMENT, "[mhla.");
    EXPECT(problem == NULL);
  }
  EXPECT_FAILS(mhla_problem_create(NULL, &problem), MHLA_INVALID_ARGUMENT, "text is NULL");
  EXPECT_FAILS(mhla_problem_create(kPlain, NULL), MHLA_INVALID_ARGUMENT, "problem is NULL");
  EXPECT(mhla_problem_text(NULL)[0] == '\0' && mhla_last_error()[0] != '\0');

  EXPECT_OK(mhla_problem_create(kPlain, &problem));
  mhla_problem* again = NULL;
  EXPECT_OK(mhla_problem_create(mhla_problem_text(problem), &again));
  EXPECT(strcmp(mhla_problem_text(again), mhla_problem_text(problem)) == 0);
  mhla_problem_destroy(again);

  EXPECT_FAILS(mhla_plan_create(NULL, NULL, 0, &plan), MHLA_INVALID_ARGUMENT, "problem is NULL");
  EXPECT_FAILS(mhla_plan_create(problem, NULL, 0, NULL), MHLA_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(mhla_plan_create(problem, NULL, -1, &plan), MHLA_INVALID_ARGUMENT, "threads");
  EXPECT(mhla_plan_create(problem, "no.such.kernel", 0, &plan) != MHLA_OK);
  EXPECT(plan == NULL && strstr(mhla_last_error(), "no.such.kernel") != NULL);
  EXPECT(mhla_plan_implementation(NULL)[0] == '\0' && mhla_plan_explain(NULL)[0] == '\0');
  EXPECT(mhla_plan_forward_workspace(NULL) == 0 && mhla_plan_backward_workspace(NULL) == 0);
  EXPECT(strstr(mhla_last_error(), "mhla_plan_backward_workspace: plan is NULL") != NULL);
  mhla_problem_destroy(problem);
}

static void forward_refuses_bad_tensors(void) {
  mhla_problem* problem = NULL;
  mhla_plan* plan = NULL;
  mhla_mixing* mixing = NULL;
  float o_data[] = {7, 7, 7, 7};
  EXPECT_OK(mhla_problem_create(kPlain, &problem));
  EXPECT_OK(mhla_plan_create(problem, NULL, 0, &plan));
  EXPECT_OK(mhla_mixing_from(weights, 0, 2, 2, &mixing));
  const size_t bytes = mhla_plan_forward_workspace(plan);
  void* workspace = workspace_of(bytes);
  const mhla_tensor o = column(o_data, 4);
  const mhla_forward_inputs good = inputs_with(mixing);
  mhla_forward_inputs inputs = good;

#define EXPECT_REFUSED(part) \
  EXPECT_FAILS(mhla_forward(plan, &inputs, &o, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT, part)
  inputs.q.rank = 5;
  EXPECT_REFUSED("q.rank: expected 0 to 4, got 5");
  inputs.q.rank = -1;
  EXPECT_REFUSED("q.rank");
  inputs.q.rank = 0; /* not given */
  EXPECT_REFUSED("q: expected shape");
  inputs = good;
  inputs.k.dtype = 4;
  EXPECT_REFUSED("k.dtype: 4 is no mhla_dtype");
  inputs = good;
  inputs.v.device_kind = 2;
  EXPECT_REFUSED("v.device_kind: 2");
  inputs = good;
  inputs.v.device_index = -3;
  EXPECT_REFUSED("v.device_index");
  inputs = good;
  inputs.k.device_kind = MHLA_CUDA;
  EXPECT_REFUSED("k: expected on cpu");
  inputs = good;
  inputs.v.shape[1] = 3;
  EXPECT_REFUSED("v: expected shape [1, 4, 1, 1], got [1, 3, 1, 1]");
  inputs = good;
  inputs.v.shape[1] = -4;
  EXPECT_REFUSED("v:");
  inputs = good;
  inputs.q.data = NULL;
  EXPECT_REFUSED("q: data is null");
  inputs = good;
  inputs.mixing.rank = 0;
  EXPECT_REFUSED("mixing");
  inputs = good;
  inputs.q_den = good.q;
  EXPECT_REFUSED("q_den");
#undef EXPECT_REFUSED

  EXPECT_FAILS(mhla_forward(NULL, &good, &o, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_FAILS(mhla_forward(plan, NULL, &o, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT,
               "inputs is NULL");
  EXPECT_FAILS(mhla_forward(plan, &good, NULL, workspace, bytes, NULL), MHLA_INVALID_ARGUMENT,
               "o is NULL");
  if (bytes > 0) {
    EXPECT_FAILS(mhla_forward(plan, &good, &o, NULL, 0, NULL), MHLA_INVALID_ARGUMENT, "workspace");
  }
  for (int i = 0; i < 4; ++i) EXPECT(o_data[i] == 7); /* refused calls wrote nothing */
  free(workspace);
  mhla_mixing_destroy(mixing);
  mhla_plan_destroy(plan);
  mhla_problem_destroy(problem);
}

/* Feeds tokens first..first+count-1 in one piece and compares the output. */
static void feed(mhla_state* state, int first, int count, const float* expected) {
  float o_data[4];
  poison(o_data, 4);
  mhla_forward_inputs inputs;
  memset(&inputs, 0, sizeof inputs);
  inputs.q = column(q + first, count);
  inputs.k = column(k + first, count);
  inputs.v = column(v + first, count);
  const mhla_tensor o = column(o_data, count);
  EXPECT_OK(count == 1 ? mhla_state_step(state, &inputs, &o, NULL)
                       : mhla_state_prefill(state, &inputs, &o, NULL));
  EXPECT(near_values(o_data, expected + first, count));
}

static void damage(const char* path, long keep, long flip) {
  char buffer[65536];
  FILE* file = fopen(path, "rb");
  const size_t size = file == NULL ? 0 : fread(buffer, 1, sizeof buffer, file);
  EXPECT(size > 0 && size < sizeof buffer);
  if (file != NULL) fclose(file);
  if (flip >= 0) buffer[flip < (long)size ? flip : (long)size - 1] ^= 0x10;
  file = fopen(path, "wb");
  EXPECT(file != NULL);
  if (file == NULL) return;
  EXPECT(fwrite(buffer, 1, keep >= 0 ? (size_t)keep : size, file) > 0);
  fclose(file);
}

static void states_step_fork_rewind_save_and_load(void) {
  const float expected[] = {1.5f, 6.f, 9.75f, 37.f};
  mhla_problem* problem = NULL;
  mhla_mixing* mixing = NULL;
  mhla_state* state = NULL;
  mhla_state* branch = NULL;
  mhla_state* loaded = NULL;
  EXPECT_OK(mhla_problem_create(
      "sequence=4 block=2 dk=1 dv=1 feature_map=identity normalizer=none mask=causal", &problem));
  EXPECT_OK(mhla_mixing_from(weights, 0, 2, 2, &mixing));
  EXPECT_OK(mhla_state_create(problem, mixing, &state));
  mhla_mixing_destroy(mixing); /* the state has a copy */
  EXPECT(mhla_state_tokens(state) == 0);
  feed(state, 0, 3, expected);
  EXPECT(mhla_state_tokens(state) == 3 && mhla_state_bytes(state) > 0);
  EXPECT_OK(mhla_state_fork(state, &branch));
  feed(state, 3, 1, expected);
  EXPECT_OK(mhla_state_rewind(state, 2));
  EXPECT(mhla_state_tokens(state) == 2 && mhla_state_tokens(branch) == 3);
  feed(state, 2, 1, expected);
  feed(branch, 3, 1, expected);
  EXPECT_FAILS(mhla_state_rewind(state, 1), MHLA_INVALID_ARGUMENT, "[mhla.");
  EXPECT_FAILS(mhla_state_rewind(state, -2), MHLA_INVALID_ARGUMENT, "[mhla.");

  char path[] = "/tmp/mhla_c_api_test_XXXXXX";
  const int descriptor = mkstemp(path);
  EXPECT(descriptor >= 0);
  if (descriptor >= 0) close(descriptor);
  EXPECT_OK(mhla_state_save(state, path));
  EXPECT_OK(mhla_state_load(path, &loaded));
  EXPECT(mhla_state_tokens(loaded) == 3);
  feed(loaded, 3, 1, expected);
  mhla_state_destroy(loaded);
  loaded = NULL;
  damage(path, -1, 40);
  EXPECT_FAILS(mhla_state_load(path, &loaded), MHLA_CORRUPT_DATA, "[mhla.");
  EXPECT(loaded == NULL);
  EXPECT_OK(mhla_state_save(state, path));
  damage(path, 20, -1);
  EXPECT_FAILS(mhla_state_load(path, &loaded), MHLA_CORRUPT_DATA, "[mhla.");
  remove(path);
  EXPECT_FAILS(mhla_state_load(path, &loaded), MHLA_IO, path);
  EXPECT_FAILS(mhla_state_save(state, "/no/such/folder/state"), MHLA_IO, "/no/such/folder");

  mhla_forward_inputs inputs;
  float o_data[1];
  const mhla_tensor o = column(o_data, 1);
  memset(&inputs, 0, sizeof inputs);
  EXPECT_FAILS(mhla_state_step(state, &inputs, &o, NULL), MHLA_INVALID_ARGUMENT, "q");
  inputs.mixing = column(q, 1);
  EXPECT_FAILS(mhla_state_step(state, &inputs, &o, NULL), MHLA_INVALID_ARGUMENT, "mixing");
  EXPECT_FAILS(mhla_state_step(NULL, &inputs, &o, NULL), MHLA_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(mhla_state_step(state, NULL, &o, NULL), MHLA_INVALID_ARGUMENT, "inputs is NULL");
  EXPECT_FAILS(mhla_state_prefill(NULL, &inputs, &o, NULL), MHLA_INVALID_ARGUMENT, "state is NULL");
  inputs.mixing.rank = 0;
  EXPECT_FAILS(mhla_state_prefill(state, &inputs, NULL, NULL), MHLA_INVALID_ARGUMENT, "o is NULL");
  EXPECT(mhla_state_tokens(state) == 3);
  EXPECT_FAILS(mhla_state_create(NULL, NULL, &loaded), MHLA_INVALID_ARGUMENT, "problem is NULL");
  EXPECT_FAILS(mhla_state_create(problem, NULL, &loaded), MHLA_INVALID_ARGUMENT, "mixing is NULL");
  EXPECT_FAILS(mhla_state_fork(NULL, &loaded), MHLA_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(mhla_state_fork(state, NULL), MHLA_INVALID_ARGUMENT, "branch is NULL");
  EXPECT_FAILS(mhla_state_rewind(NULL, 0), MHLA_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(mhla_state_save(NULL, path), MHLA_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(mhla_state_save(state, NULL), MHLA_INVALID_ARGUMENT, "path is NULL");
  EXPECT_FAILS(mhla_state_load(NULL, &loaded), MHLA_INVALID_ARGUMENT, "path is NULL");
  EXPECT_FAILS(mhla_state_load(path, NULL), MHLA_INVALID_ARGUMENT, "state is NULL");
  EXPECT(mhla_state_tokens(NULL) == 0 && mhla_state_bytes(NULL) == 0);
  mhla_state_destroy(branch);
  mhla_state_destroy(state);
  mhla_problem_destroy(problem);
}

static void* last_error_of_a_new_thread(void* result) {
  *(int*)result = (int)strlen(mhla_last_error());
  return NULL;
}

static void errors_belong_to_their_thread(void) {
  mhla_problem* problem = NULL;
  pthread_t thread;
  int length = -1;
  EXPECT(mhla_problem_create(NULL, &problem) == MHLA_INVALID_ARGUMENT);
  EXPECT(pthread_create(&thread, NULL, last_error_of_a_new_thread, &length) == 0);
  pthread_join(thread, NULL);
  EXPECT(length == 0 && mhla_last_error()[0] != '\0');
  EXPECT_OK(mhla_problem_create(kPlain, &problem)); /* success clears the message */
  mhla_problem_destroy(problem);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define UNDER_ASAN
#endif

/* The address sanitizer needs terabytes of address space and aborts where malloc would fail. */
#ifndef UNDER_ASAN
static void running_out_of_memory_is_a_status(void) {
  mhla_problem* problem = NULL;
  mhla_mixing* mixing = NULL;
  struct rlimit before, little;
  EXPECT_OK(mhla_problem_create("sequence=46340 block=1", &problem)); /* 8 GiB of weights */
  EXPECT(getrlimit(RLIMIT_AS, &before) == 0);
  little = before;
  little.rlim_cur = (rlim_t)1 << 30;
  EXPECT(setrlimit(RLIMIT_AS, &little) == 0);
  EXPECT_FAILS(mhla_mixing_create(problem, "uniform", &mixing), MHLA_INTERNAL, "out of memory");
  EXPECT(mixing == NULL);
  EXPECT(setrlimit(RLIMIT_AS, &before) == 0);
  mhla_problem_destroy(problem);
}
#endif

int main(void) {
  EXPECT(strlen(mhla_version()) >= 5);
  mhla_problem_destroy(NULL);
  mhla_plan_destroy(NULL);
  mhla_mixing_destroy(NULL);
  mhla_state_destroy(NULL);
  forward_gives_the_values_worked_out_by_hand();
  backward_gives_the_values_worked_out_by_hand();
  mixing_matrices_have_their_initial_values();
  problems_and_plans_refuse_what_has_no_meaning();
  forward_refuses_bad_tensors();
  states_step_fork_rewind_save_and_load();
  errors_belong_to_their_thread();
#ifndef UNDER_ASAN
  running_out_of_memory_is_a_status();
#endif
  if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures > 0;
}
