//! Requests to etcd and its answers, in the JSON of its HTTP gateway: bytes are base64, numbers are strings, and
//! empty fields are left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Header of every answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
}

/// A key with its value. A range may ask for keys only, and a deletion carries only the key.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pair {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(super) create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeAnswer {
    pub(super) header: Header,
    pub(super) kvs: Vec<Pair>,
    pub(super) more: bool,
    #[serde(deserialize_with = "number")]
    pub(super) count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnAnswer {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<TxnPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnPart {
    pub(super) response_range: Option<RangeAnswer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseAnswer {
    #[serde(rename = "ID")]
    pub(super) id: String,
}

/// Line of the stream of a lease that is kept.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeepAnswer {
    pub(super) result: Kept,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    /// Seconds that the lease has left; 0: there is none any more.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAnswer {
    pub(super) version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Token {
    pub(super) token: String,
}

/// One line of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchLine {
    pub(super) result: Option<WatchAnswer>,
    pub(super) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchAnswer {
    pub(super) header: Header,
    pub(super) created: bool,
    pub(super) canceled: bool,
    #[serde(deserialize_with = "number")]
    pub(super) compact_revision: u64,
    pub(super) cancel_reason: String,
    /// True if the next line brings more events of the same answer.
    pub(super) fragment: bool,
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchEvent {
    #[serde(rename = "type")]
    pub(super) kind: EventKind,
    pub(super) kv: Pair,
    /// Previous pair, if the request asked for it.
    pub(super) prev_kv: Option<Pair>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventKind {
    #[default]
    Put,
    Delete,
}

/// Body of an error response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fault {
    pub(super) error: Value,
    pub(super) message: String,
}

impl Fault {
    /// Error text in etcd's words.
    pub(super) fn text(self) -> String {
        if !self.message.is_empty() {
            return self.message;
        }
        stream_fault(&self.error)
    }
}

/// Text under `error`: a string, or for a stream an object with a message.
pub(super) fn stream_fault(error: &Value) -> String {
    let text = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
    text.map_or_else(|| error.to_string(), str::to_owned)
}

/// Range of all keys that begin with a prefix; the prefix ends in a slash.
pub(super) fn under(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({ "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end) })
}

/// Bytes in base64, as in the JSON messages.
pub(super) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Adds fields to a message.
pub(super) fn with(mut message: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (message.as_object_mut(), more) {
        fields.extend(more);
    }
    message
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().map_err(D::Error::custom),
        Value::Number(number) => number.as_u64().ok_or_else(|| D::Error::custom("not a number from 0")),
        _ => Err(D::Error::custom("not a number")),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::{EventKind, Fault, RangeAnswer, WatchLine, under};

    #[test]
    fn answers_are_read() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"7","raft_term":"2"},
            "kvs":[{"key":"L2E=","create_revision":"3","mod_revision":"7","version":"2","value":"e30="}],"count":"1"}"#;
        let range: RangeAnswer = serde_json::from_str(text).expect("a range");
        assert_eq!((range.header.cluster_id, range.header.revision), (14_841_639_068_965_178_418, 7));
        assert_eq!((range.more, range.count), (false, 1));
        assert_eq!((range.kvs[0].key.as_slice(), range.kvs[0].value.as_slice()), (&b"/a"[..], &b"{}"[..]));
        assert_eq!((range.kvs[0].create_revision, range.kvs[0].mod_revision), (3, 7));
    }

    #[test]
    fn lines_of_a_watch_are_read() {
        let text = r#"{"result":{"header":{"revision":"9"},"events":[{"kv":{"key":"L2E=","mod_revision":"9"}},{"type":"DELETE","kv":{"key":"L2I="}}]}}"#;
        let line: WatchLine = serde_json::from_str(text).expect("a line");
        let kinds: Vec<_> = line.result.expect("a result").events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Put, EventKind::Delete]);
    }

    #[test]
    fn faults_keep_etcds_words() {
        let cases = [
            (r#"{"error":"etcdserver: permission denied","code":7}"#, "etcdserver: permission denied"),
            (r#"{"error":"a","code":7,"message":"b"}"#, "b"),
            (r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#, "etcdserver: no leader"),
        ];
        for (text, expected) in cases {
            let fault: Fault = serde_json::from_str(text).expect("a fault");
            assert_eq!(fault.text(), expected);
        }
    }

    #[test]
    fn a_range_ends_behind_its_prefix() {
        let range = under("/apisix/");
        assert_eq!(range["key"], super::encoded("/apisix/"));
        assert_eq!(range["range_end"], super::encoded("/apisix0"));
    }
}
