// Fuzzes what `mhla compare` reads of a run: any log gives curves, and any curves a page.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/check.h"
#include "io/html.h"
#include "io/run_history.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const mhla::io::RunHistory run = mhla::io::parse_run("runs/fuzzed", text);
  MHLA_FUZZ_CHECK(run.name == "fuzzed");
  MHLA_FUZZ_CHECK(run.eval_order.size() == run.eval.size());
  mhla::io::HtmlPage page(run.name);
  for (const auto* curves : {&run.train, &run.eval}) {
    for (const auto& [name, curve] : *curves) {
      MHLA_FUZZ_CHECK(!curve.points.empty());
      page.chart({.title = name, .x_label = "epoch", .y_label = name, .curves = {curve, curve}});
    }
  }
  const std::string html = page.html();
  MHLA_FUZZ_CHECK(html.find("nan") == std::string::npos || text.find("nan") != std::string::npos);
  return 0;
}
