# A page of a map whose file was cut under the running process, or cannot be read from its disk: the system sends SIGBUS, and would end
# the process. Here the thread gets a page of zeros in its place, of its own, and goes on; who writes files asks for the count before it
# says that anything is kept. The handler makes system calls only: it runs in the middle of whatever touched the page.

cdef extern from *:
    """
    #ifdef _WIN32  /* has no SIGBUS */
    static volatile long turbopump_lost_pages = 0;
    static int turbopump_outlive_lost_pages(void) { return -1; }
    #else
    #include <signal.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>

    static volatile sig_atomic_t turbopump_lost_pages = 0;
    static uintptr_t turbopump_page_size = 4096;

    static void turbopump_on_sigbus(int number, siginfo_t *info, void *context) {
        (void)context;
        if (info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR) {
            uintptr_t page = (uintptr_t)info->si_addr & ~(turbopump_page_size - 1);
            if (mmap((void *)page, turbopump_page_size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
                turbopump_lost_pages++;
                return;
            }
        }
        signal(number, SIG_DFL);  /* comes again, and ends the process */
    }

    static int turbopump_outlive_lost_pages(void) {
        struct sigaction action;
        turbopump_page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
        action.sa_sigaction = turbopump_on_sigbus;
        action.sa_flags = SA_SIGINFO;
        sigemptyset(&action.sa_mask);
        return sigaction(SIGBUS, &action, NULL);
    }
    #endif

    static long turbopump_count_lost_pages(void) { return (long)turbopump_lost_pages; }
    """
    int turbopump_outlive_lost_pages() nogil
    long turbopump_count_lost_pages() nogil


def outlive_lost_pages():
    return turbopump_outlive_lost_pages() == 0


def lost_pages():
    return turbopump_count_lost_pages()
