//! `google-cloud-logging`: entries about exchanges, to Google Cloud Logging.

mod account;

use std::io::Write;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Value, Variable};
use weir_plugin::{CompileCx, Compiled, Define, Phases, View};
use weir_telemetry::reports::{Destination, Frame, Post};
use weir_wire::name::FieldName;

use super::batch::BatchConf;
use super::entry::{Bodies, Entry, push_url};
use super::entry_conf::OwnFormats;
use super::json::{Object, push_string, push_value};
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::stamp::push_rfc3339;
use account::{Account, AuthConf};

/// Limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The definition.
#[derive(Debug)]
pub(crate) struct GoogleCloudLogging;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The service account. Exactly one of `auth_config` and `auth_file` is given.
    auth_config: Option<AuthConf>,
    /// Path of the file in JSON that Google makes for a service account, with the fields of `auth_config`. It is read when the
    /// configuration is.
    #[schemars(length(min = 1))]
    auth_file: Option<String>,
    /// Verifies the certificates of both servers, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// The monitored resource of entries.
    #[serde(default)]
    resource: Resource,
    /// Id of the log, in the form of an URL.
    #[serde(default = "log_id")]
    log_id: String,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    formats: OwnFormats,
}

/// A monitored resource.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resource {
    /// Its type.
    r#type: String,
    /// Its labels.
    #[serde(default)]
    labels: Map<String, Json>,
}

impl Default for Resource {
    fn default() -> Self {
        Self { r#type: "global".into(), labels: Map::new() }
    }
}

fn yes() -> bool {
    true
}

fn log_id() -> String {
    "apisix.apache.org%2Flogs".into()
}

impl Define for GoogleCloudLogging {
    const NAME: &'static str = "google-cloud-logging";
    const PRIORITY: i32 = 407;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "\
Writes an entry about every exchange to Google Cloud Logging, as a service account: with APISIX's fields (`httpRequest`, and the \
ids of the route and of the service in `jsonPayload`), or with those of `log_format` in `jsonPayload`.

The account's private key signs an assertion (RS256), for which `token_uri` gives a token; it is kept until a minute before its \
end. A request has 10 seconds.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it. An entry that comes twice has the same `insertId`, by \
which Google counts it once.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
auth_config:
  client_email: logs@shop-1.iam.gserviceaccount.com
  project_id: shop-1
  private_key: |
    -----BEGIN PRIVATE KEY-----
    MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQDGzIdv+xRWpmPc
    PVP2uHHvosHK2fz40+nx/jrwv7lWmTZ4BztfUJrL+NJ1sn5ZZ/WANYnOzX46QF8J
    Dr98dIb3J63+ulVWz3TL2gvlFXntvAGnXogd0DL0GqgG5FpCD9iLi1gx02+YlH7O
    EH34DaMP3lcEM16oj+073Qx5MWufv2fmjo+iIa1VPJQz1YHl+ftm25UmJslzR9cX
    hBNOoB74Ztmut2qTLTj9oBD3WF+QFBOUeIJWSKgPju+khY+xFrlYNoZ9AzUiLByz
    c2bQe0aYpcQivh2HOeIE1nM+iMvWDZyQql7JzwXPEi3C6U9/NQMtgh9/4psyOgNJ
    lmLejh6/AgMBAAECggEACUQxvY4a7co/tipdpluelyiJylmZQxGNqN8yz1OaFGev
    DeIFNtvClQAtWMy2VJbviJRcrt90b/6qiPklz9IWrTqT3Hj1aJOu9Z/3FSyITGtX
    bTFcCUrrgeYkL7FBMi2CG68MScMTQ2ELybGKTZ+rgOsNbBkafNaInLu6Mx2TAkhZ
    C3dMbTncV5qXxnQb5ZC12z+HUpGaRaTAsCTiv+JPz4mqAaPV4rKcd9azaVPIsj/1
    UhhMJrALAYw39UzHAQM3GyKeyBe1kSSxWjfhbu1TxfO+izGkf5h77ZFrUC9J8YUC
    iaTT2f7bT5jVWGEoXvY7NsuDPh4GIcj9J1unAHkHIQKBgQDyANWWPtBGd4yf7YNJ
    18S+Dc3gHV07SEaD0zjonss6s1NlhrEG0Jk8uezOQghyaF0MEek8RW35/gB1MCSF
    6ekM/mpegyL4SDcDDQmhGGccj6+cnS0D0lOthpUFNwfDv0et8XNCiB0JP5uJxudG
    Ewql8MLAZa92wH8AzecqcHbEVwKBgQDSS//7Dbb5ISdf49ib3/cStm12YBldjwNX
    ncwDgNjFrYEjoVE2/5QFlED7tVibOhi+3ZFU1UVnLCL7/JSRa/MI+TZ95dKfiGmc
    eSgzbsWIQYS2EzYEHauvCqmsYMl+SIn94uFfVIqw5iL+Y7aeYUETo8OGYu9O9wRG
    ZrMlUAU32QKBgQCl8GCEd2nFB/CLMQeXOLaVQ03p4Piuz65achlRmKDuDUygDy2P
    6LVKaIqyG6FDIcC7qARv6YOxqbOSp4JDuNKusD0rtWvjJ1FhbC0wI1WAxh26nCPj
    vPLXx7KjMsrGNIDoCunnswGF9/GlFZg7+o6QnnhMCO251eDAIm/iL9+gXQKBgCLr
    8fc7wM3AHqzCxl6kI4BdAPJuZOfvbsum7ZELXXP+KvrCuBzc9jSy+NOTusIUNLXF
    T3P58ot+fdTAjd9UQMiVseHYP1C0s20DhZR86ZqF3sbpi8fFMZRgvepdLDinTRr3
    CRvuixVzMg5yeon0dn0PbdGsLjc7t98FAOzKTAOJAoGBAK3MzIP/u4iSfeTJ6Yyi
    c2zkIOF0KildAI/wEjF2XGjvgRfLx4X735Ytv5mDCV+h9QkVyalZUUiUxEaAB/2I
    tUihRhtrtVn4PS8/ADHNsPRZhdfne/b7j033tei5ryC/ewVIg8KdcoJ/Ucu12kzH
    YujJ+dUz41MGVzF4ZTRK2NSU
    -----END PRIVATE KEY-----
log_id: shop
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const PRIVATE_KEYS: &'static [&'static str] = &["auth_config.private_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { auth_config, auth_file, ssl_verify, resource, log_id, .. } = conf;
        let source = cx.ok(account::Source::new(auth_config, auth_file))?;
        let mut shown = json!({ "type": resource.r#type });
        if !resource.labels.is_empty() {
            shown["labels"] = Json::Object(resource.labels);
        }
        let logger = LoggerConf {
            entry: conf.formats.into(),
            include_req_body_expr: None,
            include_resp_body_expr: None,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let Account { entries_uri, project_id, grant } = source.account()?;
            let mut name = Vec::new();
            push_string(&mut name, format!("projects/{project_id}/logs/{log_id}").as_bytes());
            let fields = vec![("Content-Type".to_owned(), "application/json".to_owned())];
            let post = Post { uri: entries_uri, fields, timeout: TIMEOUT, verify: ssl_verify };
            let frame =
                Frame::Texts { begin: "{\"entries\":[".into(), between: ",", end: "],\"partialSuccess\":false}" };
            let log = Log { resource: shown.to_string().into(), name, user_agent: FieldName::constant("User-Agent") };
            Ok((Destination::Granted(post, grant), frame, log))
        })
    }
}

/// An entry as a `LogEntry` of Google.
#[derive(Debug)]
struct Log {
    /// The resource in JSON.
    resource: Vec<u8>,
    /// The log's name in JSON.
    name: Vec<u8>,
    user_agent: FieldName,
}

impl Render for Log {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        let mut log = Object::begin(out);
        match entry.format {
            Some(_) => entry.write(x, bodies, log.key("jsonPayload")),
            None => {
                log.nested("httpRequest", |request| self.write_request(x, request));
                log.nested("jsonPayload", |payload| write_payload(entry, x, payload));
            }
        }
        log.nested("labels", |labels| push_string(labels.key("source"), b"apache-apisix-google-cloud-logging"));
        let stamp = log.key("timestamp");
        stamp.push(b'"');
        push_rfc3339(x.unix_ms() + x.duration() / 1000, stamp);
        stamp.push(b'"');
        log.key("resource").extend_from_slice(&self.resource);
        if let Some(id) = x.variable(&Variable::RequestId) {
            push_value(log.key("insertId"), id);
        }
        log.key("logName").extend_from_slice(&self.name);
        log.end();
    }
}

