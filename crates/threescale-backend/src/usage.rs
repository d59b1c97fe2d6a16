//! Usage that calls report or ask for, with what parents of metrics use by it.

use serde_json::{Map, Value};

use crate::catalog::Indexed;
use crate::fault::Fault;

/// Change of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// So much is added.
    Add(u64),
    /// The count is so much: `#5`.
    Set(u64),
}

impl Amount {
    /// The count after it.
    pub(crate) fn applied_to(self, count: u64) -> u64 {
        match self {
            Self::Add(units) => count.saturating_add(units),
            Self::Set(units) => units,
        }
    }
}

/// Usage of metrics, by position, each metric once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage(Vec<(usize, Amount)>);

impl Usage {
    /// Reads `usage[METRIC]=N`. With `is_flat` the caller has added what methods use to their parents already.
    pub(crate) fn read(service: &Indexed, given: &Map<String, Value>, is_flat: bool) -> Result<Self, Fault> {
        let mut usage = Self::default();
        for (name, value) in given {
            let name = name.trim();
            let amount = amount(name, value)?;
            let metric = service.metric(name).ok_or_else(|| Fault::MetricInvalid(name.to_owned()))?;
            usage.put(metric, amount);
        }
        if is_flat {
            return Ok(usage);
        }
        for (metric, amount) in usage.0.clone() {
            for parent in service.ancestors(metric) {
                let together = match (amount, usage.of(parent)) {
                    (Amount::Add(units), Some(Amount::Add(before))) => Amount::Add(before.saturating_add(units)),
                    (amount, _) => amount,
                };
                usage.put(parent, together);
            }
        }
        Ok(usage)
    }

    fn put(&mut self, metric: usize, amount: Amount) {
        match self.0.iter_mut().find(|(other, _)| *other == metric) {
            Some((_, before)) => *before = amount,
            None => self.0.push((metric, amount)),
        }
    }

    /// The usage of a metric.
    pub(crate) fn of(&self, metric: usize) -> Option<Amount> {
        self.0.iter().find(|(other, _)| *other == metric).map(|(_, amount)| *amount)
    }
}

/// The amount that a text stands for.
fn amount(metric: &str, value: &Value) -> Result<Amount, Fault> {
    let invalid =
        |value: Option<&str>| Fault::UsageValueInvalid { metric: metric.to_owned(), value: value.map(str::to_owned) };
    let text = value.as_str().filter(|text| !text.trim().is_empty()).ok_or_else(|| invalid(None))?;
    let (is_set, digits) = match text.trim().strip_prefix('#') {
        Some(digits) => (true, digits),
        None => (false, text.trim()),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid(Some(text)));
    }
    // More than that is as good as infinite.
    let units = digits.parse().unwrap_or(u64::MAX);
    Ok(if is_set { Amount::Set(units) } else { Amount::Add(units) })
}

#[cfg(test)]
mod tests {
    use super::{Amount, Usage};
    use crate::catalog::{Catalog, Indexed};
    use crate::fault::Fault;
    use crate::model::{Metric, Record, Service};
    use serde_json::json;

    /// `hits` over `search` over `search.deep`, and `hits` over `list`.
    fn catalog() -> Catalog {
        let metric = |id: &str, parent: Option<&str>| Metric {
            id: id.to_owned(),
            name: id.to_owned(),
            parent_id: parent.map(str::to_owned),
        };
        let metrics = vec![
            metric("hits", None),
            metric("search", Some("hits")),
            metric("deep", Some("search")),
            metric("list", Some("hits")),
            metric("loop", Some("round")),
            metric("round", Some("loop")),
        ];
        Catalog::of([Record::Service(Service { id: "s".into(), metrics, ..Service::default() })])
    }

    fn read(service: &Indexed, usage: &serde_json::Value, is_flat: bool) -> Result<Vec<(String, Amount)>, Fault> {
        let usage = Usage::read(service, usage.as_object().expect("an object"), is_flat)?;
        let named = usage.0.into_iter().map(|(metric, amount)| (service.metric_name(metric).to_owned(), amount));
        let mut named: Vec<_> = named.collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(named)
    }

    #[test]
    fn parents_use_what_their_methods_use() {
        use Amount::{Add, Set};
        let catalog = catalog();
        let service = catalog.known("s").expect("the service");
        for (usage, is_flat, expected) in [
            (json!({"deep": "2"}), false, vec![("deep", Add(2)), ("hits", Add(2)), ("search", Add(2))]),
            (json!({"deep": "2"}), true, vec![("deep", Add(2))]),
            (
                json!({"deep": "2", "list": " 3 ", "hits": "1"}),
                false,
                vec![("deep", Add(2)), ("hits", Add(6)), ("list", Add(3)), ("search", Add(2))],
            ),
            (
                json!({"search": "#5", "list": "#7"}),
                false,
                vec![("hits", Set(7)), ("list", Set(7)), ("search", Set(5))],
            ),
            (json!({"hits": "#5", "list": "1"}), false, vec![("hits", Add(1)), ("list", Add(1))]),
            (json!({"hits": "99999999999999999999999"}), false, vec![("hits", Add(u64::MAX))]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
            assert_eq!(read(service, &usage, is_flat), Ok(expected), "{usage}");
        }
        // A circle of parents ends.
        assert_eq!(read(service, &json!({"loop": "1"}), false).map(|usage| usage.len()), Ok(2));
        for (usage, text) in [
            (json!({"nukes": "1"}), "metric \"nukes\" is invalid"),
            (json!({"hits": "tons!"}), "usage value \"tons!\" for metric \"hits\" is invalid"),
            (json!({"hits": "-1"}), "usage value \"-1\" for metric \"hits\" is invalid"),
            (json!({"hits": "#"}), "usage value \"#\" for metric \"hits\" is invalid"),
            (json!({"hits": " "}), "usage value for metric \"hits\" can not be empty"),
            (json!({"hits": null}), "usage value for metric \"hits\" can not be empty"),
        ] {
            assert_eq!(read(service, &usage, false).map_err(|fault| fault.to_string()), Err(text.to_owned()));
        }
    }
}
