// Declaring the copies of a loops file: the same declarations in the namespace of each instruction set.
#pragma once

#define DECLARE_BY_ISA(...) \
  namespace portable {      \
  __VA_ARGS__               \
  }                         \
  namespace avx2 {          \
  __VA_ARGS__               \
  }                         \
  namespace avx512 {        \
  __VA_ARGS__               \
  }                         \
  namespace avx512_bf16 {   \
  __VA_ARGS__               \
  }
