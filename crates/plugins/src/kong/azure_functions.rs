//! Kong's `azure-functions`: requests are answered by a function of Azure.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    CalloutError, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx, Service,
    ServiceOptions,
};
use weir_wire::name::FieldName;

use crate::functions::called::{answer, copy_fields};

/// The definition.
#[derive(Debug)]
pub(crate) struct AzureFunctions;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Milliseconds for the function's answer.
    #[serde(default = "ten_minutes")]
    #[schemars(range(min = 1, max = 86_400_000))]
    timeout: u64,
    /// Milliseconds for which an unused connection is kept.
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 86_400_000))]
    keepalive: u64,
    /// Asks the function by HTTPS.
    #[serde(default = "yes")]
    https: bool,
    /// Verifies the certificate.
    #[serde(default)]
    https_verify: bool,
    /// Key of the function, sent in `x-functions-key`.
    apikey: Option<String>,
    /// Id of the client, sent in `x-functions-clientid`.
    clientid: Option<String>,
    /// Name of the application.
    #[schemars(length(min = 1))]
    appname: String,
    /// Domain of the application.
    #[serde(default = "domain")]
    hostdomain: String,
    /// Path before that of the function.
    #[serde(default = "api")]
    routeprefix: String,
    /// Name of the function.
    #[schemars(length(min = 1))]
    functionname: String,
}

fn ten_minutes() -> u64 {
    600_000
}

fn minute() -> u64 {
    60_000
}

fn yes() -> bool {
    true
}

fn domain() -> String {
    "azurewebsites.net".into()
}

fn api() -> String {
    "api".into()
}

impl Conf {
    /// URI of the function.
    fn uri(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        let path: Vec<&str> = [&self.routeprefix, &self.functionname]
            .into_iter()
            .map(|part| part.trim_matches('/'))
            .filter(|part| !part.is_empty())
            .collect();
        format!("{scheme}://{}.{}/{}", self.appname, self.hostdomain, path.join("/"))
    }
}

impl Define for AzureFunctions {
    const NAME: &'static str = "azure-functions";
    const PRIORITY: i32 = 749;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Answers requests with a function of Azure.";
    const EXAMPLE: &'static str = "{appname: orders, functionname: list, apikey: secret}\n";
    const ENCRYPTED: &'static [&'static str] = &["apikey", "clientid"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let options = ServiceOptions {
            verify: conf.https_verify,
            idle: Duration::from_millis(conf.keepalive),
            timeout: Duration::from_millis(conf.timeout),
            ..ServiceOptions::default()
        };
        let service = cx.ok(Service::parse("appname", &conf.uri(), options));
        let name = FieldName::constant;
        let own = [("x-functions-key", &conf.apikey), ("x-functions-clientid", &conf.clientid)];
        let mut fields = Vec::new();
        for (header, value) in own {
            let Some(value) = value else { continue };
            if !value.bytes().all(weir_wire::is_field_byte) {
                cx.say([Invalid::new("apikey", "expected texts without control characters")]);
            }
            fields.push((name(header), value.as_bytes().to_vec()));
        }
        let service = service?;
        let timeout = Duration::from_millis(conf.timeout);
        Some(Compiled::build(move |build| Ok(Function { service: service.build(build)?, fields, timeout })))
    }
}

/// An instance.
#[derive(Debug)]
struct Function {
    service: Service,
    fields: Vec<(FieldName, Vec<u8>)>,
    timeout: Duration,
}

impl Plugin for Function {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let mut callout = match cx.request().query() {
                Some(query) => {
                    let mut target = self.service.target().to_vec();
                    target.push(b'?');
                    weir_wire::target::encode_query(query, &mut target);
                    self.service.callout_to(cx.request().method(), &target)
                }
                None => self.service.callout(cx.request().method()),
            };
            callout.set_timeout(self.timeout);
            copy_fields(cx, &mut callout);
            for (name, value) in &self.fields {
                callout.set_field(name, value);
            }
            if let Some(body) = cx.body().filter(|body| !body.is_empty()) {
                callout.set_body(body);
            }
            match io.callout(callout).await {
                Ok(response) => answer(cx, response.status(), response.fields(), response.body()),
                Err(CalloutError::Busy) => cx.fail(503, "azure-functions: too many callouts under way"),
                Err(error) => {
                    let body = serde_json::json!({ "message": error.reason() }).to_string();
                    let answer = cx.reply(500).field("Content-Type", b"application/json; charset=utf-8");
                    answer.body(body.as_bytes()).done()
                }
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A callout ends before, by its own timeout.
        Some(self.timeout + Duration::from_secs(5))
    }
}
