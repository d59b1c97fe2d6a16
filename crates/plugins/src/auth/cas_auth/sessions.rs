//! Sessions of users of CAS, by their tickets. All workers share them; a lookup takes no lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Seconds for which a session lives without a request.
const LIFETIME: u64 = 3600;

/// Ends of sessions, in seconds since 1970, by tickets.
#[derive(Debug)]
pub(super) struct Sessions {
    held: papaya::HashMap<Box<str>, AtomicU64>,
    most: usize,
}

impl Sessions {
    /// Room for so many sessions.
    pub(super) fn new(most: usize) -> Self {
        Self { held: papaya::HashMap::new(), most }
    }

    /// True if there is a session, which lives on for [`LIFETIME`].
    pub(super) fn touch(&self, ticket: &str, now: u64) -> bool {
        let held = self.held.pin();
        let Some(end) = held.get(ticket).filter(|end| end.load(Relaxed) > now) else { return false };
        end.store(now.saturating_add(LIFETIME), Relaxed);
        true
    }

    /// Begins a session. False: there is no room for one more, or the ticket has one already.
    pub(super) fn begin(&self, ticket: &str, now: u64) -> bool {
        let held = self.held.pin();
        if held.len() >= self.most {
            held.retain(|_, end| end.load(Relaxed) > now);
        }
        held.len() < self.most && held.try_insert(ticket.into(), AtomicU64::new(now.saturating_add(LIFETIME))).is_ok()
    }

    /// Ends a session.
    pub(super) fn end(&self, ticket: &str) {
        self.held.pin().remove(ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::{LIFETIME, Sessions};

    #[test]
    fn sessions_live_while_they_are_used() {
        let sessions = Sessions::new(2);
        assert!(!sessions.touch("a", 0) && sessions.begin("a", 0) && !sessions.begin("a", 0), "a ticket is good once");
        assert!(sessions.touch("a", LIFETIME - 1) && sessions.touch("a", 2 * LIFETIME - 2));
        assert!(!sessions.touch("a", 4 * LIFETIME));
        // One that is over makes room.
        assert!(
            sessions.begin("b", 4 * LIFETIME)
                && sessions.begin("c", 4 * LIFETIME)
                && !sessions.begin("d", 4 * LIFETIME)
        );
        sessions.end("b");
        assert!(!sessions.touch("b", 4 * LIFETIME) && sessions.begin("d", 4 * LIFETIME));
    }
}
