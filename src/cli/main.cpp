// The program `mhla`.
#include "cli/program.h"

int main(int argc, char** argv) { return mhla::cli::run(argc, argv); }
