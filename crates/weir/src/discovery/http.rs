//! Lists of nodes in JSON at a URL: those that upstreams name, asked for one by one now and then, and at once where there is
//! a new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use weir_config::{DiscoveryArgs, DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::asker::{Asker, Failures};
use super::node;

/// Limits of a question.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(5);
/// Seconds between two questions unless told.
const INTERVAL: u32 = 60;

/// A list that is asked for.
struct Asked {
    due: Instant,
    failures: Failures,
}

/// Asks for ever.
pub(super) async fn follow(services: Arc<Services>, trusted: String) {
    let asker = Arc::new(Asker::with(&trusted, true, CONNECT, ANSWER));
    let mut wanted = services.wanted();
    let mut asked: BTreeMap<Service, Asked> = BTreeMap::new();
    loop {
        let all = Arc::clone(&wanted.borrow_and_update());
        let mine: BTreeSet<Service> =
            all.iter().filter(|service| service.registry == DiscoveryType::Http).cloned().collect();
        services.retain(DiscoveryType::Http, &mine);
        asked.retain(|service, _| mine.contains(service));
        for service in mine {
            let entry = asked
                .entry(service.clone())
                .or_insert_with(|| Asked { due: Instant::now(), failures: Failures::of("http", &service.name) });
            if Instant::now() < entry.due {
                continue;
            }
            let args = service.args.as_deref().cloned().unwrap_or_default();
            let interval = Duration::from_secs(args.interval.unwrap_or(INTERVAL).max(1).into());
            let (question, url) = (Arc::clone(&asker), service.name.clone());
            let answer = spawn_blocking(move || question.get(&url, &[], Duration::ZERO)).await;
            let found = match answer {
                Ok(Ok(answer)) => nodes(&answer.body, &args),
                Ok(Err(error)) => Err(error),
                Err(error) => Err(error.to_string()),
            };
            match found {
                Ok(nodes) => {
                    entry.failures.end();
                    services.report_one("", &service, nodes);
                }
                Err(error) => {
                    entry.failures.note(&error);
                    services.report_failure(DiscoveryType::Http, Some(&service));
                }
            }
            entry.due = Instant::now() + interval;
        }
        let due = asked.values().map(|asked| asked.due).min();
        let changed = match due {
            Some(due) => timeout(due.saturating_duration_since(Instant::now()), wanted.changed()).await.ok(),
            None => Some(wanted.changed().await),
        };
        if changed.is_some_and(|changed| changed.is_err()) {
            return;
        }
        // A moment between two rounds, whatever the configuration does.
        sleep_until(tokio::time::Instant::now() + Duration::from_millis(50)).await;
    }
}

/// The nodes in an answer.
///
/// # Errors
/// There is none, so that those before stay in use.
fn nodes(answer: &Value, args: &DiscoveryArgs) -> Result<Vec<NodeAddr>, String> {
    let parent = args.parent_path.as_deref().unwrap_or_default();
    let nested = args.nested.unwrap_or_default();
    let mut found: Vec<NodeAddr> = Vec::new();
    let mut take = |entry: &Value| {
        if let Some(next) = host_of(entry, args) {
            match found.iter_mut().find(|known| known.host == next.host && known.port == next.port) {
                Some(known) => known.weight += 1,
                None => found.push(next),
            }
        }
    };
    // A list in the answer, or in a text of it; else the answer itself is the only entry.
    let text =
        |value: &Value| at(value, parent).and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    match answer {
        Value::Array(entries) => {
            for entry in entries {
                match nested {
                    true => text(entry).iter().for_each(&mut take),
                    false => take(entry),
                }
            }
        }
        _ if nested => match text(answer) {
            Some(Value::Array(entries)) => entries.iter().for_each(&mut take),
            Some(inner) => take(&inner),
            None => {}
        },
        _ if args.all.unwrap_or_default() && !parent.is_empty() => match at(answer, parent) {
            Some(Value::Array(entries)) => entries.iter().for_each(&mut take),
            Some(Value::Object(entries)) => entries.values().for_each(&mut take),
            _ => {}
        },
        _ => take(answer),
    }
    if !args.all.unwrap_or_default() {
        found.truncate(1);
    }
    if found.is_empty() { Err("the answer has no nodes".to_owned()) } else { Ok(found) }
}

