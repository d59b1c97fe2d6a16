//! `maintenance`: a whole plugin in one file, to begin from. CONTRIBUTING.md tells what each part is for; the gateway
//! does not have it.
//!
//! `cargo run -p weir-plugins --example maintenance` shows what it answers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Template;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct Maintenance;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Seconds until the service is expected back, told in `Retry-After`.
    #[schemars(range(min = 1, max = 86400))]
    retry_after: u32,
    /// The body; variables such as `$host` are replaced.
    #[schemars(length(min = 1))]
    message: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self { retry_after: 300, message: "closed for maintenance".into() }
    }
}

impl Define for Maintenance {
    const NAME: &'static str = "maintenance";
    const PRIORITY: i32 = 10950;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers every request with 503 and `Retry-After`. `_meta.filter` lets some through, such as those of the people who do \
the maintenance.";
    const EXAMPLE: &'static str = "\
retry_after: 600
message: $host is back in ten minutes
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let message = Template::parse(&conf.message).map_err(|error| Invalid::new("message", error.to_string()));
        let retry_after = conf.retry_after.to_string().into_bytes();
        Some(Compiled::ready(Closed { retry_after, message: cx.ok(message)? }))
    }
}

/// An instance: what `Conf` says, in the form in which a request needs it.
#[derive(Debug)]
struct Closed {
    retry_after: Vec<u8>,
    message: Template,
}

impl Plugin for Closed {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut body = cx.take_scratch();
        self.message.render(cx.source(), &mut body);
        let answer = cx.reply(503).field("Retry-After", &self.retry_after).field("Content-Type", b"text/plain");
        let flow = answer.body(&body).done();
        cx.put_scratch(body);
        flow
    }
}

fn main() {
    let exchange = exchange(Maintenance::EXAMPLE).expect("the example is a good configuration");
    let response = &exchange.response;
    println!("{} {}", response.status(), String::from_utf8_lossy(&response.body));
}

/// One exchange by hand: the plugin built from `conf`, and what it makes of a request.
fn exchange(conf: &str) -> Result<weir_plugin::host::Exchange, weir_config::Diagnostic> {
    let conf = weir_config::Node::parse(conf)?.root;
    let plugin = <dyn weir_plugin::host::Definition>::compile(
        &Maintenance,
        &weir_plugin::BuildCx {
            plugin: Maintenance::NAME,
            place: "route/example",
            states: &weir_plugin::StateRegistry::default(),
            consumers: &weir_plugin::Consumers::default(),
            plans: &weir_plugin::Plans::default(),
            protos: &weir_config::Items::<weir_config::Proto>::default(),
            position: 0,
            conf: &conf,
            limit_keys: 1000,
            metadata: None,
            https_port: 443,
            cache_zones: &[],
            product: "example",
            kong: &weir_config::settings::Kong::default(),
            network: &Arc::default(),
            upstreams: &weir_plugin::NoUpstreams,
            apis: &weir_plugin::NoApis,
            warned: &std::cell::RefCell::default(),
        },
    )?
    .plugin;
    let mut exchange = weir_plugin::host::Exchange::default();
    let request = &mut exchange.request;
    request.buffer.extend(b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let head = request.parse(&weir_wire::head::Limits::default());
    assert!(matches!(head, Ok(Some(_))));
    assert_eq!(request.accept_head(weir_wire::target::PathRules::default()), Ok(()));
    assert!(matches!(plugin.access(&mut weir_plugin::host::request(&mut exchange)), Flow::Respond(_)));
    Ok(exchange)
}

#[cfg(test)]
mod tests {
    use super::exchange;

    #[test]
    fn it_answers_in_the_place_of_the_upstream() {
        let found = exchange("message: no $host today").expect("a good configuration");
        assert_eq!((found.response.status(), &found.response.body[..]), (503, &b"no a.test today"[..]));
        assert_eq!(found.response.field_str("Retry-After"), Some(&b"300"[..]));
        for (conf, says) in
            [("retry_after: 0", "retry_after"), ("message: $nosuch", "message"), ("message: ''", "message")]
        {
            let error = exchange(conf).expect_err(conf).to_string();
            assert!(error.contains(says), "{conf}: {error}");
        }
    }
}
