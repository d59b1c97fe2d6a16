//! `chaitin-waf`: a web application firewall of Chaitin (SafeLine) looks at requests.

mod conf;
mod message;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use schemars::Schema;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node as Json};
use weir_expr::Expr;
use weir_net::Network;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Io, LocalFuture, Phases, Plugin, RequestCx, Slot};
use weir_wire::name::FieldName;

use conf::{Conf, Metadata, Mode, NodeConf, Settings};
use message::Verdict;
use server::{Fault, Idle};

/// The definition.
#[derive(Debug)]
pub(crate) struct ChaitinWaf;

impl Define for ChaitinWaf {
    const NAME: &'static str = "chaitin-waf";
    const PRIORITY: i32 = 2700;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Asks a web application firewall of Chaitin (SafeLine) about each request, over its protocol T1K: head, the first \
`req_body_size` KiB of the body, and the addresses of both sides. One that the firewall rejects is answered with its status and

```json
{\"code\": 403, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web Application Firewall\", \"event_id\": \"…\"}
```

`plugin_metadata` has the servers, which take turns; one that takes no connection is passed over for the next.

```yaml
plugin_metadata:
  - id: chaitin-waf
    mode: block
    nodes:
      - {host: 127.0.0.1, port: 8000}
```

Modes: `off` asks nobody; `monitor`, the default, writes rejections to the log and lets requests pass, also those about which \
nobody can be asked; `block` answers rejected requests, and refuses with 500 those about which nobody can be asked. Without \
servers all requests are refused with 500. A body is collected first, up to `limits.buffered_body` (413 above).

Fields of the response tell what happened:

| Field | |
|---|---|
| `X-APISIX-CHAITIN-WAF` | `yes`: asked; `no`: not asked, since no `match` holds; `off`; `waf-err`: no answer, or a broken one; `timeout`; `err`: no servers are configured |
| `X-APISIX-CHAITIN-WAF-TIME` | milliseconds until the answer |
| `X-APISIX-CHAITIN-WAF-STATUS` | status that the firewall wants: 200 where the request may pass |
| `X-APISIX-CHAITIN-WAF-ACTION` | `pass` or `reject` |
| `X-APISIX-CHAITIN-WAF-ERROR` | the error; with `append_waf_debug_header` |
| `X-APISIX-CHAITIN-WAF-SERVER` | the server; with `append_waf_debug_header` |

In `block` mode fields that the firewall adds to responses are added.";
    const EXAMPLE: &'static str = "\
mode: block
match:
  - vars: [[http_x_trusted, '!', ==, 'yes']]
config:
  req_body_size: 64
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Json) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(|_| ())
    }

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Option<Metadata>>()?;
            let mode = conf.mode.or(metadata.as_ref().and_then(|metadata| metadata.mode)).unwrap_or(Mode::Monitor);
            let settings = conf.config.over(metadata.as_ref().map(|metadata| &metadata.config)).settings();
            let nodes = metadata.map(|metadata| metadata.nodes).unwrap_or_default();
            Ok(Firewall {
                mode,
                idle: build.states.get_or_create(&format!("chaitin-waf {nodes:?}"), Slot::default),
                nodes,
                next: AtomicUsize::new(0),
                settings,
                any: conf.conditions.iter().flatten().map(|one| one.vars.expr().clone()).collect(),
                tells: conf.append_waf_resp_header,
                tells_more: conf.append_waf_debug_header,
                names: Names::default(),
                network: Arc::clone(build.network),
            })
        }))
    }
}

/// Names of fields.
#[derive(Debug)]
struct Names {
    asked: FieldName,
    time: FieldName,
    status: FieldName,
    action: FieldName,
    error: FieldName,
    server: FieldName,
}

impl Default for Names {
    fn default() -> Self {
        let name = FieldName::constant;
        Self {
            asked: name("X-APISIX-CHAITIN-WAF"),
            time: name("X-APISIX-CHAITIN-WAF-TIME"),
            status: name("X-APISIX-CHAITIN-WAF-STATUS"),
            action: name("X-APISIX-CHAITIN-WAF-ACTION"),
            error: name("X-APISIX-CHAITIN-WAF-ERROR"),
            server: name("X-APISIX-CHAITIN-WAF-SERVER"),
        }
    }
}

/// An instance.
#[derive(Debug)]
struct Firewall {
    mode: Mode,
    nodes: Vec<NodeConf>,
    /// Turns of the servers.
    next: AtomicUsize,
    /// Connections of each worker.
    idle: Arc<Slot<Idle>>,
    settings: Settings,
    /// Conditions, of which one has to hold; empty: every request is asked about.
    any: Box<[Expr]>,
    tells: bool,
    tells_more: bool,
    names: Names,
    network: Arc<Network>,
}

