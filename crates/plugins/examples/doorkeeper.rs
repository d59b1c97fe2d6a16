//! A plugin that asks a service, as it stands in CONTRIBUTING.md. `cargo run -p weir-plugins --example doorkeeper` asks a
//! service that is not there.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, Io, LocalFuture, Phases, Plugin, RequestCx, Service, ServiceOptions,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct Doorkeeper;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The service that knows who may come in; it finds the address in `X-Client-Address`, and answers 200.
    uri: String,
}

impl Define for Doorkeeper {
    const NAME: &'static str = "doorkeeper";
    const PRIORITY: i32 = 2990;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Asks a service whether a client may come in, and answers 403 where it may not.";
    const EXAMPLE: &'static str = "uri: http://127.0.0.1:9000/door\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let service = cx.ok(Service::parse("uri", &conf.uri, ServiceOptions::default()))?;
        let address = FieldName::constant("X-Client-Address");
        Some(Compiled::build(move |build| Ok(Asking { service: service.build(build)?, address })))
    }
}

/// An instance.
#[derive(Debug)]
struct Asking {
    service: Service,
    address: FieldName,
}

impl Plugin for Asking {
    fn access(&self, _: &mut RequestCx<'_>) -> Flow {
        Flow::Suspend
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let mut question = self.service.callout(Method::Get);
            question.set_timeout(Duration::from_secs(1));
            question.add_field(&self.address, cx.client().addr_text.as_bytes());
            match io.callout(question).await {
                Ok(answer) if answer.status() == 200 => Flow::Continue,
                Ok(_) => cx.refuse(403, "nobody has let you in"),
                Err(error) => cx.fail(503, error.reason()),
            }
        })
    }
}

fn main() {
    let exchange = exchange(Err(weir_plugin::CalloutError::TimedOut));
    println!("{:?}", exchange.1);
}

/// A worker whose callouts all come to this.
struct Services(std::cell::RefCell<Option<Result<weir_plugin::CalloutResponse, weir_plugin::CalloutError>>>);

impl Io for Services {
    fn callout(
        &self,
        callout: weir_plugin::Callout,
    ) -> LocalFuture<'_, Result<weir_plugin::CalloutResponse, weir_plugin::CalloutError>> {
        let mut text = Vec::new();
        callout.write(callout.host(), &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.starts_with("GET /door HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n"), "{text}");
        assert!(text.contains("X-Client-Address: 0.0.0.0\r\n"), "{text}");
        let answer = self.0.take().expect("one question");
        Box::pin(std::future::ready(answer))
    }
}

/// One upstream: that of the service.
#[derive(Debug)]
struct Upstreams;

impl weir_plugin::UpstreamSet for Upstreams {
    fn find(&self, _: &str) -> Result<Option<u32>, weir_config::Diagnostic> {
        Ok(None)
    }

    fn add(&self, _: &weir_config::Upstream, _: &str) -> Result<u32, weir_config::Diagnostic> {
        Ok(0)
    }

    fn turns(&self, weights: &[u32]) -> Arc<dyn weir_plugin::Turns> {
        weir_plugin::UpstreamSet::turns(&weir_plugin::NoUpstreams, weights)
    }
}

/// One exchange by hand, with this answer of the service.
fn exchange(
    answer: Result<weir_plugin::CalloutResponse, weir_plugin::CalloutError>,
) -> (weir_plugin::host::Exchange, Flow) {
    let conf = weir_config::Node::parse(Doorkeeper::EXAMPLE).expect("the example is YAML").root;
    let plugin = <dyn weir_plugin::host::Definition>::compile(
        &Doorkeeper,
        &BuildCx {
            plugin: Doorkeeper::NAME,
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
            upstreams: &Upstreams,
            apis: &weir_plugin::NoApis,
            warned: &std::cell::RefCell::default(),
        },
    );
    let plugin = plugin.expect("the example is a good configuration").plugin;
    let mut exchange = weir_plugin::host::Exchange::default();
    let mut cx = weir_plugin::host::request(&mut exchange);
    assert_eq!(plugin.access(&mut cx), Flow::Suspend);
    let services = Services(std::cell::RefCell::new(Some(answer)));
    let mut hook = plugin.request_io(&mut cx, &services);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(flow) = hook.as_mut().poll(&mut context) else { panic!("the answer is there") };
    drop(hook);
    (exchange, flow)
}

#[cfg(test)]
mod tests {
    use super::{Flow, exchange};
    use weir_plugin::{CalloutError, CalloutResponse};

    #[test]
    fn the_service_decides() {
        let answer = |status| CalloutResponse::new(status, std::iter::empty(), Vec::new(), Default::default());
        assert_eq!(exchange(Ok(answer(200))).1, Flow::Continue);
        let (refused, flow) = exchange(Ok(answer(404)));
        assert!(matches!(flow, Flow::Respond(_)) && refused.response.status() == 403);
        let (_, flow) = exchange(Err(CalloutError::TimedOut));
        assert!(matches!(flow, Flow::Abort(failure) if failure.status == 503));
    }
}
