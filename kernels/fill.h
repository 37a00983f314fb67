// Moving bytes.
//
//   zero   → y of any dtype: all bytes 0
//   cast   x → y, any two floating dtypes, round to nearest even; a value beyond the range becomes infinite, NaN stays NaN
#pragma once
