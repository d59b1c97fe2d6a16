//! How threads that work on the configuration stand back behind the workers, where there are not enough cores for all.

/// Takes so many steps of `nice` back, with this thread alone. From nowhere a thread comes forward again, so it is one of
/// those that do nothing else; what they start stands back as well, which the process that follows in an upgrade must not:
/// that one is started by the control thread.
pub(crate) fn stand_back(steps: u8) {
    // The kernel takes this for the thread, not the process. Without it everything works, only less evenly.
    if let Err(error) = rustix::process::nice(i32::from(steps)) {
        tracing::debug!(%error, "a thread cannot stand back behind the workers (config.nice)");
    }
}
