// The report of a load: one line when all is well, otherwise everything a person needs.
#include "io/load_report.h"

#include <gtest/gtest.h>

#include "mhla/error.h"

namespace mhla::test {
namespace {

TEST(LoadReport, IsOneLineWhenEverythingFits) {
  io::LoadReport report;
  report.source = "model.safetensors";
  report.loaded = {"a", "b"};
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.text(), "'model.safetensors': 2 of 2 tensors loaded\n");
  EXPECT_NO_THROW(report.require_complete());
}

TEST(LoadReport, ListsEveryKindAndTheNearestName) {
  io::LoadReport report;
  report.source = "model.pth";
  report.loaded = {"w"};
  report.missing = {"blocks.0.attn.to_qkv.weight"};
  report.unexpected = {"head.bias", "blocks.0.attn.to_qkv.weigth"};
  report.mismatched = {{"pos_embed", {1, 197, 8}, {1, 256, 8}, ""}};
  report.reshaped = {{"proj.weight", {8, 8}, {8, 8, 1, 1}, "the same without axes of size 1"}};
  report.kept = {"mixing"};
  report.ignored = {"cls_token"};
  report.notes = {"1 tensors converted from Float to BFloat16"};
  EXPECT_EQ(report.text(),
            "'model.pth': 1 of 4 tensors loaded, the file does not match the model\n"
            "missing in the file (1):\n"
            "  'blocks.0.attn.to_qkv.weight'  (the file has 'blocks.0.attn.to_qkv.weigth')\n"
            "unexpected in the file (2):\n"
            "  'head.bias'\n"
            "  'blocks.0.attn.to_qkv.weigth'\n"
            "of another shape (1):\n"
            "  'pos_embed': [1, 197, 8] -> [1, 256, 8]\n"
            "reshaped (1):\n"
            "  'proj.weight': [8, 8] -> [8, 8, 1, 1], the same without axes of size 1\n"
            "kept as initialised (1):\n"
            "  'mixing'\n"
            "ignored (1):\n"
            "  'cls_token'\n"
            "note: 1 tensors converted from Float to BFloat16\n");
  EXPECT_THROW(report.require_complete(), Error);
}

TEST(LoadReport, ShortensLongLists) {
  io::LoadReport report;
  for (int i = 0; i < 50; ++i) report.missing.push_back("layer." + std::to_string(i));
  EXPECT_NE(report.text().find("missing in the file (50):"), std::string::npos);
  EXPECT_NE(report.text().find("  and 30 more\n"), std::string::npos) << report.text();
}

}  // namespace
}  // namespace mhla::test
