//! Usage of a request: what is added to which metric.

use weir_wire::query;

/// Additions by number of the metric, in the order of the numbers.
#[derive(Debug, Default)]
pub(super) struct Usage(Vec<(u16, i64)>);

impl Usage {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// True if nothing is used.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds to a metric.
    pub(super) fn add(&mut self, metric: u16, delta: i64) {
        match self.0.binary_search_by_key(&metric, |(known, _)| *known) {
            Ok(at) => {
                if let Some((_, sum)) = self.0.get_mut(at) {
                    *sum = sum.saturating_add(delta);
                }
            }
            Err(at) => self.0.insert(at, (metric, delta)),
        }
    }

    /// Drops metrics to which nothing is added, as APIcast does.
    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|(_, sum)| *sum > 0);
    }

    /// Appends the additions as arguments of a question: `usage%5Bhits%5D=1`.
    pub(super) fn write(&self, metrics: &Metrics, out: &mut Vec<u8>) {
        for (at, (metric, sum)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(b"usage%5B");
            out.extend_from_slice(metrics.name(*metric));
            out.extend_from_slice(b"%5D=");
            weir_wire::push_number(out, sum.unsigned_abs());
        }
    }

    /// Appends the additions for a report: `hits=1`.
    pub(super) fn write_report(&self, metrics: &Metrics, out: &mut Vec<u8>) {
        for (at, (metric, sum)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(metrics.name(*metric));
            out.push(b'=');
            weir_wire::push_number(out, sum.unsigned_abs());
        }
    }
}

/// Names of metrics, encoded for arguments, in order.
#[derive(Debug, Default)]
pub(super) struct Metrics(Box<[Box<[u8]>]>);

impl Metrics {
    /// The names, each once.
    pub(super) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let mut names: Vec<Box<[u8]>> = names.map(encoded).collect();
        names.sort();
        names.dedup();
        Self(names.into())
    }

    /// The number of a metric.
    pub(super) fn number(&self, name: &str) -> Option<u16> {
        let at = self.0.binary_search(&encoded(name)).ok()?;
        u16::try_from(at).ok()
    }

    fn name(&self, number: u16) -> &[u8] {
        self.0.get(usize::from(number)).map_or(&[], |name| name)
    }
}

/// A text encoded for the name or the value of an argument. Brackets are encoded, for they are a part of names.
pub(super) fn encoded(text: &str) -> Box<[u8]> {
    let mut out = Vec::new();
    encode(text.as_bytes(), &mut out);
    out.into()
}

/// Appends a text encoded for the name or the value of an argument.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    query::encode(text, out);
    let has_brackets = out.get(begin..).unwrap_or_default().iter().any(|byte| matches!(byte, b'[' | b']'));
    if has_brackets {
        let part = out.split_off(begin);
        for byte in part {
            match byte {
                b'[' => out.extend_from_slice(b"%5B"),
                b']' => out.extend_from_slice(b"%5D"),
                other => out.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Usage};

    #[test]
    fn usage_is_added_and_written_in_order() {
        let metrics = Metrics::new(["visits", "hits", "a b", "hits"].into_iter());
        let number = |name: &str| metrics.number(name).expect("a metric");
        let mut usage = Usage::default();
        for (name, delta) in [("visits", 2), ("hits", 1), ("hits", 3), ("a b", 0)] {
            usage.add(number(name), delta);
        }
        usage.drop_empty();
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(text(&|out| usage.write(&metrics, out)), "usage%5Bhits%5D=4&usage%5Bvisits%5D=2");
        assert_eq!(text(&|out| usage.write_report(&metrics, out)), "hits=4&visits=2");
        usage.add(number("hits"), -4);
        usage.drop_empty();
        assert_eq!(text(&|out| usage.write_report(&metrics, out)), "visits=2");
        assert_eq!(metrics.number("none"), None);
    }
}
