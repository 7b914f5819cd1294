/* libfaketime shows the true time to whatever runs while a wait of its own is in progress: also to
   a signal handler that interrupts the wait. PostgreSQL's handler of SIGALRM would then find that
   a timeout is not due for another hour, and ask again in an hour. So its waits are not
   libfaketime's: loaded before it, this hands them to the kernel. */

#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    return syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, _NSIG / 8);
}
