//! `tencent-cloud-cls`: entries about exchanges, to Tencent Cloud's log service (CLS).

use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, Service, ServiceOptions, View, hostname};
use weir_telemetry::reports::{Combine, Destination, Frame, Post, Signature};

use super::batch::BatchConf;
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::trace::otlp::{BYTES, key, nested, push_bytes, push_number};
use crate::hex;

/// Path of the API for structured logs.
const PATH: &str = "/structuredlog";
/// Limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds for which a signature is good.
const GOOD: u64 = 60;
/// Most bytes of a value; the service takes no more.
const MOST_VALUE: usize = 1 << 20;

/// The definition.
#[derive(Debug)]
pub(crate) struct TencentCloudCls;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Host of the API, perhaps with a port.
    #[schemars(length(min = 1))]
    cls_host: String,
    /// Id of the topic.
    cls_topic: String,
    /// The way to the API.
    #[serde(default)]
    scheme: Scheme,
    /// Verifies the certificate of the API, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Id of the key of the account.
    secret_id: String,
    /// The key of the account.
    secret_key: String,
    /// Share of the exchanges that are reported.
    #[serde(default = "one")]
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// Fields that every entry has, with values that take precedence.
    #[serde(default)]
    global_tag: Map<String, Json>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

/// The way to the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Scheme {
    Http,
    #[default]
    Https,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

impl Define for TencentCloudCls {
    const NAME: &'static str = "tencent-cloud-cls";
    const PRIORITY: i32 = 397;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry about every exchange, or about a share of them (`sample_ratio`), to a topic of Tencent Cloud's log service: each \
field of the entry is one of the log, objects in JSON. A value of more than 1 MiB is cut. The source of a log is the name of the \
gateway's host.

Requests are signed with the account's key for 60 seconds, and have 10 seconds.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
cls_host: ap-guangzhou.cls.tencentyun.com
cls_topic: 7b6d1b1b-3b6c-4a5e-9f0e-2b8f8d1c0a11
secret_id: id
secret_key: secret
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["secret_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let scheme = if conf.scheme == Scheme::Http { "http" } else { "https" };
        let is_topic = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_topic(&conf.cls_topic) {
            cx.say([Invalid::new("cls_topic", "expected letters, digits and '-'")]);
            return None;
        }
        let uri = format!("{scheme}://{}{PATH}?topic_id={}", conf.cls_host, conf.cls_topic);
        cx.ok(Service::parse("cls_host", &uri, ServiceOptions::default()))?;
        let fields = vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())];
        let post = Post { uri, fields, timeout: TIMEOUT, verify: conf.ssl_verify };
        let signature = Signature { id: conf.secret_id, key: conf.secret_key, sign };
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        let mut tags = Vec::new();
        for (name, value) in &conf.global_tag {
            tags.extend_from_slice(format!(",{}:{value}", Json::from(name.as_str())).as_bytes());
        }
        let log = Log { share: conf.sample_ratio, tags };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            Ok((Destination::Signed(post, signature), Frame::Combined(Combine { begin: "".into(), combine }), log))
        })
    }
}

/// An entry as a record: its time in milliseconds since 1970, in eight bytes, and the entry in JSON.
#[derive(Debug)]
struct Log {
    share: f64,
    /// Fields in JSON, each behind a comma.
    tags: Vec<u8>,
}

impl Render for Log {
    fn wants(&self) -> bool {
        self.share >= 1.0 || fastrand::f64() < self.share
    }

    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&x.unix_ms().to_le_bytes());
        entry.write(x, bodies, out);
        // An entry is never empty; of fields with one name the last counts.
        out.pop();
        out.extend_from_slice(&self.tags);
        out.push(b'}');
    }
}

/// Makes a `LogGroupList` of one `LogGroup` of records.
fn combine(records: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>) {
    nested(out, key(1, BYTES), |out| {
        push_bytes(out, 4, hostname().as_bytes());
        for (time, entry) in records.filter_map(|record| record.split_first_chunk::<8>()) {
            let fields: Map<String, Json> = serde_json::from_slice(entry).unwrap_or_default();
            nested(out, key(1, BYTES), |out| {
                push_number(out, 1, u64::from_le_bytes(*time));
                fields.iter().for_each(|(name, value)| push_content(out, name, value));
            });
        }
    });
}

/// Appends a field as a `Content` of a `Log`.
fn push_content(out: &mut Vec<u8>, name: &str, value: &Json) {
    nested(out, key(2, BYTES), |out| {
        push_bytes(out, 1, name.as_bytes());
        match value {
            Json::String(text) => push_bytes(out, 2, cut(text).as_bytes()),
            other => push_bytes(out, 2, cut(&other.to_string()).as_bytes()),
        }
    });
}

/// As much of a text as a value may have.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MOST_VALUE)).unwrap_or_default()
}

/// The value of `Authorization` for a request without arguments and headers that are signed.
fn sign(account: &Signature, now: u64) -> String {
    let mac = |key: &str, text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
        hex::encode(hmac::sign(&key, text.as_bytes()).as_ref())
    };
    let request = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("post\n{PATH}\n\n\n").as_bytes());
    let time = format!("{now};{}", now.saturating_add(GOOD));
    let text = format!("sha1\n{time}\n{}\n", hex::encode(request.as_ref()));
    let signature = mac(&mac(&account.key, &time), &text);
    format!(
        "q-sign-algorithm=sha1&q-ak={}&q-sign-time={time}&q-key-time={time}&q-header-list=&q-url-param-list=&q-signature={signature}",
        account.id
    )
}

#[cfg(test)]
mod tests {
    use super::{cut, sign};
    use weir_telemetry::reports::Signature;

    /// Made by Python's hmac and hashlib by the service's description of signatures.
    #[test]
    fn requests_are_signed() {
        let account = Signature { id: "id".into(), key: "secret".into(), sign };
        assert_eq!(
            sign(&account, 1_700_000_000),
            "q-sign-algorithm=sha1&q-ak=id&q-sign-time=1700000000;1700000060&q-key-time=1700000000;1700000060\
             &q-header-list=&q-url-param-list=&q-signature=27280c5899acaad5ee495d3b7ad903944270262f"
        );
    }

    #[test]
    fn values_are_cut_between_letters() {
        let long = format!("{}ü", "a".repeat((1 << 20) - 1));
        assert_eq!((cut(&long).len(), cut("short")), ((1 << 20) - 1, "short"));
    }
}
