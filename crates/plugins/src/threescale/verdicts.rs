//! Verdicts of the backend, as each worker remembers them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{CalloutError, CalloutResponse, Remembered, Slot};
use weir_wire::name::FieldName;

/// Most verdicts of one worker, and most bytes of their keys. When there is no room, those that are over go, or else all.
const MOST: usize = 65_536;
const MOST_BYTES: usize = 16 << 20;
/// Bytes that a verdict takes beside its key, about.
const ENTRY: usize = 96;

/// The verdict of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Status of the answer; 0 without one.
    pub(super) status: u16,
    /// True if the request is refused because of a limit.
    pub(super) is_over_limit: bool,
    /// Seconds until the limit begins anew, as the backend says them.
    pub(super) retry_after: Option<Box<[u8]>>,
    /// True if the gateway itself could not ask.
    pub(super) is_unasked: bool,
}

/// Names of fields of answers.
#[derive(Debug)]
pub(super) struct AnswerFields {
    reason: FieldName,
    reset: FieldName,
    max: FieldName,
}

impl Default for AnswerFields {
    fn default() -> Self {
        let name = FieldName::constant;
        Self {
            reason: name("3scale-rejection-reason"),
            reset: name("3scale-limit-reset"),
            max: name("3scale-limit-max-value"),
        }
    }
}

impl Verdict {
    /// The verdict in the answer to a question.
    pub(super) fn of(answer: &Result<CalloutResponse, CalloutError>, fields: &AnswerFields) -> Self {
        match answer {
            Err(error) => {
                let is_unasked = *error == CalloutError::Busy;
                Self { status: 0, is_over_limit: false, retry_after: None, is_unasked }
            }
            Ok(answer) => {
                let status = answer.status();
                let is_limit = answer.field(&fields.reason) == Some(b"limits_exceeded");
                // A limit of 0 switches a metric off, which is no limit that anybody waits for.
                let is_off = answer.field(&fields.max) == Some(b"0");
                Self {
                    status,
                    is_over_limit: status != 200 && is_limit && !is_off,
                    retry_after: answer.field(&fields.reset).filter(|_| status != 200).map(Into::into),
                    is_unasked: false,
                }
            }
        }
    }

    /// True if the backend gave no answer that decides.
    pub(super) fn is_unavailable(&self) -> bool {
        self.status == 0 || self.status >= 499
    }
}

/// A verdict that is remembered.
#[derive(Debug)]
struct Entry {
    status: u16,
    is_over_limit: bool,
    /// Worker time in milliseconds until which the verdict is fresh.
    fresh: u64,
    /// Worker time in milliseconds at which it is over.
    end: u64,
    /// True while it is asked for again.
    is_asked: bool,
}

/// A verdict on a request, as a worker remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// The backend has let the same request pass, not long ago.
    Passes,
    /// The backend has let the same request pass, and has to be asked again.
    Stale,
    /// The backend has refused the same request; true: because of a limit.
    Refused(bool),
    Nothing,
}

/// The verdicts of one worker.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: RefCell<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    all: HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>,
    bytes: usize,
}

/// The verdicts of a service in all workers.
#[derive(Debug)]
pub(super) struct Verdicts {
    slot: Slot<Table>,
    /// Questions on their way, so that one of many who ask the same asks the backend.
    pub(super) asked: Arc<Remembered<Verdict>>,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self { slot: Slot::default(), asked: Arc::new(Remembered::new(0, 0)) }
    }

    /// Those of this worker.
    pub(super) fn here(&self) -> Rc<Table> {
        self.slot.get_or_start(Table::default)
    }
}

impl Table {
    /// Verdict known for a request. With `batches`, refusals count as well, and nothing is stale.
    pub(super) fn look(&self, key: &[u8], now: u64, batches: bool) -> Known {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.all.get_mut(key).filter(|entry| entry.end > now) else { return Known::Nothing };
        match entry.status {
            200 if entry.fresh > now || entry.is_asked && !batches => Known::Passes,
            200 if !batches => {
                entry.is_asked = true;
                Known::Stale
            }
            200 => Known::Nothing,
            _ if batches && entry.fresh > now => Known::Refused(entry.is_over_limit),
            _ => Known::Nothing,
        }
    }

