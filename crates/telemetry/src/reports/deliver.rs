//! The threads that send batches, and may block for it.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::queue::Batch;
use super::{Destination, HUB, Shared, lock};
use crate::access_log::{Sink, Target};

/// Most batches on their way at one time. Each channel has one at most.
const THREADS: usize = 8;
/// Open files beyond which those that nobody writes to just now are closed.
const OPEN_FILES: usize = 64;

/// A request with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The whole URI.
    pub uri: String,
    /// Fields beside those that frame the body.
    pub fields: Vec<(String, String)>,
    /// Limit for the whole exchange.
    pub timeout: Duration,
    /// True if the certificate of the collector is verified.
    pub verify: bool,
}

/// Sends requests to collectors.
pub trait Poster: Send + Sync {
    /// Sends a batch and waits for the answer; an error unless it is one that takes the batch.
    ///
    /// # Errors
    /// Why the batch was not taken.
    fn post(&self, post: &Post, body: &[u8]) -> Result<(), String>;
}

/// A batch that was sent, or was not.
pub(super) struct Outcome {
    pub(super) id: u32,
    pub(super) batch: Batch,
    /// The number of its records that were lost on the way, or the reason why it was not sent.
    pub(super) result: Result<u64, String>,
}

/// The threads.
pub(super) struct Deliverers(Arc<Common>);

struct Common {
    poster: Arc<dyn Poster>,
    jobs: Mutex<Jobs>,
    wake: Condvar,
    outcomes: Mutex<VecDeque<Outcome>>,
    files: Mutex<HashMap<PathBuf, Arc<Mutex<Sink>>>>,
}

#[derive(Default)]
struct Jobs {
    /// At most one of each channel.
    waiting: VecDeque<(u32, Arc<Shared>, Batch)>,
    threads: usize,
    idle: usize,
}

impl Deliverers {
    pub(super) fn new(poster: Arc<dyn Poster>) -> Self {
        Self(Arc::new(Common {
            poster,
            jobs: Mutex::default(),
            wake: Condvar::new(),
            outcomes: Mutex::default(),
            files: Mutex::default(),
        }))
    }

    /// Sends a batch when a thread has time for it.
    pub(super) fn send(&self, id: u32, channel: Arc<Shared>, batch: Batch) {
        let mut jobs = lock(&self.0.jobs);
        jobs.waiting.push_back((id, channel, batch));
        if jobs.idle < jobs.waiting.len() && jobs.threads < THREADS {
            let common = Arc::clone(&self.0);
            let name = format!("weir-report-{}", jobs.threads);
            match thread::Builder::new().name(name).spawn(move || common.run()) {
                Ok(_) => jobs.threads += 1,
                Err(error) => tracing::error!(%error, "a thread for reports cannot be started"),
            }
        }
        drop(jobs);
        self.0.wake.notify_one();
    }

    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.0.outcomes).pop_front()
    }

    /// Has every file opened anew before it is written to.
    pub(super) fn reopen(&self) {
        lock(&self.0.files).clear();
    }
}

impl Common {
    fn run(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (id, channel, batch) = loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                jobs.idle += 1;
                jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                jobs.idle -= 1;
            };
            drop(jobs);
            let result = match channel.destination() {
                Destination::Http(post) => self.poster.post(post, &batch.body).map(|()| 0),
                Destination::File { path, mode } => self.append(path, *mode, &batch.body),
            };
            drop(channel);
            lock(&self.outcomes).push_back(Outcome { id, batch, result });
            HUB.wake();
        }
    }

    /// Appends whole lines to a file; returns how many did not get there.
    fn append(&self, path: &Path, mode: u32, lines: &[u8]) -> Result<u64, String> {
        let mut files = lock(&self.files);
        if files.len() >= OPEN_FILES {
            files.retain(|_, sink| Arc::strong_count(sink) > 1);
        }
        let known = files.get(path).cloned();
        drop(files);
        let sink = match known {
            Some(sink) => sink,
            None => {
                let sink = Sink::open("a log of file-logger", Target::File(path.to_owned()), mode)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                Arc::clone(lock(&self.files).entry(path.to_owned()).or_insert_with(|| Arc::new(Mutex::new(sink))))
            }
        };
        let mut sink = lock(&sink);
        sink.follow().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(sink.write(lines))
    }
}
