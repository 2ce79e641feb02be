/* Preloaded into a program: storage like a network's, and a clock that jumps back by three days at $JUMP_AT.

   fsync takes long, and files cannot be linked or cloned, only copied. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FICLONE 0x40049409
static const long BACK = 3 * 24 * 3600;

static long moved(long now) {
  const char *at = getenv("JUMP_AT");
  return at && now >= atol(at) ? now - BACK : now;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME) now->tv_sec = moved(now->tv_sec);
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
  int status = real(now, zone);
  if (status == 0) now->tv_sec = moved(now->tv_sec);
  return status;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

static int slow(const char *name, int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  if (getenv("SLOW_STORAGE")) usleep(50000);
  return real(file);
}

int fsync(int file) { return slow("fsync", file); }
int fdatasync(int file) { return slow("fdatasync", file); }

static int refused(void) {
  errno = EPERM;
  return -1;
}

int link(const char *from, const char *to) {
  int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "link");
  return getenv("SLOW_STORAGE") ? refused() : real(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  int (*real)(int, const char *, int, const char *, int) = dlsym(RTLD_NEXT, "linkat");
  return getenv("SLOW_STORAGE") ? refused() : real(from_folder, from, to_folder, to, flags);
}

int ioctl(int file, unsigned long request, ...) {
  va_list more;
  va_start(more, request);
  void *argument = va_arg(more, void *);
  va_end(more);
  if (request == FICLONE && getenv("SLOW_STORAGE")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
  return real(file, request, argument);
}
