//! Totals since the start of the process, for the metrics.

use std::collections::HashMap;

use weir_telemetry::metrics::Label;

use crate::recording::Record;

/// Totals by API and class of status. APIs beyond the bound share one line.
#[derive(Debug)]
pub(crate) struct Totals {
    most: usize,
    apis: HashMap<Label, [[u64; 3]; 5]>,
    /// Requests whose caller found no series of its own.
    pub(crate) folded: u64,
}

impl Totals {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, apis: HashMap::new(), folded: 0 }
    }

    pub(crate) fn add(&mut self, record: &Record, folded: u64) {
        self.folded += folded;
        let is_new = !self.apis.contains_key(&record.api);
        let api = if is_new && self.apis.len() >= self.most { Label::OTHER } else { record.api };
        let class = usize::from((record.status / 100).clamp(1, 5)) - 1;
        if let Some(sums) = self.apis.entry(api).or_default().get_mut(class) {
            for (sum, number) in sums.iter_mut().zip([1, record.received, record.sent]) {
                *sum = sum.wrapping_add(number);
            }
        }
    }

    /// Hands over each API, class of status, and the sums of requests, bytes received and bytes sent.
    pub(crate) fn each(&self, tell: &mut dyn FnMut(Label, u8, [u64; 3])) {
        let mut apis: Vec<_> = self.apis.iter().collect();
        apis.sort_unstable_by_key(|(api, _)| **api);
        for (api, classes) in apis {
            for (class, sums) in (1..).zip(classes).filter(|(_, sums)| sums.iter().any(|sum| *sum > 0)) {
                tell(*api, class, *sums);
            }
        }
    }
}
