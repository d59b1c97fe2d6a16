//! Rules of a plan that its schema cannot state.

use super::Loader;
use super::rules::field;
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::Node;

/// Reports limits that count in the same place, or what the plan does not have.
pub(super) fn check(loader: &mut Loader<'_>, node: &Node, path: &str) {
    let limits = node.get("limits").and_then(Node::as_seq).unwrap_or_default();
    let text = |limit: &Node, name: &str, default: &'static str| {
        limit.get(name).map_or(default.to_owned(), |value| value.to_json().as_str().unwrap_or_default().to_owned())
    };
    let of = |limit: &Node| {
        let of = [("per", ""), ("window", "fixed"), ("scope", "plan"), ("metric", "")];
        of.map(|(name, default)| text(limit, name, default))
    };
    let metrics = node.get("metrics").and_then(Node::as_seq).unwrap_or_default();
    for (at, limit) in limits.iter().enumerate() {
        let [per, window, _, metric] = of(limit);
        let mut fault = |mark, name: &str, what| {
            let path = field(path, &format!("limits[{at}]{name}"));
            loader.found.push(Diagnostic::error(mark, path, Code::Expected { what }));
        };
        if !metric.is_empty() && metrics.iter().all(|known| text(known, "name", "") != metric) {
            fault(limit.mark_of("metric"), ".metric", "the name of an entry of metrics");
        }
        if window == "sliding" && matches!(per.as_str(), "week" | "month" | "year") {
            fault(limit.mark_of("window"), ".window", "fixed or calendar for a period longer than a day");
        }
        if limits.iter().take(at).any(|other| of(other) == of(limit)) {
            fault(limit.mark, "", "one limit of each per, window, scope and metric: two would count in the same place");
        }
    }
    for (at, metric) in metrics.iter().enumerate() {
        let name = text(metric, "name", "");
        if metrics.iter().take(at).any(|other| text(other, "name", "") == name) {
            let (mark, path) = (metric.mark_of("name"), field(path, &format!("metrics[{at}].name")));
            let what = "one metric of each name";
            loader.found.push(Diagnostic::error(mark, path, Code::Expected { what }));
        }
    }
}
