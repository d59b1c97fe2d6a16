//! Kong's `cors`.

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct Cors;

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Origins that are allowed, also as regular expressions; none allows all.
    origins: Option<Vec<String>>,
    /// Methods that are allowed; without it all.
    methods: Option<Vec<String>>,
    /// Request fields that are allowed; without it those that are asked for.
    headers: Option<Vec<String>>,
    /// Response fields that pages may read.
    exposed_headers: Option<Vec<String>>,
    /// Seconds for which a browser may remember an answer.
    max_age: Option<f64>,
    /// Allows requests with credentials.
    credentials: bool,
    /// Allows requests from public networks to private ones.
    private_network: bool,
    /// Lets the upstream answer preflight requests.
    preflight_continue: bool,
}

impl Define for Cors {
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 2000;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Tells browsers which pages of other origins may use the answers.";
    const EXAMPLE: &'static str = "origins: [https://example.com]\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let origins = cx.ok(Origins::compile(conf.origins.unwrap_or_default()))?;
        let name = FieldName::constant;
        let joined = |list: Option<Vec<String>>| list.filter(|list| !list.is_empty()).map(|list| list.join(","));
        Some(Compiled::ready(Sharing {
            origins,
            methods: joined(conf.methods).unwrap_or_else(|| ALL_METHODS.to_owned()),
            headers: joined(conf.headers),
            exposed: joined(conf.exposed_headers),
            max_age: conf.max_age.map(|seconds| seconds.to_string()),
            credentials: conf.credentials,
            private_network: conf.private_network,
            preflight_continue: conf.preflight_continue,
            allow_origin: name("Access-Control-Allow-Origin"),
            allow_credentials: name("Access-Control-Allow-Credentials"),
            expose_headers: name("Access-Control-Expose-Headers"),
            vary: name("Vary"),
        }))
    }
}

const ALL_METHODS: &str = "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT";

/// Origins that are allowed.
#[derive(Debug)]
enum Origins {
    /// All.
    Any,
    /// This one, which every answer names.
    One(String),
    /// Those in a list.
    Listed(Vec<Allowed>),
}

#[derive(Debug)]
enum Allowed {
    Text(String),
    /// A regular expression, and whether it is compared with the host alone.
    Regex(Regex, bool),
}

impl Origins {
    fn compile(origins: Vec<String>) -> Result<Self, Invalid> {
        let is_regex = |text: &str| text.contains(|c: char| !c.is_ascii_alphanumeric() && !".:/-".contains(c));
        if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
            return Ok(Self::Any);
        }
        if let [one] = &origins[..]
            && !is_regex(one)
        {
            return Ok(Self::One(one.clone()));
        }
        let allowed = origins.into_iter().enumerate().map(|(at, text)| {
            if !is_regex(&text) {
                return Ok(Allowed::Text(normalised(text.as_bytes())));
            }
            let fault = |message: String| Invalid::new(format!("origins[{at}]"), message);
            let regex = format!("^(?:{text})$");
            weir_expr::spend_for_regex(&regex).map_err(|error| fault(error.to_string()))?;
            let host_alone = !text.contains(':');
            Regex::new(&regex).map(|regex| Allowed::Regex(regex, host_alone)).map_err(|error| fault(error.to_string()))
        });
        Ok(Self::Listed(allowed.collect::<Result<_, _>>()?))
    }
}

/// An origin without a default port.
fn normalised(origin: &[u8]) -> String {
    let text = String::from_utf8_lossy(origin);
    let port = if text.starts_with("https:") { ":443" } else { ":80" };
    text.strip_suffix(port).unwrap_or(&text).to_owned()
}

/// An instance.
#[derive(Debug)]
struct Sharing {
    origins: Origins,
    methods: String,
    headers: Option<String>,
    exposed: Option<String>,
    max_age: Option<String>,
    credentials: bool,
    private_network: bool,
    preflight_continue: bool,
    allow_origin: FieldName,
    allow_credentials: FieldName,
    expose_headers: FieldName,
    vary: FieldName,
}

/// True for a preflight request.
fn is_preflight(request: &weir_plugin::Request) -> bool {
    request.method() == Method::Options
        && request.field_str("origin").is_some()
        && request.field_str("access-control-request-method").is_some()
}

impl Plugin for Sharing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.preflight_continue || !is_preflight(cx.request()) {
            return Flow::Continue;
        }
        let mut asked = cx.take_scratch();
        asked.extend_from_slice(cx.request().field_str("access-control-request-headers").unwrap_or_default());
        let is_private = cx.request().field_str("access-control-request-private-network") == Some(b"true");
        let mut answer = cx.reply(200).field("Access-Control-Allow-Methods", self.methods.as_bytes());
        let headers = self.headers.as_ref().map_or(asked.as_slice(), |headers| headers.as_bytes());
        if !headers.is_empty() {
            answer = answer.field("Access-Control-Allow-Headers", headers);
        }
        if let Some(seconds) = &self.max_age {
            answer = answer.field("Access-Control-Max-Age", seconds.as_bytes());
        }
        if self.private_network && is_private {
            answer = answer.field("Access-Control-Allow-Private-Network", b"true");
        }
        let flow = answer.done();
        cx.put_scratch(asked);
        flow
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let was_preflight = is_preflight(cx.request());
        if was_preflight && self.preflight_continue {
            return Flow::Continue;
        }
        let mut text = cx.take_scratch();
        let origin = cx.request().field_str("origin");
        let (is_allowed, varies) = match &self.origins {
            Origins::Any if self.credentials && origin.is_some() => {
                text.extend_from_slice(origin.unwrap_or_default());
                (true, true)
            }
            Origins::Any => {
                text.push(b'*');
                (true, false)
            }
            Origins::One(one) => {
                text.extend_from_slice(one.as_bytes());
                (true, true)
            }
            Origins::Listed(allowed) => {
                let found = origin.filter(|origin| takes(allowed, origin));
                text.extend_from_slice(found.unwrap_or_default());
                (found.is_some(), true)
            }
        };
        let is_any = text == b"*";
        match is_allowed {
            true => cx.set_field(&self.allow_origin, &text),
            false => drop(cx.remove_field(&self.allow_origin)),
        }
        cx.put_scratch(text);
        if varies {
            cx.add_field(&self.vary, b"Origin");
        }
        if self.credentials && is_allowed && !is_any {
            cx.set_field(&self.allow_credentials, b"true");
        }
        if let Some(exposed) = self.exposed.as_ref().filter(|_| !was_preflight) {
            cx.set_field(&self.expose_headers, exposed.as_bytes());
        }
        Flow::Continue
    }
}

fn takes(allowed: &[Allowed], origin: &[u8]) -> bool {
    let origin = normalised(origin);
    let host = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
    allowed.iter().any(|allowed| match allowed {
        Allowed::Text(text) => *text == origin,
        Allowed::Regex(regex, host_alone) => regex.is_match(if *host_alone { host } else { &origin }.as_bytes()),
    })
}
