// Preloaded into the command, this library counts what the command asks the system to do in one folder and, at
// operation number FAULTS_AT, kills the process or lets the operation fail. Operations: mkdir, creating a file, write,
// fsync, rename, unlink, rmdir.
//
//   FAULTS_IN           paths that begin with this are looked at
//   FAULTS_AT           number of the operation, from 1; 0 or absent: none
//   FAULTS_DO           kill (before the operation) | half (of a write, then killed) | fail (this one) |
//                       fail_on (this one and all after it)
//   FAULTS_ERRNO        what fails, fails with: ENOSPC, EIO or EDQUOT
//   FAULTS_LOG          a file that gets a line for each operation
//   FAULTS_READ         reading a file whose path contains this fails with EIO
//   FAULTS_NO_EXCHANGE  set: names cannot be exchanged, as on some file systems
//   FAULTS_SLOW_MS      syncing a file takes so long
//   FAULTS_FREE         bytes that are free on every file system
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>

namespace {

std::string_view setting(const char* name) {
  const char* value = ::getenv(name);
  return value != nullptr ? value : "";
}

int chosen_errno() {
  const std::string_view name = setting("FAULTS_ERRNO");
  return name == "ENOSPC" ? ENOSPC : name == "EDQUOT" ? EDQUOT : EIO;
}

std::string path_of(int file) {
  char path[PATH_MAX] = "";
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "";
}

std::string path_at(int folder, const char* name) {
  if (name[0] == '/') return name;
  char here[PATH_MAX] = "";
  return (folder == AT_FDCWD ? std::string(::getcwd(here, sizeof here) != nullptr ? here : "") : path_of(folder)) +
         "/" + name;
}

bool is_watched(const std::string& path) {
  const std::string_view in = setting("FAULTS_IN");
  return !in.empty() && path.starts_with(in);
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

void log(const char* operation, const std::string& path) {
  const std::string file(setting("FAULTS_LOG"));
  if (file.empty()) return;
  const std::string line = std::string(operation) + " " + path + "\n";
  const int out = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666));
  ::syscall(SYS_write, out, line.data(), line.size());
  ::syscall(SYS_close, out);
}

enum class Verdict { go_on, fail, half };

std::atomic<long> operations{0};

Verdict judge(const char* operation, const std::string& path) {
  if (!is_watched(path)) return Verdict::go_on;
  log(operation, path);
  const long number = ++operations, at = ::atol(std::string(setting("FAULTS_AT")).c_str());
  const std::string_view action = setting("FAULTS_DO");
  if (at == 0 || number < at || (number > at && action != "fail_on")) return Verdict::go_on;
  if (action == "kill" || (action == "half" && strcmp(operation, "write") != 0)) die();
  if (action == "half") return Verdict::half;
  errno = chosen_errno();
  return Verdict::fail;
}

bool fails(const char* operation, const std::string& path) { return judge(operation, path) == Verdict::fail; }

int open_file(int folder, const char* name, int flags, mode_t mode) {
  if ((flags & O_CREAT) != 0 && fails("create", path_at(folder, name))) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
}

mode_t mode_argument(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

bool read_fails(int file) {
  const std::string_view part = setting("FAULTS_READ");
  if (part.empty() || path_of(file).find(part) == std::string::npos) return false;
  errno = EIO;
  return true;
}

}  // namespace

extern "C" {

int open(const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_file(folder, name, flags, mode);
}

int openat64(int folder, const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_file(folder, name, flags, mode);
}

ssize_t write(int file, const void* data, size_t bytes) {
  if (setting("FAULTS_IN").empty()) return ::syscall(SYS_write, file, data, bytes);
  const Verdict verdict = judge("write", path_of(file));
  if (verdict == Verdict::fail) return -1;
  if (verdict == Verdict::half) {
    ::syscall(SYS_write, file, data, bytes / 2);
    die();
  }
  return ::syscall(SYS_write, file, data, bytes);
}

ssize_t read(int file, void* data, size_t bytes) {
  return read_fails(file) ? -1 : ::syscall(SYS_read, file, data, bytes);
}
ssize_t pread(int file, void* data, size_t bytes, off_t at) {
  return read_fails(file) ? -1 : ::syscall(SYS_pread64, file, data, bytes, at);
}
ssize_t pread64(int file, void* data, size_t bytes, off64_t at) {
  return read_fails(file) ? -1 : ::syscall(SYS_pread64, file, data, bytes, at);
}

int fsync(int file) {
  const std::string path = path_of(file);
  if (is_watched(path) && !setting("FAULTS_SLOW_MS").empty())
    ::usleep(1000 * static_cast<unsigned>(::atoi(std::string(setting("FAULTS_SLOW_MS")).c_str())));
  return fails("fsync", path) ? -1 : static_cast<int>(::syscall(SYS_fsync, file));
}

int statvfs(const char* path, struct statvfs* about) {
  using Real = int (*)(const char*, struct statvfs*);
  static const Real real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "statvfs"));
  const int result = real(path, about);
  if (result == 0 && !setting("FAULTS_FREE").empty()) {
    about->f_frsize = 1;
    about->f_bavail = static_cast<fsblkcnt_t>(::atoll(std::string(setting("FAULTS_FREE")).c_str()));
  }
  return result;
}
int statvfs64(const char* path, struct statvfs64* about) {
  return statvfs(path, reinterpret_cast<struct statvfs*>(about));
}

int mkdir(const char* name, mode_t mode) {
  return fails("mkdir", path_at(AT_FDCWD, name)) ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}

int rename(const char* from, const char* to) {
  return fails("rename", path_at(AT_FDCWD, from))
             ? -1
             : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (flags != 0 && !setting("FAULTS_NO_EXCHANGE").empty()) {
    errno = EINVAL;
    return -1;
  }
  if (fails("exchange", path_at(from_folder, from))) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int unlink(const char* name) {
  return fails("unlink", path_at(AT_FDCWD, name)) ? -1 : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, name, 0));
}

int unlinkat(int folder, const char* name, int flags) {
  return fails("unlink", path_at(folder, name)) ? -1 : static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}

int rmdir(const char* name) {
  return fails("unlink", path_at(AT_FDCWD, name))
             ? -1
             : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR));
}

}  // extern "C"