    /// True if the last verdict that is remembered let the request pass; `None` without one.
    pub(super) fn last(&self, key: &[u8], now: u64) -> Option<bool> {
        let entries = self.entries.borrow();
        entries.all.get(key).filter(|entry| entry.end > now).map(|entry| entry.status == 200)
    }

    /// Remembers a verdict, which is fresh until `fresh` and over at `end`.
    pub(super) fn put(&self, key: &[u8], status: u16, is_over_limit: bool, (fresh, end): (u64, u64), now: u64) {
        let entry = Entry { status, is_over_limit, fresh, end, is_asked: false };
        let mut entries = self.entries.borrow_mut();
        if let Some(known) = entries.all.get_mut(key) {
            *known = entry;
            return;
        }
        let bytes = key.len() + ENTRY;
        if entries.all.len() >= MOST || entries.bytes + bytes > MOST_BYTES {
            entries.make_room(bytes, now);
        }
        entries.bytes += bytes;
        entries.all.insert(key.into(), entry);
    }

    /// Forgets a verdict.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut entries = self.entries.borrow_mut();
        if entries.all.remove(key).is_some() {
            entries.bytes = entries.bytes.saturating_sub(key.len() + ENTRY);
        }
    }

    /// Takes note that nobody asks for a verdict again any more, and leaves it as it is.
    pub(super) fn keep(&self, key: &[u8]) {
        if let Some(entry) = self.entries.borrow_mut().all.get_mut(key) {
            entry.is_asked = false;
        }
    }
}

impl Entries {
    fn make_room(&mut self, bytes: usize, now: u64) {
        self.all.retain(|_, entry| entry.fresh > now);
        self.bytes = self.all.keys().map(|key| key.len() + ENTRY).sum();
        // Half of the room has to come free, or else the next verdict looks at all of them again.
        if self.all.len() > MOST / 2 || self.bytes + bytes > MOST_BYTES / 2 {
            self.all.clear();
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, MOST, Table};

    #[test]
    fn verdicts_are_fresh_then_stale_then_over() {
        let table = Table::default();
        table.put(b"a", 200, false, (100, 1000), 0);
        assert_eq!((table.look(b"a", 99, false), table.look(b"a", 99, true)), (Known::Passes, Known::Passes));
        assert_eq!(table.look(b"a", 100, true), Known::Nothing);
        // One asks again, and the others pass meanwhile.
        assert_eq!((table.look(b"a", 100, false), table.look(b"a", 101, false)), (Known::Stale, Known::Passes));
        table.keep(b"a");
        assert_eq!(table.look(b"a", 102, false), Known::Stale);
        assert_eq!(
            (table.look(b"a", 1000, false), table.last(b"a", 999), table.last(b"a", 1000)),
            (Known::Nothing, Some(true), None)
        );
        table.put(b"b", 409, true, (100, 1000), 0);
        assert_eq!((table.look(b"b", 99, false), table.look(b"b", 99, true)), (Known::Nothing, Known::Refused(true)));
        assert_eq!((table.last(b"b", 99), table.look(b"b", 100, true)), (Some(false), Known::Nothing));
        table.forget(b"b");
        assert_eq!(table.last(b"b", 1), None);
    }

    #[test]
    fn verdicts_have_a_bound() {
        let table = Table::default();
        for number in 0..MOST + 10 {
            table.put(number.to_string().as_bytes(), 200, false, (1000, 2000), 0);
        }
        assert!(table.entries.borrow().all.len() <= MOST);
        assert_eq!(table.look((MOST + 9).to_string().as_bytes(), 1, true), Known::Passes);
    }
}
