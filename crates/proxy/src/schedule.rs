//! Division of a core between threads by the kernel, when more threads have work than there are cores.
//!
//! A request takes a worker some microseconds, a piece of other work hundreds. With the same time slice for all
//! threads, a worker woken while another thread runs waits until that thread has used up its slice: up to milliseconds.
//! So workers request the shortest slice, with which Linux (6.12 and later) lets them run at once as long as they have
//! not exceeded their share; threads that work on the configuration are batch threads ([`stand_back`]), which never
//! preempt others.

use std::io;

use libc::{SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, c_int, c_uint, sched_attr, syscall};

/// The time slice of a worker, in nanoseconds: the least that Linux gives. Earlier kernels take no notice.
const SLICE: u64 = 100_000;

/// Schedules this thread as one that serves requests.
///
/// # Errors
/// The kernel refuses, as in a sandbox. Everything works, only less evenly.
pub(crate) fn serve_requests() -> io::Result<()> {
    set(SCHED_OTHER, SLICE)
}

/// Schedules this thread as a batch thread; threads that it starts from now on inherit the policy.
///
/// # Errors
/// As for [`serve_requests`].
pub fn stand_back() -> io::Result<()> {
    set(SCHED_BATCH, 0)
}

/// Sets the scheduling policy of this thread, and its time slice; 0: the default slice. `nice` stays. A thread that was
/// given another policy at start, as for real time, keeps it.
fn set(policy: c_int, slice: u64) -> io::Result<()> {
    let size = size_of::<sched_attr>() as c_uint;
    let mut attr = sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes no more than `size` bytes, all of which belong to `attr`; 0 is the thread that calls.
    if unsafe { syscall(SYS_sched_getattr, 0, &raw mut attr, size, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let now = attr.sched_policy.cast_signed();
    if now != SCHED_OTHER && now != SCHED_BATCH {
        return Ok(());
    }
    attr.sched_policy = policy.cast_unsigned();
    attr.sched_runtime = slice;
    // SAFETY: the kernel reads `size` bytes, the number in the first field, and they belong to `attr`.
    if unsafe { syscall(SYS_sched_setattr, 0, &raw const attr, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
