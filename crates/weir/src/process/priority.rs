//! Scheduling priority of threads that work on the configuration, which is below that of the workers.

/// Lowers the priority of this thread below that of the workers by `steps` of `nice`, because its work can wait. A thread
/// cannot raise its priority again, so the thread must do no other work. Processes started by the thread inherit the
/// priority, which the new process of an upgrade must not: the control thread starts that process and uses
/// [`yield_to_workers`] instead.
pub(crate) fn stand_back(steps: u8) {
    yield_to_workers(steps);
    // Linux applies `nice` to the thread, not the process. A failure only makes latencies less even.
    if let Err(error) = rustix::process::nice(i32::from(steps)) {
        tracing::debug!(%error, "cannot lower the priority of a thread (config.nice)");
    }
}

/// Keeps this thread from preempting a worker, unless `steps` is 0. The thread's share of a core stays the same.
pub(crate) fn yield_to_workers(steps: u8) {
    if steps > 0
        && let Err(error) = weir_proxy::stand_back()
    {
        tracing::debug!(%error, "cannot keep a thread from preempting the workers (config.nice)");
    }
}
