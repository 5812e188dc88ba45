/* Moves the time of day that a process sees by the seconds in the file $DIAL; monotonic time stays as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long long off(void) {
    const char *path = getenv("DIAL");
    FILE *file = path ? fopen(path, "r") : NULL;
    long long seconds = 0;
    if (file != NULL) {
        if (fscanf(file, "%lld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
    return failed;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept != NULL) *kept = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
