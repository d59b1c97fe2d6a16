//! Tyk's `CORS`, as rs/cors has it.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct Cors;

/// `CORS` of an API definition.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Origins, each with one `*` at most; none allows all.
    allowed_origins: Vec<String>,
    /// Methods; none: GET, POST and HEAD.
    allowed_methods: Vec<String>,
    /// Request fields; `*` allows all. None: Origin, Accept, Content-Type and X-Requested-With.
    allowed_headers: Vec<String>,
    /// Response fields that pages may read.
    exposed_headers: Vec<String>,
    /// Allows requests with credentials.
    allow_credentials: bool,
    /// Seconds for which a browser may remember an answer.
    max_age: i64,
    /// Lets the upstream answer preflight requests.
    options_passthrough: bool,
}

impl Define for Cors {
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 1100;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Tells browsers which pages of other origins may use the answers.";
    const EXAMPLE: &'static str = "allowed_origins: [https://example.com]\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        let or = |list: Vec<String>, default: &[&str]| -> Vec<String> {
            if list.is_empty() { default.iter().map(|text| (*text).to_owned()).collect() } else { list }
        };
        let headers = or(conf.allowed_headers, &["Origin", "Accept", "Content-Type", "X-Requested-With"]);
        let name = FieldName::constant;
        Some(Compiled::ready(Sharing {
            allows_all: conf.allowed_origins.is_empty() || conf.allowed_origins.iter().any(|origin| origin == "*"),
            origins: conf.allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect(),
            methods: or(conf.allowed_methods, &["GET", "POST", "HEAD"]),
            allows_all_headers: headers.iter().any(|header| header == "*"),
            headers,
            exposed: conf.exposed_headers.join(", ").into_bytes(),
            credentials: conf.allow_credentials,
            max_age: (conf.max_age > 0).then(|| conf.max_age.to_string().into_bytes()),
            passes: conf.options_passthrough,
            allow_origin: name("Access-Control-Allow-Origin"),
            allow_credentials: name("Access-Control-Allow-Credentials"),
            expose_headers: name("Access-Control-Expose-Headers"),
            vary: name("Vary"),
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Sharing {
    allows_all: bool,
    /// In lower case.
    origins: Box<[String]>,
    methods: Vec<String>,
    allows_all_headers: bool,
    headers: Vec<String>,
    exposed: Vec<u8>,
    credentials: bool,
    max_age: Option<Vec<u8>>,
    passes: bool,
    allow_origin: FieldName,
    allow_credentials: FieldName,
    expose_headers: FieldName,
    vary: FieldName,
}

impl Plugin for Sharing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.passes || cx.request().method() != Method::Options {
            return Flow::Continue;
        }
        if cx.request().field_str("access-control-request-method").is_none() {
            return cx.reply(200).done();
        }
        let mut asked = cx.take_scratch();
        let request = cx.request();
        let method = request.field_str("access-control-request-method").unwrap_or_default();
        let headers = request.field_str("access-control-request-headers").unwrap_or_default();
        let is_allowed = request.field_str("origin").is_some_and(|origin| self.allows(origin))
            && self.methods.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(method))
            && self.allows_headers(headers);
        asked.extend_from_slice(method);
        let end = asked.len();
        asked.extend_from_slice(headers);
        let vary = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
        let mut answer = cx.reply(204).field("Vary", vary);
        if is_allowed {
            let (method, headers) = asked.split_at(end);
            answer = answer.field("Access-Control-Allow-Methods", method);
            if !headers.is_empty() {
                answer = answer.field("Access-Control-Allow-Headers", headers);
            }
            if let Some(seconds) = &self.max_age {
                answer = answer.field("Access-Control-Max-Age", seconds);
            }
        }
        let flow = answer.done();
        cx.put_scratch(asked);
        flow
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let request = cx.request();
        let is_options = request.method() == Method::Options;
        if is_options && self.passes {
            return Flow::Continue;
        }
        let is_preflight = is_options && request.field_str("access-control-request-method").is_some();
        let mut text = cx.take_scratch();
        text.extend_from_slice(cx.request().field_str("origin").unwrap_or_default());
        let refused = is_preflight && cx.response().head.fields.get_str(b"", b"Access-Control-Allow-Methods").is_none();
        let is_allowed = !text.is_empty() && self.allows(&text) && !refused;
        if is_allowed {
            if self.allows_all && !self.credentials {
                text.clear();
                text.push(b'*');
            }
            cx.set_field(&self.allow_origin, &text);
            if self.credentials {
                cx.set_field(&self.allow_credentials, b"true");
            }
            if !self.exposed.is_empty() && !is_preflight {
                cx.set_field(&self.expose_headers, &self.exposed);
            }
        } else {
            // The upstream's fields about origins are not this gateway's answer.
            cx.remove_field(&self.allow_origin);
        }
        cx.put_scratch(text);
        if !is_preflight {
            cx.add_field(&self.vary, b"Origin");
        }
        Flow::Continue
    }
}

impl Sharing {
    fn allows(&self, origin: &[u8]) -> bool {
        self.allows_all
            || self.origins.iter().any(|allowed| match allowed.split_once('*') {
                None => allowed.as_bytes().eq_ignore_ascii_case(origin),
                Some((before, after)) => {
                    let origin = origin.to_ascii_lowercase();
                    origin.len() >= before.len() + after.len()
                        && origin.starts_with(before.as_bytes())
                        && origin.ends_with(after.as_bytes())
                }
            })
    }

    fn allows_headers(&self, headers: &[u8]) -> bool {
        self.allows_all_headers
            || weir_wire::list(headers).filter(|header| !header.is_empty()).all(|header| {
                header.eq_ignore_ascii_case(b"origin")
                    || self.headers.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(header))
            })
    }
}
