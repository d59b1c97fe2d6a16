//! `public-api`: lets clients reach an API that a plugin offers.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Io, LocalFuture, OpenApi, Phases, Plugin, RequestCx};

use crate::rejection::error_msg;

/// The definition.
#[derive(Debug)]
pub(crate) struct PublicApi;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The path of the API, where it is not the path of the request.
    uri: Option<String>,
}

impl Define for PublicApi {
    const NAME: &'static str = "public-api";
    const PRIORITY: i32 = 501;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests with an API that another plugin offers. Such an API is reached in no other way, so whatever guards it \
stands on the same route: authentication, `ip-restriction`, limits.

| plugin | API | what it is |
|---|---|---|
| `batch-requests` | `POST /apisix/batch-requests` | several requests in one |
| `node-status` | `GET /apisix/status` | connections and requests in numbers |
| `wolf-rbac` | `POST /apisix/plugin/wolf-rbac/login`, `PUT …/change_pwd`, `GET …/user_info` | login of wolf's users |
| `prometheus` | `GET /apisix/prometheus/metrics`, or the setting `metrics.path` | metrics, where `listen.metrics` is `off` |

An API is there unless the setting `plugins` leaves its plugin out. A path that is no API, and a method other than the \
API's, are answered 404. The API of APISIX's `graphql-proxy-cache` is not there.";
    const EXAMPLE: &'static str = "\
uri: /apisix/status
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.uri.as_ref().is_some_and(|uri| !uri.starts_with('/')) {
            cx.warn("uri", "a path begins with '/': this one is no API, and the answer is 404");
        }
        Some(Compiled::build(move |build| {
            let mut apis = build.apis.open()?;
            if let Some(uri) = &conf.uri {
                apis.retain(|api| *api.path == *uri.as_bytes());
            }
            Ok(Exposed { has_uri: conf.uri.is_some(), apis: apis.into(), missing: error_msg(404, None) })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Exposed {
    /// True if `uri` has chosen among the APIs already.
    has_uri: bool,
    apis: Box<[OpenApi]>,
    /// The answer where there is no API.
    missing: Vec<u8>,
}

impl Exposed {
    fn api(&self, cx: &RequestCx<'_>) -> Option<&OpenApi> {
        let request = cx.request();
        let is_asked =
            |api: &&OpenApi| api.method == request.method() && (self.has_uri || *api.path == *request.path());
        self.apis.iter().find(is_asked)
    }
}

impl Plugin for Exposed {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match self.api(cx) {
            Some(api) => api.plugin.access(cx),
            None => cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").body(&self.missing).done(),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // An API has limits of its own.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        match self.api(cx) {
            Some(api) => api.plugin.request_io(cx, io),
            None => Box::pin(std::future::ready(cx.fail(500, "an API is gone while it answers"))),
        }
    }
}
