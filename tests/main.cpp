// The main of every test executable.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // What is chosen by time differs from run to run, and is kept in the cache of whoever runs the tests.
  setenv("TRAINER_CUDA_TUNE", "0", 0);
  return doctest::Context(argc, argv).run();
}
