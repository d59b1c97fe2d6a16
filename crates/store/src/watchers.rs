//! Whoever wants to know of changes, each with as much room as it gets, and no more.

use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::Event;

/// Events that a watcher may be behind by, before it gets everything anew.
pub(crate) const ROOM: usize = 1024;

/// All watchers of a store.
#[derive(Debug, Default)]
pub struct Watchers {
    list: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    sender: Sender<Event>,
    /// It has missed an event: it gets a [`Event::Reset`] as soon as it has room.
    behind: bool,
}

/// The two ends of a watcher's events.
#[must_use]
pub fn events() -> (Sender<Event>, Receiver<Event>) {
    channel(ROOM)
}

impl Watchers {
    /// Adds one that has to be told these events first; with `None` it gets everything anew.
    pub fn add(&mut self, sender: Sender<Event>, missed: Option<Vec<Event>>) {
        self.list.retain(|watcher| !watcher.sender.is_closed());
        let mut watcher = Watcher { sender, behind: missed.is_none() };
        for event in missed.into_iter().flatten() {
            watcher.tell(&event);
        }
        self.list.push(watcher);
    }

    /// Tells all of them.
    pub fn tell(&mut self, event: &Event) {
        self.list.retain(|watcher| !watcher.sender.is_closed());
        for watcher in &mut self.list {
            watcher.tell(event);
        }
    }

    /// All of them have missed something.
    pub fn all_behind(&mut self) {
        for watcher in &mut self.list {
            watcher.behind = true;
        }
    }

    /// Whether nobody watches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(|watcher| watcher.sender.is_closed())
    }

    /// Whether one waits for everything.
    #[must_use]
    pub fn any_behind(&self) -> bool {
        self.list.iter().any(|watcher| watcher.behind)
    }

    /// Gives those that are behind and have room what `all` makes; where that fails they go on waiting.
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
            watcher.tell(event);
        }
    }
}

impl Watcher {
    fn tell(&mut self, event: &Event) {
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
    use super::{ROOM, Watchers, events};
    use crate::{Event, Listing};

    fn committed(revision: u64) -> Event {
        Event::Committed { revision, changes: Vec::new() }
    }

    #[test]
    fn whoever_falls_behind_gets_everything_anew() {
        let mut watchers = Watchers::default();
        let (sender, mut receiver) = events();
        watchers.add(sender, Some(vec![committed(1)]));
        let last = ROOM as u64 + 10;
        for revision in 2..=last {
            watchers.tell(&committed(revision));
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
        assert_eq!(seen.len(), ROOM);
        assert_eq!(seen.last(), all().as_ref());
        drop(receiver);
        watchers.tell(&committed(9));
        assert!(watchers.list.is_empty() && watchers.is_empty());
    }
}
