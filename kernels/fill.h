// Moving bytes.
//
//   zero   → y of any dtype: all bytes 0; y may lie anywhere
//   cast   x → y, any two floating dtypes, rounded to the nearest, ties to even; a value beyond the range becomes
//          infinite, NaN stays NaN.
//          Two equal dtypes, of any kind: a copy of the bytes. May be in place where they are equal.
#pragma once
