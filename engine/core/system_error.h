// What the operating system's refusals mean to people: where a limit of the process, the user or the container is
// behind one, the sentence names it, its value, and where it is set.
#pragma once

#include <string>

namespace trainer {

/// Of an errno: its message, and the limit that can be its reason.
std::string system_text(int error);
/// Why no more threads can be started (std::thread reports EAGAIN).
std::string threads_refused();
/// Why there is no more memory (std::bad_alloc).
std::string memory_refused();

/// Starts `count` threads at once and ends them again: throws IoError where the system does not allow so many.
/// Libraries that start threads of their own (OpenMP) end the process where they get none.
void require_threads(int count);

}  // namespace trainer
