//! `redirect`: the client is sent elsewhere.

mod location;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::RegexOptions;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::Known;

use crate::pattern::Grouped;
use location::{Location, Match};

/// The definition.
#[derive(Debug)]
pub(crate) struct Redirect;

/// On a route, a service, a consumer or a global rule. Exactly one of `http_to_https`, `uri` and `regex_uri` is needed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Sends requests over HTTP to the same host, path and query over HTTPS: with 301 where the method is GET or HEAD,
    /// with 308, which keeps method and body, otherwise. The port is the setting `redirect.https_port`.
    http_to_https: Option<bool>,
    /// The target: a path or a whole URI, in which variables are replaced; `\$` is a plain `$`.
    #[schemars(length(min = 2))]
    uri: Option<String>,
    /// A regular expression and where to: what the expression matches in the normalised path is replaced, the rest of
    /// the path stays. `$1` or `${1}` is what a group matched, `$$` a plain `$`, and variables are replaced. Requests
    /// that it does not match are not redirected. Look-around and back-references are not supported.
    #[schemars(length(min = 2, max = 2))]
    regex_uri: Option<Vec<String>>,
    /// Status of the answer with `uri` and `regex_uri`. Default: 302.
    #[schemars(range(min = 200, max = 999))]
    ret_code: Option<u16>,
    /// Takes whatever stands before the first `?` of the result for text that is not encoded yet: `%`, `#` and blanks
    /// in it are encoded too. Without it only what a URI may not hold is encoded, and whatever comes from the decoded
    /// path.
    encode_uri: bool,
    /// Adds the query of the request, after `&` where there is one already. Not with `http_to_https`.
    append_query_string: bool,
}

impl Define for Redirect {
    const NAME: &'static str = "redirect";
    const PRIORITY: i32 = 900;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Answers with another place to go to. Whether a request came over HTTPS is told by `X-Forwarded-Proto` where it comes from one \
of `trusted_proxies`, otherwise by its connection; any other text in the field than `https` says that it did not. A proxy in front that ends TLS has to be named there: with \
`http_to_https` its clients would be redirected for ever.

What comes from a request never chooses another host than the configuration does: a result such as `//evil.example`, or \
`https://good.example.evil.example` where the configuration has `https://good.example$1`, is not sent. A path that would \
begin with `//` is sent with one slash, and whatever else would lead elsewhere is answered with 400. A `uri` of which the \
host itself is a variable, as in `https://$host$request_uri`, takes that from the request.";
    const EXAMPLE: &'static str = "\
regex_uri: [\"^/old/(.*)\", \"https://www.example.com/new/$1\"]
ret_code: 301
append_query_string: true
";

    const TEMPLATES: &'static [&'static str] = &["uri", "regex_uri.1"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let rule = cx.ok(conf.rule());
        cx.say(conf.check_query().err());
        cx.say(conf.warnings());
        let rule = rule?;
        Some(Compiled::build(move |build| {
            Ok(Redirecting {
                rule,
                status: conf.ret_code.unwrap_or(302),
                append: conf.append_query_string,
                port: Some(build.https_port).filter(|port| *port != HTTPS_PORT),
            })
        }))
    }
}

/// The port of `https` URIs without one (RFC 9110 section 4.2.2).
const HTTPS_PORT: u16 = 443;

impl Conf {
    fn rule(&self) -> Result<Rule, Invalid> {
        match (self.http_to_https, &self.uri, self.regex_uri.as_deref()) {
            (Some(true), None, None) => Ok(Rule::Https),
            (Some(false), None, None) => Ok(Rule::Nothing),
            (None, Some(uri), None) => {
                let location = Location::parse(uri, false, self.encode_uri);
                location.map(Rule::To).map_err(|message| Invalid::new("uri", message))
            }
            (None, None, Some([pattern, to])) => {
                let fault = |at: usize| move |message| Invalid::new(format!("regex_uri[{at}]"), message);
                let pattern = Grouped::compile(pattern, RegexOptions::default()).map_err(fault(0))?;
                Ok(Rule::Matched(Box::new(pattern), Location::parse(to, true, self.encode_uri).map_err(fault(1))?))
            }
            (None, None, Some(_)) => Err(Invalid::new("regex_uri", "expected a regular expression and where to")),
            _ => Err(Invalid::new("", "expected exactly one of http_to_https, uri and regex_uri")),
        }
    }

