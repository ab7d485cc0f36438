/* Loaded before the C library (LD_PRELOAD): while the file that QUORUMQ_TEST_STALL names exists, every sync of a file
 * takes as many milliseconds longer as it says; if it says 0, every sync waits until the file is gone. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void stall(void) {
  const char *path = getenv("QUORUMQ_TEST_STALL");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  char text[16] = {0};
  long ms = read(file, text, sizeof text - 1) > 0 ? atol(text) : 0;
  close(file);
  struct timespec time = {ms / 1000, ms % 1000 * 1000000}, poll = {0, 2000000};
  nanosleep(&time, NULL);
  while (ms == 0 && access(path, F_OK) == 0) nanosleep(&poll, NULL);
}

int fsync(int file) {
  stall();
  return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
  stall();
  return (int)syscall(SYS_fdatasync, file);
}
