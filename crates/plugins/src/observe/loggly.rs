//! `loggly`: entries about exchanges, to SolarWinds Loggly.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, View};
use weir_telemetry::reports::{Check, Destination, Endpoints, Frame, Post, Udp};

use super::batch::BatchConf;
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::syslog_message::{USER, push_head, push_parameter};

/// The definition.
#[derive(Debug)]
pub(crate) struct Loggly;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The customer token of the account.
    #[schemars(length(min = 1))]
    customer_token: String,
    /// Severity of the messages.
    #[serde(default)]
    severity: Severity,
    /// Severities by the status of the answer, such as `"503": ERR`.
    #[serde(default)]
    severity_map: BTreeMap<String, Severity>,
    /// Tags of the messages.
    #[serde(default = "tags")]
    #[schemars(length(min = 1))]
    tags: Vec<String>,
    /// Verifies the certificate of the service where `protocol` is `https`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

/// A severity of syslog (RFC 5424 section 6.2.1), in letters of one case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline, extend("enum" = ["EMEGR", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG", "emegr", "alert", "crit", "err", "warning", "notice", "info", "debug"]))]
#[allow(missing_docs, reason = "the words of syslog; EMEGR is what APISIX calls an emergency")]
pub(crate) enum Severity {
    #[serde(alias = "emegr")]
    Emegr = 0,
    #[serde(alias = "alert")]
    Alert = 1,
    #[serde(alias = "crit")]
    Crit = 2,
    #[serde(alias = "err")]
    Err = 3,
    #[serde(alias = "warning")]
    Warning = 4,
    #[serde(alias = "notice")]
    Notice = 5,
    #[default]
    #[serde(alias = "info")]
    Info = 6,
    #[serde(alias = "debug")]
    Debug = 7,
}

/// `plugin_metadata` of the plugin, beside that of all loggers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Name or address of the service; with `http` and `https` perhaps with a port behind it.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port, for `syslog`.
    port: u16,
    /// `syslog`: a datagram for each message. `http` and `https`: batches to the API for bulk uploads.
    protocol: Protocol,
    /// Milliseconds for a request, with `http` and `https`.
    #[schemars(range(min = 1))]
    timeout: u64,
    #[serde(flatten)]
    logger: LoggerMetadata,
}

impl Default for Metadata {
    fn default() -> Self {
        let (host, port) = ("logs-01.loggly.com".to_owned(), 514);
        Self { host, port, protocol: Protocol::default(), timeout: 5000, logger: LoggerMetadata::default() }
    }
}

/// The way to the service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Protocol {
    #[default]
    Syslog,
    Http,
    Https,
}

fn yes() -> bool {
    true
}

fn tags() -> Vec<String> {
    vec!["apisix".to_owned()]
}

impl Define for Loggly {
    const NAME: &'static str = "loggly";
    const PRIORITY: i32 = 411;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to Loggly: as the text of a message of syslog over UDP, with the token and the \
tags as structured data, or in batches with POST (`protocol` in `plugin_metadata`).

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`; and where the service is: `host`, `port`, `protocol` and `timeout`.";
    const EXAMPLE: &'static str = "\
customer_token: 0e6fe4bf-376e-40f4-b25f-1d55cb29f5a2
tags: [shop]
severity_map: {\"503\": ERR}
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["customer_token"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        typed.logger.formats.check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { customer_token, severity, ssl_verify, .. } = conf;
        let is_token = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_token(&customer_token) {
            cx.say([Invalid::new("customer_token", "expected letters, digits and '-'")]);
            return None;
        }
        let is_tag = |tag: &String| {
            !tag.is_empty() && !tag.starts_with("tag=") && tag.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        if let Some(at) = conf.tags.iter().position(|tag| !is_tag(tag)) {
            cx.say([Invalid::new(
                format!("tags[{at}]"),
                "expected a tag of printable ASCII, without 'tag=' ahead of it",
            )]);
            return None;
        }
        let tags = conf.tags;
        let mut severities = Vec::new();
        for (status, severity) in &conf.severity_map {
            match status.parse::<u16>() {
                Ok(number @ 100..=599) if status.len() == 3 => severities.push((number, *severity as u8)),
                _ => {
                    cx.say([Invalid::new(
                        "severity_map",
                        format!("expected statuses from 100 to 599, found '{status}'"),
                    )]);
                    return None;
                }
            }
        }
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, build| {
            let Metadata { host, port, protocol, timeout, .. } = build.metadata()?;
            let scheme = match protocol {
                Protocol::Syslog => {
                    let mut data = format!(" - [{customer_token}@41058").into_bytes();
                    tags.iter().for_each(|tag| push_parameter("tag", tag, &mut data));
                    data.extend_from_slice(b"] ");
                    let message = Form::Message { severity: severity as u8, severities, data };
                    return Ok((Destination::Udp(Udp { host, port }), Frame::Lengths, message));
                }
                Protocol::Http => "http",
                Protocol::Https => "https",
            };
            let host = host.trim_end_matches('/');
            let base = if host.contains("://") { host.to_owned() } else { format!("{scheme}://{host}") };
            let fields = vec![
                ("Content-Type".to_owned(), "application/json".to_owned()),
                ("X-LOGGLY-TAG".to_owned(), tags.join(",")),
            ];
            let uri = format!("{base}/bulk/{customer_token}/tag/bulk");
            let post = Post { uri, fields, timeout: Duration::from_millis(timeout), verify: ssl_verify };
            let to = Endpoints { posts: vec![post], check: Check::Success };
            Ok((Destination::Endpoints(to), Frame::Lines, Form::Entry))
        })
    }
}

/// The form of an entry.
#[derive(Debug)]
enum Form {
    /// As it is, for bulk uploads.
    Entry,
    /// As a message of syslog.
    Message {
        severity: u8,
        /// Severities by status.
        severities: Vec<(u16, u8)>,
        /// Id of the message, and structured data.
        data: Vec<u8>,
    },
}

impl Render for Form {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        if let Self::Message { severity, severities, data } = self {
            let status = x.response().status();
            let mapped = severities.iter().find(|(of, _)| *of == status).map_or(*severity, |(_, mapped)| *mapped);
            push_head(USER, mapped, x, out);
            out.extend_from_slice(data);
        }
        entry.write(x, bodies, out);
    }
}
