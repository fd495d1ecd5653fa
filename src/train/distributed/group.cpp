// The environment of a worker, and the store at which all meet.
#include "train/distributed/group.h"

#include <cstdlib>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::train {
namespace {

constexpr const char* kWhere = "train";

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

int number(const char* name, int least, int most) {
  const std::optional<std::string> text = variable(name);
  if (!text)
    fail(kWhere, name, " is not set, though WORLD_SIZE is: start with torchrun or --processes");
  const std::optional<int> value = parse_number<int>(*text);
  if (!value || *value < least || *value > most) {
    fail(kWhere, name, ": expected a number from ", least, " to ", most, ", got '", *text, "'");
  }
  return *value;
}

}  // namespace

Rendezvous Rendezvous::from_environment() {
  Rendezvous result;
  if (!variable("WORLD_SIZE")) return result;
  constexpr int kMostProcesses = 1 << 16, kMostPorts = 65535;
  result.world = number("WORLD_SIZE", 1, kMostProcesses);
  if (result.world == 1) return result;
  result.rank = number("RANK", 0, result.world - 1);
  result.local_rank = variable("LOCAL_RANK") ? number("LOCAL_RANK", 0, result.world - 1)
                                             : result.rank;
  result.address = variable("MASTER_ADDR").value_or(result.address);
  result.port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, kMostPorts));
  result.hosted = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  return result;
}

c10::intrusive_ptr<c10d::Backend> join(const Rendezvous& rendezvous, c10::Device device) {
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.rank == 0 && !rendezvous.hosted;
  options.numWorkers = static_cast<std::size_t>(rendezvous.world);
  options.waitWorkers = false;  // making the back end waits
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
    return device.is_cuda() ? make_nccl(store, rendezvous, device) : make_gloo(store, rendezvous);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    fail(ErrorCode::io, kWhere, "process ", rendezvous.rank, " of ", rendezvous.world,
         " could not join the others at ", rendezvous.address, ":", rendezvous.port, ": ",
         text.substr(0, text.find('\n')));
  }
}

}  // namespace mhla::train