/// The value at a path of names and numbers with dots between them.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => value.get(name),
    })
}

/// The node of an entry: a host, a host with a port, or a URL; the port may stand elsewhere in it.
fn host_of(entry: &Value, args: &DiscoveryArgs) -> Option<NodeAddr> {
    let host = at(entry, args.data_path.as_deref().unwrap_or_default())?.as_str()?;
    let (default, rest) = match host.split_once("://") {
        Some((scheme, rest)) => (if matches!(scheme, "https" | "wss" | "grpcs") { 443 } else { 80 }, rest),
        None => (80, host),
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, own) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse::<u16>().ok()),
        _ => (authority, None),
    };
    let elsewhere = args.port_path.as_deref().filter(|path| !path.is_empty()).map(|path| at(entry, path));
    let port = match elsewhere {
        None => own.unwrap_or(default),
        Some(found) => {
            let found = found.map(|found| found.as_array().and_then(|list| list.first()).unwrap_or(found))?;
            let number = found.as_f64().map(|port| port as u64).or_else(|| found.as_str()?.parse().ok())?;
            u16::try_from(number).ok()?
        }
    };
    node(host, port, 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_are_found_in_answers_of_many_forms() {
        let args = |json: Value| serde_json::from_value::<DiscoveryArgs>(json).expect("arguments");
        let consul =
            json!([{"Address": "10.0.0.1", "ServicePort": 8080}, {"Address": "10.0.0.2", "ServicePort": [8081]}]);
        let etcd = json!({"node": {"value": "{\"hostname\": \"http://a.test:81/x\", \"port\": \"82\"}"}});
        let inner = json!({"node": {"value": "[{\"host\": \"10.0.0.3:1\"}, {\"host\": \"10.0.0.3:1\"}]"}});
        let listed = json!({"data": {"nodes": {"a": {"h": "10.0.0.4"}, "b": {"h": "[::1]:7"}}}});
        for (answer, arguments, expected) in [
            (
                &consul,
                json!({"data_path": "Address", "port_path": "ServicePort", "all": true}),
                "10.0.0.1:8080 10.0.0.2:8081",
            ),
            (&consul, json!({"data_path": "Address", "port_path": "ServicePort"}), "10.0.0.1:8080"),
            (&consul, json!({"data_path": "Address", "all": true}), "10.0.0.1:80 10.0.0.2:80"),
            (&etcd, json!({"nested": true, "parent_path": "node.value", "data_path": "hostname"}), "a.test:81"),
            (
                &etcd,
                json!({"nested": true, "parent_path": "node.value", "data_path": "hostname", "port_path": "port"}),
                "a.test:82",
            ),
            (
                &inner,
                json!({"nested": true, "parent_path": "node.value", "data_path": "host", "all": true}),
                "10.0.0.3:1",
            ),
            (&listed, json!({"parent_path": "data.nodes", "data_path": "h", "all": true}), "10.0.0.4:80 [::1]:7"),
            (&json!({"a": [{"h": "x.test"}]}), json!({"data_path": "a.0.h"}), "x.test:80"),
        ] {
            let found = nodes(answer, &args(arguments.clone())).expect("nodes");
            let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(shown.join(" "), expected, "{answer} {arguments}");
        }
        for (answer, arguments) in
            [(json!({}), json!({"data_path": "a"})), (json!([]), json!({})), (json!("x"), json!({"data_path": "a"}))]
        {
            assert!(nodes(&answer, &args(arguments)).is_err(), "{answer}");
        }
    }
}
