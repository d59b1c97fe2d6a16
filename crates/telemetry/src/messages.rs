//! Messages of the gateway's own log, reported by plugins to collectors.
//!
//! The thread that writes the log publishes each line. Workers do nothing for it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tracing::Level;

use crate::reports::Channel;

/// Writes a line, which has no line end, in the form of a destination.
pub type RenderLine = Box<dyn Fn(&[u8], &mut Vec<u8>) + Send + Sync>;

/// Reports of messages from a level on, until it is dropped.
pub struct Subscription {
    level: Level,
    channel: Arc<Channel>,
    render: RenderLine,
}

static SUBSCRIPTIONS: Mutex<Vec<Weak<Subscription>>> = Mutex::new(Vec::new());

impl Subscription {
    /// Reports messages of this level and of more important ones from now on.
    #[must_use]
    pub fn open(level: Level, channel: Arc<Channel>, render: RenderLine) -> Arc<Self> {
        let subscription = Arc::new(Self { level, channel, render });
        let mut all = SUBSCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&subscription));
        subscription
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("level", &self.level).finish_non_exhaustive()
    }
}

/// Passes a line of the log on to all subscriptions of its level. Only the thread of the log calls it.
pub fn publish(level: Level, line: &[u8]) {
    let all = SUBSCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let line = line.trim_ascii_end();
    // More important levels are less.
    for one in all.iter().filter_map(Weak::upgrade).filter(|one| level <= one.level) {
        one.channel.report(|record| (one.render)(line, record));
    }
}
