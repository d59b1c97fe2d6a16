//! The last-good copy of the live configuration, kept beside the store in case the store is damaged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::sleep;
use weir_store::{LastGood, Seal};

use crate::stored::live::Live;

/// Minimum time between two copies.
const PAUSE: Duration = Duration::from_secs(1);

/// Length of one stint of writing, which bounds the delay of others. [`REST`] follows each stint, so that writing takes
/// little of the CPU.
const STINT: Duration = Duration::from_micros(200);
const REST: Duration = Duration::from_millis(10);

/// The copy.
#[derive(Clone, Debug)]
pub(crate) struct Copy(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    seal: Arc<Seal>,
    /// Lock held while the copy is written.
    turn: Arc<Mutex<()>>,
    /// True when a copy in progress is to be abandoned.
    ending: AtomicBool,
}

/// Proof that no copy is being written.
#[derive(Debug)]
pub(crate) struct Ended {
    copy: Copy,
    turn: OwnedMutexGuard<()>,
}

impl Copy {
    pub(crate) fn new(path: PathBuf, seal: Arc<Seal>) -> Self {
        Self(Arc::new(Shared { path, seal, turn: Arc::default(), ending: AtomicBool::new(false) }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Writes the copy after changes, at a low rate. Runs for ever.
    pub(crate) async fn keep(self, live: Live) {
        let mut outdated = false;
        loop {
            if !outdated {
                live.changed().await;
            }
            let turn = Arc::clone(&self.0.turn).lock_owned().await;
            let mut began = Instant::now();
            let shared = Arc::clone(&self.0);
            let between = move || {
                if shared.ending.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if began.elapsed() >= STINT {
                    thread::sleep(REST);
                    began = Instant::now();
                }
                Ok(())
            };
            outdated = !self.write(turn, &live, between).await;
            sleep(PAUSE).await;
        }
    }

    /// Abandons a copy in progress, and all later ones.
    pub(crate) fn abandon(&self) {
        self.0.ending.store(true, Ordering::Relaxed);
    }

    /// Stops writing until [`Ended::resume`] is called on the returned value.
    pub(crate) async fn end(&self) -> Ended {
        self.abandon();
        Ended { turn: Arc::clone(&self.0.turn).lock_owned().await, copy: self.clone() }
    }

    /// Writes the copy for the last time.
    pub(crate) async fn finish(&self, live: &Live) {
        let Ended { turn, .. } = self.end().await;
        self.write(turn, live, || Ok(())).await;
    }

    /// Returns true when the copy is written, or cannot be written.
    async fn write(
        &self,
        turn: OwnedMutexGuard<()>,
        live: &Live,
        between: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> bool {
        let (held, shared) = (live.held().await, Arc::clone(&self.0));
        if held.refuses_all {
            return true;
        }
        let written = tokio::task::spawn_blocking(move || {
            let written = LastGood::write(&shared.path, held.at, held.iter(), &shared.seal, between);
            drop(turn);
            written
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => return false,
            Ok(Err(error)) => tracing::warn!(%error, "the copy of the last good state cannot be written"),
            Err(panicked) => tracing::error!(%panicked, "the copy of the last good state was not written"),
        }
        true
    }
}

impl Ended {
    /// Resumes writing the copy after changes.
    pub(crate) fn resume(self) {
        self.copy.0.ending.store(false, Ordering::Relaxed);
        drop(self.turn);
    }
}
