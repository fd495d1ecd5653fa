// Running the one-shot operator on a case.
#include "mhla/verify/trial.h"

#include <cstring>

#include "mhla/verify/slab.h"

namespace mhla::verify {

Truth truth_of(const Case& c) {
  Truth truth{.inputs = make_inputs(c), .answer = {}, .naive = {}};
  truth.answer = dense_oracle(c.problem, truth.inputs);
  const DType dtype = c.problem.dtype;
  if (dtype == DType::bf16 || dtype == DType::f16) {
    truth.naive = dense_naive(c.problem, truth.inputs, dtype);
  }
  return truth;
}

namespace {

// The tensors of a case by name, over as many slabs as its strides need.
class Buffers {
 public:
  struct Named {
    std::string name;
    std::int64_t tokens, width;
    const std::vector<double>* values;  // null: an output
  };

  // Neighbours of the same length share a slab when the case asks for fused tensors.
  void add(const Memory& memory, const Case& c, const std::vector<Named>& tensors) {
    for (std::size_t i = 0; i < tensors.size();) {
      std::size_t end = i + 1;
      while (c.gap >= 0 && end < tensors.size() && tensors[end].tokens == tensors[i].tokens) ++end;
      std::vector<std::int64_t> widths;
      for (std::size_t j = i; j < end; ++j) widths.push_back(tensors[j].width);
      slabs_.emplace_back(memory, c.problem.dtype,
                          Slab::Rows{.batch = c.problem.batch,
                                     .tokens = tensors[i].tokens,
                                     .heads = c.problem.heads,
                                     .widths = widths,
                                     .gap = std::max<std::int64_t>(c.gap, 0)});
      for (std::size_t j = i; j < end; ++j) place(tensors[j].name, j - i, tensors[j].values);
      slabs_.back().upload();
      i = end;
    }
  }

  void add_mixing(const Memory& memory, const Case& c, const std::string& name,
                  const DenseInputs& in, bool filled) {
    slabs_.emplace_back(memory, c.mixing_dtype,
                        Slab::Matrix{.heads = c.problem.mixing_per_head ? c.problem.heads : 0,
                                     .rows = in.mixing_rows,
                                     .cols = in.mixing_cols,
                                     .gap = std::max<std::int64_t>(c.gap, 0)});
    place(name, 0, filled ? &in.mixing : nullptr);
    slabs_.back().upload();
  }

  TensorView view(const std::string& name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return slabs_[entry.slab].view(entry.index);
    }
    return {};
  }
  std::vector<double> read(const std::string& name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return slabs_[entry.slab].read(entry.index);
    }
    fail(ErrorCode::internal, "verify", "no tensor ", name);
  }
  void download() {
    for (Slab& slab : slabs_) slab.download();
  }
  bool gaps_are_untouched() const {
    for (const Slab& slab : slabs_) {
      if (!slab.gaps_are_untouched()) return false;
    }
    return true;
  }
  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all;
    for (const Slab& slab : slabs_) all.push_back(slab.bytes());
    return all;
  }

 private:
  struct Entry {
    std::string name;
    std::size_t slab, index;
  };
  void place(const std::string& name, std::size_t index, const std::vector<double>* values) {
    entries_.push_back({name, slabs_.size() - 1, index});
    if (values) slabs_.back().write(index, *values);
  }

  std::vector<Slab> slabs_;
  std::vector<Entry> entries_;
};

Buffers make_inputs_in(const Memory& memory, const Case& c, const DenseInputs& in) {
  const Problem& p = c.problem;
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  Buffers buffers;
  std::vector<Buffers::Named> tensors = {
      {"q", nq, p.dk, &in.q}, {"k", nk, p.dk, &in.k}, {"v", nk, p.dv, &in.v}};
  if (p.separate_denominator) {
    tensors.push_back({"k_den", nk, p.dk, &in.k_den});
    tensors.push_back({"q_den", nq, p.dk, &in.q_den});
  }
  buffers.add(memory, c, tensors);
  buffers.add(memory, c, {{"d_o", nq, p.dv, &in.d_o}});
  buffers.add_mixing(memory, c, "mixing", in, true);
  return buffers;
}

Buffers make_outputs_in(const Memory& memory, const Case& c, const DenseInputs& in) {
  const Problem& p = c.problem;
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  const int skip = c.skipped_gradient;
  Buffers buffers;
  buffers.add(memory, c, {{"o", nq, p.dv, nullptr}});
  std::vector<Buffers::Named> tensors;
  if (skip != 0) tensors.push_back({"d_q", nq, p.dk, nullptr});
  if (skip != 1) tensors.push_back({"d_k", nk, p.dk, nullptr});
  if (skip != 2) tensors.push_back({"d_v", nk, p.dv, nullptr});
  if (p.separate_denominator) {
    tensors.push_back({"d_k_den", nk, p.dk, nullptr});
    tensors.push_back({"d_q_den", nq, p.dk, nullptr});
  }
  buffers.add(memory, c, tensors);
  if (skip != 3) buffers.add_mixing(memory, c, "d_mixing", in, false);
  return buffers;
}