impl Plugin for Firewall {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.mode == Mode::Off {
            return self.pass(cx, b"off");
        }
        if self.nodes.is_empty() {
            self.tell(cx, &self.names.asked, b"err");
            self.tell_more(cx, &self.names.error, b"missing metadata");
            tracing::error!("chaitin-waf has no servers: set nodes in its plugin_metadata");
            return cx.reply(500).done();
        }
        if !self.any.is_empty() && !self.any.iter().any(|one| one.eval(cx.source())) {
            return self.pass(cx, b"no");
        }
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let begin = weir_runtime::now_us();
            let Some((node, answer)) = self.ask(&message::question(cx, &self.settings)).await else {
                return cx.fail(500, "chaitin-waf: no servers");
            };
            let took = weir_runtime::now_us().saturating_sub(begin) / 1000;
            self.tell(cx, &self.names.time, took.to_string().as_bytes());
            self.tell_more(cx, &self.names.server, node.host.as_bytes());
            match answer {
                Ok(verdict) => self.follow(cx, &verdict),
                Err(fault) => self.go_on_without(cx, &fault),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        let Settings { connect, send, read, .. } = self.settings;
        Some(connect * self.nodes.len() as u32 + send + read + Duration::from_secs(5))
    }
}

impl Firewall {
    /// Asks the server whose turn it is, or those behind it while none takes a connection. `None`: there is none at all.
    async fn ask(&self, question: &[u8]) -> Option<(&NodeConf, Result<Verdict, Fault>)> {
        let first = self.next.fetch_add(1, Relaxed) % self.nodes.len().max(1);
        let idle = self.idle.get_or_start(Idle::default);
        let mut last = None;
        for node in self.nodes.iter().cycle().skip(first).take(self.nodes.len()) {
            let answer = server::ask(node, question, &self.settings, &idle, &self.network).await;
            let is_away = matches!(answer, Err(Fault::Away(_)));
            last = Some((node, answer));
            if !is_away {
                break;
            }
        }
        last
    }

    fn follow(&self, cx: &mut RequestCx<'_>, verdict: &Verdict) -> Flow {
        self.tell(cx, &self.names.asked, b"yes");
        if self.mode == Mode::Block {
            for (name, value) in &verdict.fields {
                cx.set_response_field(name, |out| out.extend_from_slice(value));
            }
        }
        let Some(status) = verdict.rejects else {
            self.tell(cx, &self.names.action, b"pass");
            return self.told(cx, 200);
        };
        self.tell(cx, &self.names.action, b"reject");
        let event_id = verdict.event_id.as_str();
        let flow = self.told(cx, status);
        if self.mode == Mode::Monitor {
            tracing::warn!(event_id, status, "chaitin-waf in monitor mode: the request would have been rejected");
            return flow;
        }
        tracing::warn!(event_id, status, "the request is rejected by chaitin-waf");
        let body = format!(
            "{{\"code\": {status}, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web Application Firewall\", \
             \"event_id\": \"{event_id}\"}}\n"
        );
        cx.reply(status).body(body.as_bytes()).done()
    }

    #[cold]
    fn go_on_without(&self, cx: &mut RequestCx<'_>, fault: &Fault) -> Flow {
        let (asked, reason) = match fault {
            Fault::TimedOut => (&b"timeout"[..], "timeout"),
            Fault::Away(reason) | Fault::Failed(reason) => (&b"waf-err"[..], reason.as_str()),
        };
        self.tell(cx, &self.names.asked, asked);
        self.tell_more(cx, &self.names.error, reason.as_bytes());
        if self.mode == Mode::Monitor {
            tracing::warn!(reason, "chaitin-waf in monitor mode: nobody can be asked");
            return Flow::Continue;
        }
        tracing::error!(reason, "chaitin-waf: nobody can be asked, the request is refused");
        cx.reply(500).done()
    }

    fn pass(&self, cx: &mut RequestCx<'_>, asked: &'static [u8]) -> Flow {
        self.tell(cx, &self.names.asked, asked);
        Flow::Continue
    }

    fn told(&self, cx: &mut RequestCx<'_>, status: u16) -> Flow {
        self.tell(cx, &self.names.status, status.to_string().as_bytes());
        Flow::Continue
    }

    fn tell(&self, cx: &mut RequestCx<'_>, name: &FieldName, value: &[u8]) {
        if self.tells {
            cx.set_response_field(name, |out| out.extend_from_slice(value));
        }
    }

    fn tell_more(&self, cx: &mut RequestCx<'_>, name: &FieldName, value: &[u8]) {
        if self.tells_more {
            let value: Vec<u8> = value.iter().copied().filter(|byte| weir_wire::is_field_byte(*byte)).collect();
            self.tell(cx, name, &value);
        }
    }
}
