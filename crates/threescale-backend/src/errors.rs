//! Lists of errors, by service, which a service's owner reads.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use crate::fault::Fault;
use crate::period::format;

/// Errors that are kept for a service.
const KEPT: usize = 1000;
/// Bytes of a message that are kept.
const MESSAGE: usize = 512;

/// The last errors of each service.
#[derive(Debug, Default)]
pub(crate) struct ErrorLists(HashMap<String, VecDeque<Entry>>);

#[derive(Debug)]
struct Entry {
    code: &'static str,
    message: String,
    /// Milliseconds since 1970.
    time: u64,
}

impl ErrorLists {
    /// Adds an error, for which the oldest one makes room.
    pub(crate) fn add(&mut self, service: &str, fault: &Fault, time: u64) {
        let mut message = fault.to_string();
        let end = (0..=MESSAGE.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or_default());
        let list = self.0.entry(service.to_owned()).or_default();
        list.truncate(KEPT - 1);
        list.push_front(Entry { code: fault.code(), message, time });
    }

    /// A page of the errors, the latest first; pages count from 1.
    pub(crate) fn page(&self, service: &str, page: usize, per_page: usize) -> Vec<Value> {
        let list = self.0.get(service).into_iter().flatten();
        let from = page.saturating_sub(1).saturating_mul(per_page);
        let entry = |entry: &Entry| {
            let time = format(entry.time).replace("+0000", "UTC");
            json!({ "code": entry.code, "message": entry.message, "timestamp": time, "context_info": {} })
        };
        list.skip(from).take(per_page).map(entry).collect()
    }

    /// The number of errors.
    pub(crate) fn count(&self, service: &str) -> usize {
        self.0.get(service).map_or(0, VecDeque::len)
    }

    /// Forgets the errors of a service.
    pub(crate) fn clear(&mut self, service: &str) {
        self.0.remove(service);
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorLists, Fault, KEPT};

    #[test]
    fn the_last_errors_are_kept() {
        let mut lists = ErrorLists::default();
        for n in 0..KEPT + 5 {
            lists.add("1", &Fault::MetricInvalid(format!("{n}")), 1000);
        }
        lists.add("2", &Fault::MetricInvalid("ä".repeat(600)), 0);
        assert_eq!((lists.count("1"), lists.count("2"), lists.count("3")), (KEPT, 1, 0));
        let page = lists.page("1", 2, 3);
        let messages: Vec<_> = page.iter().map(|entry| entry["message"].as_str().expect("a text")).collect();
        assert_eq!(messages, [1001, 1000, 999].map(|n| format!("metric \"{n}\" is invalid")));
        assert_eq!(page[0]["timestamp"], "1970-01-01 00:00:01 UTC");
        assert!(lists.page("2", 1, 10)[0]["message"].as_str().is_some_and(|text| text.len() <= 512));
        assert!(lists.page("1", 500, 3).is_empty());
        lists.clear("1");
        assert_eq!(lists.count("1"), 0);
    }
}