    fn check_query(&self) -> Result<(), Invalid> {
        if self.http_to_https == Some(true) && self.append_query_string {
            let message = "only one of http_to_https, which keeps the query, and append_query_string is possible";
            return Err(Invalid::new("append_query_string", message));
        }
        Ok(())
    }

    fn warnings(&self) -> Vec<Invalid> {
        match self.http_to_https {
            None => Vec::new(),
            Some(false) => vec![Invalid::warning("http_to_https", "nothing is redirected")],
            Some(true) => {
                let unused = [("ret_code", self.ret_code.is_some()), ("encode_uri", self.encode_uri)];
                let warning = |name| Invalid::warning(name, "it has no effect beside http_to_https");
                unused.iter().filter(|(_, there)| *there).map(|(name, _)| warning(*name)).collect()
            }
        }
    }
}

/// An instance.
#[derive(Debug)]
struct Redirecting {
    rule: Rule,
    status: u16,
    append: bool,
    /// The port of HTTPS, where it has to be told.
    port: Option<u16>,
}

#[derive(Debug)]
enum Rule {
    Nothing,
    Https,
    To(Location),
    Matched(Box<Grouped>, Location),
}

const NO_HOST: &str = "redirect: the request names no host";

impl Plugin for Redirecting {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut to = cx.take_scratch();
        let found = match &self.rule {
            Rule::Nothing => None,
            Rule::Https => self.to_https(cx, &mut to),
            Rule::To(location) => Some(self.render(location, &Match::default(), cx, &mut to)),
            Rule::Matched(pattern, location) => pattern.find(cx.request().path()).map(|found| {
                let found = Match { groups: &found.groups, before: found.before, after: found.after };
                self.render(location, &found, cx, &mut to)
            }),
        };
        let flow = match found {
            None => Flow::Continue,
            Some(Ok(status)) => cx.reply(status).field("Location", &to).done(),
            Some(Err(reason)) => cx.fail(400, reason),
        };
        cx.put_scratch(to);
        flow
    }
}

impl Redirecting {
    fn render(
        &self,
        location: &Location,
        found: &Match<'_>,
        cx: &RequestCx<'_>,
        to: &mut Vec<u8>,
    ) -> Result<u16, &'static str> {
        let query = cx.request().query().filter(|query| self.append && !query.is_empty());
        location.render(cx.source(), found, query, to).map(|()| self.status)
    }

    fn to_https(&self, cx: &RequestCx<'_>, to: &mut Vec<u8>) -> Option<Result<u16, &'static str>> {
        if self.is_https(cx) {
            return None;
        }
        let request = cx.request();
        if request.host().is_empty() {
            return Some(Err(NO_HOST));
        }
        to.extend_from_slice(b"https://");
        to.extend_from_slice(request.host());
        if let Some(port) = self.port {
            to.push(b':');
            weir_wire::push_number(to, port.into());
        }
        request.write_request_uri(to);
        Some(Ok(if matches!(request.method(), Method::Get | Method::Head) { 301 } else { 308 }))
    }

    /// As the client began: before a proxy that is trusted to say so, or at the connection. The field of another peer
    /// is gone by now.
    fn is_https(&self, cx: &RequestCx<'_>) -> bool {
        let request = cx.request();
        let told = request.head.fields.get_known(request.buffer.bytes(), Known::XForwardedProto);
        match told {
            Some(schemes) => {
                // Of several proxies the first one saw the client.
                let scheme = weir_wire::list(schemes).next().unwrap_or_default();
                scheme.eq_ignore_ascii_case(b"https")
            }
            None => cx.client().https,
        }
    }
}