// Poisoned workspace with a guard behind it, so that its content cannot matter and its end holds.
class GuardedWorkspace {
 public:
  GuardedWorkspace(const Memory& memory, std::size_t bytes)
      : memory_(memory), bytes_(bytes), data_(allocate(memory, bytes + kGuard)) {
    const std::vector<unsigned char> poison(bytes + kGuard, 0xff);
    memory.upload(data_.get(), poison.data(), poison.size());
  }
  Workspace get() const { return {data_.get(), bytes_}; }
  bool guard_is_untouched() const {
    std::vector<unsigned char> guard(kGuard);
    memory_.download(guard.data(), static_cast<std::byte*>(data_.get()) + bytes_, kGuard);
    for (const unsigned char byte : guard) {
      if (byte != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  const Memory& memory_;
  std::size_t bytes_;
  Allocation data_;
};

struct Run {
  Buffers outputs;
  bool workspace_kept;
};

Run run_once(const Case& c, const Truth& truth, const Subject& s, const Plan& plan,
             const Buffers& in) {
  const Memory& memory = memory_of(s.device);
  Buffers out = make_outputs_in(memory, c, truth.inputs);
  GuardedWorkspace forward_space(memory, plan.forward_workspace());
  s.forward(plan,
            {.q = in.view("q"),
             .k = in.view("k"),
             .v = in.view("v"),
             .mixing = in.view("mixing"),
             .q_den = in.view("q_den"),
             .k_den = in.view("k_den")},
            {.o = out.view("o")}, forward_space.get());
  GuardedWorkspace backward_space(memory, plan.backward_workspace());
  if (s.backward) {
    s.backward(plan,
               {.q = in.view("q"),
                .k = in.view("k"),
                .v = in.view("v"),
                .mixing = in.view("mixing"),
                .o = out.view("o"),
                .d_o = in.view("d_o"),
                .q_den = in.view("q_den"),
                .k_den = in.view("k_den")},
               {.d_q = out.view("d_q"),
                .d_k = out.view("d_k"),
                .d_v = out.view("d_v"),
                .d_mixing = out.view("d_mixing"),
                .d_q_den = out.view("d_q_den"),
                .d_k_den = out.view("d_k_den")},
               backward_space.get());
  }
  out.download();
  return {std::move(out),
          forward_space.guard_is_untouched() && backward_space.guard_is_untouched()};
}

struct Check {
  const char* name;
  std::vector<double> DenseTensors::* tensor;
};
constexpr Check kChecks[] = {
    {"o", &DenseTensors::o},
    {"d_q", &DenseTensors::d_q},
    {"d_k", &DenseTensors::d_k},
    {"d_v", &DenseTensors::d_v},
    {"d_mixing", &DenseTensors::d_mixing},
    {"d_q_den", &DenseTensors::d_q_den},
    {"d_k_den", &DenseTensors::d_k_den},
};

}  // namespace

Outcome try_case(const Case& c, const Truth& truth, const Subject& subject, const Plan& plan) {
  Buffers in = make_inputs_in(memory_of(subject.device), c, truth.inputs);
  const auto inputs_before = in.bytes();
  const Run first = run_once(c, truth, subject, plan, in);
  const Run second = run_once(c, truth, subject, plan, in);
  in.download();

  Outcome outcome;
  for (const Check& check : kChecks) {
    if (!first.outputs.view(check.name).defined()) continue;
    if (!subject.backward && check.tensor != &DenseTensors::o) continue;
    const bool is_mixing = check.tensor == &DenseTensors::d_mixing;
    const Agreement agreement = compare(
        first.outputs.read(check.name),
        {.value = truth.answer.value.*check.tensor,
         .mass = truth.answer.mass.*check.tensor,
         .naive = truth.naive ? &((*truth.naive).*check.tensor) : nullptr,
         .dtype = c.problem.dtype,
         .stored = is_mixing ? c.mixing_dtype : c.problem.dtype,
         .roundoff = subject.roundoff});
    if (outcome.tensor.empty() || agreement.ratio > outcome.worst.ratio) {
      outcome.worst = agreement;
      outcome.tensor = check.name;
    }
    if (!(agreement.ratio <= 1)) outcome.wrong.push_back(std::string(check.name) + " is off");
  }
  if (in.bytes() != inputs_before) outcome.wrong.push_back("an input was changed");
  if (!first.outputs.gaps_are_untouched()) {
    outcome.wrong.push_back("something outside the outputs was written");
  }
  if (!first.workspace_kept) outcome.wrong.push_back("the workspace was overrun");
  if (first.outputs.bytes() != second.outputs.bytes()) {
    outcome.wrong.push_back("a second run gave other bits");
  }
  return outcome;
}

}  // namespace mhla::verify
