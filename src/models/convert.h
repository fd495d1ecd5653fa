// A checkpoint read into a network and written again: other names, precision, resolution.
#pragma once

#include <stdint.h>

extern "C" {

// Texts may not be null; empty ones mean what is said.
struct mhla_conversion {
  const char* in;       // anything that io::Checkpoint::open reads
  const char* out;      // a .safetensors file, or a folder that exists
  const char* section;  // of `in`; empty: its weights
  const char* model;    // empty: what the file says that it is
  const char* options;  // of the network, after those the file tells: "image_size=512"
  const char* package;  // whose names: "diffusers"; empty: upstream's
  const char* dtype;    // "bf16"; empty: that of the file, where all its tensors have one
  uint64_t max_file_bytes;
  int partial;  // go on where tensors are missing, left over or without a place
};

// For programs that load libmhla_torch when they need it. Returns 0 and a JSON document that says
// what was done, its "text" for people; or 1 + an ErrorCode and the message. Free it with free().
int mhla_model_convert(const struct mhla_conversion* request, char** text);
}
