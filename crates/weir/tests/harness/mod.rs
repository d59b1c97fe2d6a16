//! Peers of the black-box tests: the real binary, origins, raw clients.

mod any_client;
mod certificate;
mod client;
mod etcd;
mod gateway;
mod haproxy;
mod http2;
mod http2_origin;
mod kafka;
mod message;
mod nginx;
mod origin;
mod otlp;
mod process;
mod receiver;
mod redis;
mod relay;
mod tinyproxy;

pub(crate) use any_client::{AnyClient, Protocol, over_both};
pub(crate) use certificate::{Authority, Certificate, Kind};
pub(crate) use client::{RawClient, chunked, get, post};
pub(crate) use etcd::EtcdCluster;
pub(crate) use gateway::{ADMIN_KEY, Gateway, Page, Reload, Start, replace, weir};
pub(crate) use haproxy::Haproxy;
pub(crate) use http2::{Frame, H2Client};
pub(crate) use http2_origin::{H2Connection, News, h2_echo, h2_origin};
pub(crate) use kafka::Kafka;
pub(crate) use message::{Fault, Fields, Framing, Request, Response};
pub(crate) use nginx::{Nginx, free_port};
pub(crate) use origin::{Answer, Connection, Full, Origin, Refusing};
pub(crate) use otlp::Otlp;
pub(crate) use process::{Process, binary, companion, made_with_go, program, put_program, repository, timed};
pub(crate) use receiver::Receiver;
pub(crate) use redis::{Redis, RedisCluster, Sentinels};
pub(crate) use relay::Relay;
pub(crate) use tinyproxy::{Tinyproxy, USER as PROXY_USER};

use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every wait, long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Polls until there is a result, and fails after `limit`.
pub(crate) fn wait_until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(outcome) = look() {
            return outcome;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A configuration with one route for everything, to these nodes with weight 1.
pub(crate) fn route_to<'a>(nodes: impl IntoIterator<Item = &'a String>) -> serde_json::Value {
    route_with(serde_json::json!({}), serde_json::json!({ "nodes": weighted(nodes) }))
}

/// A configuration with one route for everything, with further fields, to this upstream.
pub(crate) fn route_with(fields: serde_json::Value, upstream: serde_json::Value) -> serde_json::Value {
    let mut route = serde_json::json!({ "id": "all", "uri": "/*" });
    route["upstream"] = upstream;
    let serde_json::Value::Object(fields) = fields else { panic!("fields are an object") };
    route.as_object_mut().expect("a route is an object").extend(fields);
    serde_json::json!({ "routes": [route] })
}

/// Nodes with weight 1.
pub(crate) fn weighted<'a>(nodes: impl IntoIterator<Item = &'a String>) -> serde_json::Value {
    nodes.into_iter().map(|node| (node.clone(), serde_json::Value::from(1))).collect()
}

/// Runs each case on a thread of its own, a few at a time, and fails with the names of all that failed.
pub(crate) fn each<T: Sync>(cases: &[T], name: impl Fn(&T) -> String + Sync, test: impl Fn(&T) + Sync) {
    const AT_ONCE: usize = 8;
    let mut failed = Vec::new();
    for group in cases.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> = group.iter().map(|case| (case, scope.spawn(|| test(case)))).collect();
            for (case, thread) in running {
                if let Err(panic) = thread.join() {
                    failed.push(format!("{}: {}", name(case), message_of(&*panic)));
                }
            }
        });
    }
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// The message of a panic.
fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