impl Log {
    fn write_request(&self, x: View<'_>, object: &mut Object<'_>) {
        push_string(object.key("requestMethod"), x.request().method_bytes());
        push_url(x, object.key("requestUrl"));
        push_value(object.key("requestSize"), Value::Number(x.received()));
        push_value(object.key("status"), Value::Number(u64::from(x.response().status())));
        push_value(object.key("responseSize"), Value::Number(x.sent()));
        if let Some(agent) = x.request().field(&self.user_agent) {
            push_string(object.key("userAgent"), agent);
        }
        push_string(object.key("remoteIp"), x.client().addr_text.as_bytes());
        if let Some(address) = x.variable(&Variable::UpstreamAddr) {
            push_value(object.key("serverIp"), address);
        }
        let ms = x.duration() / 1000;
        // Writing into a vector does not fail.
        let _ = write!(object.key("latency"), "\"{}.{:03}s\"", ms / 1000, ms % 1000);
    }
}

/// Writes the ids of the route and of the service, and further fields, which take precedence.
fn write_payload(entry: &Entry, x: View<'_>, payload: &mut Object<'_>) {
    let route = x.route();
    if !entry.extra.has("route_id")
        && let Some(route) = route
    {
        push_string(payload.key("route_id"), route.id.text.as_bytes());
    }
    if !entry.extra.has("service_id") {
        let own = || route.and_then(|route| route.service_id.as_ref()).map_or("", |id| &*id.text).as_bytes();
        push_string(payload.key("service_id"), if route.is_some() { own() } else { x.request().host() });
    }
    entry.extra.write(x.source(), payload);
}
