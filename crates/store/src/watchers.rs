//! Watchers of a store, each with a bounded queue of events.

use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::Event;

/// Capacity of a watcher's queue; a watcher that exceeds it receives everything anew.
pub(crate) const QUEUE_CAPACITY: usize = 1024;

/// All watchers of a store.
#[derive(Debug, Default)]
pub struct Watchers {
    list: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    sender: Sender<Event>,
    /// True after a missed event: the watcher receives an [`Event::Reset`] once its queue has room.
    behind: bool,
}

/// Sender and receiver of a watcher's events.
#[must_use]
pub fn events() -> (Sender<Event>, Receiver<Event>) {
    channel(QUEUE_CAPACITY)
}

impl Watchers {
    /// Adds a watcher and first sends it the missed events; with `None` it receives everything anew.
    pub fn add(&mut self, sender: Sender<Event>, missed: Option<Vec<Event>>) {
        self.list.retain(|watcher| !watcher.sender.is_closed());
        let mut watcher = Watcher { sender, behind: missed.is_none() };
        for event in missed.into_iter().flatten() {
            watcher.notify(&event);
        }
        self.list.push(watcher);
    }

    /// Notifies all watchers of an event.
    pub fn notify(&mut self, event: &Event) {
        self.list.retain(|watcher| !watcher.sender.is_closed());
        for watcher in &mut self.list {
            watcher.notify(event);
        }
    }

    /// Marks all watchers as behind.
    pub fn mark_all_behind(&mut self) {
        for watcher in &mut self.list {
            watcher.behind = true;
        }
    }

    /// True if there are no watchers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(|watcher| watcher.sender.is_closed())
    }

    /// True if a watcher is behind and waits for an [`Event::Reset`].
    #[must_use]
    pub fn any_behind(&self) -> bool {
        self.list.iter().any(|watcher| watcher.behind)
    }

    /// Sends the event that `all` makes to watchers that are behind and have room; if `all` fails, they keep waiting.
    pub fn catch_up(&mut self, all: impl Fn() -> Option<Event>) {
        self.list.retain(|watcher| !watcher.sender.is_closed());
        let waiting = self.list.iter_mut().filter(|watcher| watcher.behind && watcher.sender.capacity() > 0);
        let mut event = None;
        for watcher in waiting {
            if event.is_none() {
                event = all();
            }
            let Some(event) = &event else { return };
            watcher.behind = false;
            watcher.notify(event);
        }
    }
}

impl Watcher {
    fn notify(&mut self, event: &Event) {
        if self.behind {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.sender.try_send(event.clone()) {
            self.behind = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{QUEUE_CAPACITY, Watchers, events};
    use crate::{Event, Listing};

    fn committed(revision: u64) -> Event {
        Event::Committed { revision, changes: Vec::new() }
    }

    #[test]
    fn a_watcher_that_falls_behind_receives_everything_anew() {
        let mut watchers = Watchers::default();
        let (sender, mut receiver) = events();
        watchers.add(sender, Some(vec![committed(1)]));
        let last = QUEUE_CAPACITY as u64 + 10;
        for revision in 2..=last {
            watchers.notify(&committed(revision));
        }
        assert!(watchers.any_behind());
        let all = || Some(Event::Reset(Listing { revision: last, ..Listing::default() }));
        watchers.catch_up(all);
        assert!(watchers.any_behind(), "there is no room yet");
        assert_eq!(receiver.try_recv().unwrap(), committed(1));
        watchers.catch_up(|| None);
        assert!(watchers.any_behind());
        watchers.catch_up(all);
        assert!(!watchers.any_behind());
        let mut seen = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            seen.push(event);
        }
        assert_eq!(seen.len(), QUEUE_CAPACITY);
        assert_eq!(seen.last(), all().as_ref());
        drop(receiver);
        watchers.notify(&committed(9));
        assert!(watchers.list.is_empty() && watchers.is_empty());
    }
}
