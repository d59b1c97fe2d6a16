//! `error-log-logger`: messages of the gateway's own log, to a collector.

mod metadata;

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Code, Diagnostic, Node};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Invalid, Phases, Plugin, Shared, hostname};
use weir_telemetry::messages::{RenderLine, Subscription};
use weir_telemetry::reports::{ChannelOptions, Check, Destination, Frame, Tcp, Tls};

use super::collectors::{collector, endpoints};
use super::json::{Object, push_string};
use metadata::{ClickhouseConf, Metadata, SkywalkingConf, TcpConf};

/// The definition.
#[derive(Debug)]
pub(crate) struct ErrorLogLogger;

/// An empty object: the settings stand in `plugin_metadata`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

impl Define for ErrorLogLogger {
    const NAME: &'static str = "error-log-logger";
    const PRIORITY: i32 = 1091;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Sends the messages of the gateway's own log (`error_log`) to a collector: to a server over TCP, to Apache SkyWalking, to \
ClickHouse or to Kafka. `plugin_metadata` alone sets it up, and has exactly one of the four; on a route the plugin does nothing.

```yaml
plugin_metadata:
  - id: error-log-logger
    level: ERR
    tcp: {host: 127.0.0.1, port: 5044}
```

- A message that `error_log.level` leaves out of the log is not sent either.
- `tcp`: a line for each message, over a connection that is kept. `kafka`: a message of the topic for each, a text in JSON.
- `clickhouse`: a row for each message, whose column `data` is the line. `skywalking`: a log for each, to exactly this address.

Batches are made and sent as those of [http-logger](http-logger.md). No request waits for any of it: the thread that writes \
the log passes the lines on.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        let locate = |fault: Invalid| {
            let field = fault.path.split('.').next().unwrap_or_default();
            Diagnostic {
                severity: fault.severity,
                ..Diagnostic::error(metadata.mark_of(field), fault.path.clone(), *fault.code)
            }
        };
        let mut found: Vec<_> = typed.without_effect().map(locate).collect();
        found.extend(typed.report().err().map(locate));
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn background(cx: &BuildCx<'_>) -> Result<Option<Shared>, Invalid> {
        let Some(metadata) = cx.metadata else { return Ok(None) };
        let typed: Metadata = metadata.parse_into().map_err(|error| Invalid::new("", error.to_string()))?;
        let level = typed.level.level();
        let Report { destination, frame, render } = typed.report()?;
        let channel = super::channel(typed.channel(destination, frame), cx);
        // The same for as long as nothing of it changes.
        let key = format!("error-log-logger {metadata:?}");
        let subscription = cx.states.get_or_create(&key, || Subscription::open(level, channel, render));
        Ok(Some(subscription))
    }

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }
}

/// An instance, which does nothing.
struct Nothing;

impl Plugin for Nothing {}

/// Destination of messages, and the form in which it takes them.
struct Report {
    destination: Destination,
    frame: Frame,
    render: RenderLine,
}

impl Metadata {
    fn report(&self) -> Result<Report, Invalid> {
        let timeout = Duration::from_secs(self.timeout);
        let older = self.older();
        match (older.as_ref().or(self.tcp.as_ref()), &self.skywalking, &self.clickhouse, &self.kafka) {
            (Some(tcp), None, None, None) if older.is_none() || self.tcp.is_none() => Ok(tcp.report(timeout)),
            (None, Some(skywalking), None, None) => skywalking.report(timeout),
            (None, None, Some(clickhouse), None) => clickhouse.report(timeout),
            (None, None, None, Some(kafka)) => Ok(Report {
                destination: Destination::Kafka(kafka.topic(timeout)?),
                frame: Frame::Single,
                render: Box::new(|line, out| push_string(out, line)),
            }),
            _ => {
                let text = "expected exactly one of tcp, skywalking, clickhouse and kafka";
                Err(Invalid::coded("", Code::PluginRule { text: text.into() }))
            }
        }
    }

    fn channel(&self, destination: Destination, frame: Frame) -> ChannelOptions {
        let seconds = Duration::from_secs;
        ChannelOptions {
            plugin: ErrorLogLogger::NAME,
            name: self.name.clone(),
            destination,
            frame,
            batch_records: self.batch_max_size.max(1),
            batch_age: seconds(self.buffer_duration),
            batch_idle: seconds(self.inactive_timeout),
            max_pending: None,
            retries: self.max_retry_count,
            retry_delay: seconds(self.retry_delay),
        }
    }
}

impl TcpConf {
    fn report(&self, timeout: Duration) -> Report {
        let tls = self.tls.then(|| Tls { server_name: self.tls_server_name.clone(), verify: false });
        let to = Tcp { host: self.host.clone(), port: self.port, tls, timeout, is_kept: true };
        Report {
            destination: Destination::Tcp(to),
            frame: Frame::LineEnds,
            render: Box::new(|line, out| out.extend_from_slice(line)),
        }
    }
}

impl SkywalkingConf {
    fn report(&self, timeout: Duration) -> Result<Report, Invalid> {
        let uri = collector("skywalking.endpoint_addr", &self.endpoint_addr, "")?;
        let fields = [("Content-Type".to_owned(), "application/json".to_owned())];
        let service = self.service_name.clone();
        let instance = match self.service_instance_name.as_str() {
            "$hostname" => hostname().to_owned(),
            name => name.to_owned(),
        };
        Ok(Report {
            destination: endpoints(vec![uri], &fields, timeout, true, Check::NoError),
            frame: Frame::Array,
            render: Box::new(move |line, out| {
                let mut log = Object::begin(out);
                push_string(log.key("service"), service.as_bytes());
                push_string(log.key("serviceInstance"), instance.as_bytes());
                push_string(log.key("endpoint"), b"");
                log.nested("body", |body| {
                    body.nested("text", |text| push_string(text.key("text"), line));
                });
                log.end();
            }),
        })
    }
}

impl ClickhouseConf {
    fn report(&self, timeout: Duration) -> Result<Report, Invalid> {
        let uri = collector("clickhouse.endpoint_addr", &self.endpoint_addr, "")?;
        let fields = super::clickhouse_logger::fields(&self.user, &self.password, &self.database)
            .and_then(|fields| super::clickhouse_logger::insert(&self.logtable).map(|begin| (fields, begin)));
        let (fields, begin) =
            fields.map_err(|fault| Invalid { path: format!("clickhouse.{}", fault.path), ..fault })?;
        Ok(Report {
            destination: endpoints(vec![uri], &fields, timeout, true, Check::NoError),
            frame: Frame::Texts { begin: begin.into(), between: " ", end: "" },
            render: Box::new(|line, out| {
                let mut row = Object::begin(out);
                push_string(row.key("data"), line);
                row.end();
            }),
        })
    }
}
