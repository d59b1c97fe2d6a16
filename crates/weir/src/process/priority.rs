//! How threads that work on the configuration stand back behind the workers, where there are not enough cores for all.

/// Takes this thread back behind the workers: its work can wait, and it has so many steps of `nice` less of a core that
/// is wanted by both. From nowhere a thread comes forward again, so it is one of those that do nothing else; what they
/// start stands back as well, which the process that follows in an upgrade must not: that one is started by the control
/// thread, for which there is [`yield_to_workers`].
pub(crate) fn stand_back(steps: u8) {
    yield_to_workers(steps);
    // The kernel takes this for the thread, not the process. Without it everything works, only less evenly.
    if let Err(error) = rustix::process::nice(i32::from(steps)) {
        tracing::debug!(%error, "a thread cannot stand back behind the workers (config.nice)");
    }
}

/// Keeps this thread from interrupting a worker, unless there are no steps to be taken back. It has the same share of a
/// core.
pub(crate) fn yield_to_workers(steps: u8) {
    if steps > 0
        && let Err(error) = weir_proxy::stand_back()
    {
        tracing::debug!(%error, "a thread cannot yield to the workers (config.nice)");
    }
}
