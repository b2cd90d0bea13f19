/* Calls that change files below one folder: the chosen one fails, all from it on fail, or the process ends there.

   cc -shared -fPIC -O1 -o faults.so faults.c -ldl;  LD_PRELOAD=faults.so …;  then faults_begin() in the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { COUNT, FAIL, FULL, KILL };
static char below[4096];
static int mode = COUNT, chosen = -1;
static int calls = 0;

void faults_begin(const char *folder, int how, int which) {
    strncpy(below, folder, sizeof below - 1);
    mode = how, chosen = which, calls = 0;
}

int faults_calls(void) { return calls; }

static int is_below(const char *path) { return below[0] && path && !strncmp(path, below, strlen(below)); }

static int is_open_below(int file) {
    char name[64], path[4096];
    struct stat about;
    if (!below[0] || fstat(file, &about) || !S_ISREG(about.st_mode)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return is_below(path);
}

/* Whether this call is to fail; `takes_room`: a full disk refuses it too. */
static int fails(int takes_room) {
    int number = calls++;
    if (chosen < 0 || number < chosen || mode == COUNT) return 0;
    if (mode == KILL) _exit(137);
    if (mode == FAIL && number == chosen) return errno = EIO, 1;
    if (mode == FULL && takes_room) return errno = ENOSPC, 1;
    return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    return is_open_below(file) && fails(1) ? -1 : real(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return is_open_below(file) && fails(1) ? -1 : real(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return is_open_below(file) && fails(1) ? -1 : real(file, data, size, at);
}
int fsync(int file) {
    REAL(fsync);
    return is_open_below(file) && fails(0) ? -1 : real(file);
}
int fdatasync(int file) {
    REAL(fdatasync);
    return is_open_below(file) && fails(0) ? -1 : real(file);
}
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    return is_open_below(file) && fails(0) ? -1 : real(file, size);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    return is_below(to) && fails(0) ? -1 : real(from, to);
}
int unlink(const char *path) {
    REAL(unlink);
    return is_below(path) && fails(0) ? -1 : real(path);
}
int mkdir(const char *path, mode_t how) {
    REAL(mkdir);
    return is_below(path) && fails(1) ? -1 : real(path, how);
}
static int opens(const char *path, int flags) { return (flags & O_CREAT) && is_below(path) && fails(1); }
#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...) {                          \
        REAL(name);                                                       \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        int how = va_arg(more, int);                                      \
        va_end(more);                                                     \
        return opens(path, flags) ? -1 : real(path, flags, how);          \
    }
OPEN(open)
OPEN(open64)
