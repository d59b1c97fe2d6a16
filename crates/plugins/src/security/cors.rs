//! `cors`: which pages of other origins may use the answers (Fetch standard, section 3.2).

mod origins;

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::fields::Fields;
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::pattern::Patterns;
use origins::{Origins, Policy};

/// The definition.
#[derive(Debug)]
pub(crate) struct Cors;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Origins that are allowed: `*` for all, without credentials; `**` for all, whose name is then given back; or
    /// origins such as `https://example.com:8443`, separated by commas. `null` is what a page without an origin sends.
    allow_origins: String,
    /// Methods that are allowed, separated by commas; `*` for all, without credentials; `**` for all that there are.
    allow_methods: String,
    /// Request fields that are allowed, separated by commas; `*` for all, without credentials; `**` for those that the
    /// page asks for.
    allow_headers: String,
    /// Response fields that pages may read, separated by commas; `*` for all, without credentials. Without it the
    /// upstream's own `Access-Control-Expose-Headers` stays.
    expose_headers: Option<String>,
    /// Seconds for which a browser may remember the answer to its question; -1: not at all.
    #[schemars(range(min = -1))]
    max_age: i32,
    /// Allows requests with cookies and other credentials. No other field may be `*` then: `**` or a list says whom one
    /// trusts with them.
    allow_credential: bool,
    /// Regular expressions, one of which has to match somewhere in the origin, so that `^` and `$` are needed to say
    /// where it begins and ends. They take the place of `allow_origins`.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    allow_origins_by_regex: Option<Vec<String>>,
    /// Names in `allow_origins` of the plugin's `plugin_metadata`, whose origins are allowed as well; an
    /// `allow_origins` of `*` here has no effect beside it. A name that is not there allows nothing, and is warned of
    /// in the log.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    allow_origins_by_metadata: Option<Vec<String>>,
    /// Origins whose pages may see how long what took, as in `allow_origins`. Without it and
    /// `timing_allow_origins_by_regex` the upstream's own `Timing-Allow-Origin` stays.
    timing_allow_origins: Option<String>,
    /// The same by regular expressions, which take the place of `timing_allow_origins`.
    #[schemars(length(min = 1), inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    timing_allow_origins_by_regex: Option<Vec<String>>,
}

/// `plugin_metadata` of `cors`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Origins by name, each as in the plugin's `allow_origins`.
    allow_origins: BTreeMap<String, String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            allow_origins: "*".into(),
            allow_methods: "*".into(),
            allow_headers: "*".into(),
            expose_headers: None,
            max_age: 5,
            allow_credential: false,
            allow_origins_by_regex: None,
            allow_origins_by_metadata: None,
            timing_allow_origins: None,
            timing_allow_origins_by_regex: None,
        }
    }
}

impl Define for Cors {
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 4000;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "\
Tells browsers which pages of other origins may use the answers. Every answer to an allowed origin carries the fields, \
whoever gave it: a page can read why it was refused. `OPTIONS` is answered here with 200, before authentication.

What the upstream says itself in fields of the same names is dropped, for an origin that is not allowed too, so that no \
answer allows more than is written here. `Vary: Origin` is added wherever the answer depends on the origin.

In `plugin_metadata` the mapping `allow_origins` has lists of origins by name, for `allow_origins_by_metadata`:

```yaml
plugin_metadata:
  - id: cors
    allow_origins:
      partners: https://a.example,https://b.example
```";
    const EXAMPLE: &'static str = "\
allow_origins: https://app.example.com,https://admin.example.com
allow_methods: GET,POST,PUT
allow_headers: Authorization,Content-Type
expose_headers: X-Request-Id
max_age: 600
allow_credential: true
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        let fault = |(name, text): (&String, &String)| {
            let fault = Origins::parse(&format!("allow_origins.{name}"), text).err()?;
            let mark = metadata.get("allow_origins").map_or(metadata.mark, |origins| origins.mark_of(name));
            Some(Diagnostic::error(mark, fault.path, *fault.code))
        };
        let faults: Vec<Diagnostic> = typed.allow_origins.iter().filter_map(fault).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let own_origins = cx.ok(conf.own_origins());
        let timing = cx.ok(conf.timing());
        cx.say(conf.check_lists().err());
        cx.say(conf.check_credentials().err());
        cx.say(conf.warnings());
        let (own, timing) = (own_origins?, timing?);
        Some(Compiled::build(move |build| {
            Ok(Sharing {
                origins: conf.policy(own, &build.metadata()?, build.place)?,
                timing,
                methods: match conf.allow_methods.as_str() {
                    "**" => ALL_METHODS.into(),
                    methods => methods.as_bytes().into(),
                },
                headers: match conf.allow_headers.as_str() {
                    "**" => AllowedFields::Asked,
                    fields => AllowedFields::Listed(fields.as_bytes().into()),
                },
                exposed: conf
                    .expose_headers
                    .filter(|fields| !fields.is_empty())
                    .map(|fields| fields.into_bytes().into()),
                max_age: conf.max_age.to_string().into_bytes().into(),
                credentials: conf.allow_credential,
            })
        }))
    }
}

const ALL_METHODS: &[u8] = b"GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";

impl Conf {
    fn own_origins(&self) -> Result<Origins, Invalid> {
        by_regex("allow_origins_by_regex", self.allow_origins_by_regex.as_deref())
            .unwrap_or_else(|| Origins::parse("allow_origins", &self.allow_origins))
    }

    fn timing(&self) -> Result<Option<Origins>, Invalid> {
        let listed = || self.timing_allow_origins.as_ref().map(|text| Origins::parse("timing_allow_origins", text));
        by_regex("timing_allow_origins_by_regex", self.timing_allow_origins_by_regex.as_deref())
            .or_else(listed)
            .transpose()
    }

    fn policy(&self, own: Origins, metadata: &Metadata, place: &str) -> Result<Policy, Invalid> {
        let names = self.allow_origins_by_metadata.as_deref().unwrap_or_default();
        let named = |(at, name): (usize, &String)| {
            let path = format!("allow_origins_by_metadata[{at}]");
            let Some(text) = metadata.allow_origins.get(name) else {
                tracing::warn!(
                    place,
                    name,
                    "cors: plugin_metadata has no allow_origins of this name: none is allowed by it"
                );
                return Ok(None);
            };
            let origins = Origins::parse(&path, text)?;
            if self.allow_credential && !origins.depends_on_origin() {
                let message = format!("the origins of the name '{name}' are *, which allow_credential rules out");
                return Err(Invalid::new(path, message));
            }
            Ok(Some(origins))
        };
        let named = names.iter().enumerate().filter_map(|name| named(name).transpose()).collect::<Result<_, _>>()?;
        Ok(Policy { own: Some(own).filter(|own| names.is_empty() || own.depends_on_origin()), named })
    }

    /// The lists of names go into fields as they stand.
    fn check_lists(&self) -> Result<(), Invalid> {
        let exposed = self.expose_headers.as_deref().unwrap_or_default();
        for (field, text, what) in [
            ("allow_methods", self.allow_methods.as_str(), "methods"),
            ("allow_headers", &self.allow_headers, "names of fields"),
            ("expose_headers", exposed, "names of fields"),
        ] {
            let mut names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            if !names.all(|name| FieldName::new(name).is_some()) {
                return Err(Invalid::new(field, format!("expected {what}, separated by commas, found {text:?}")));
            }
        }
        Ok(())
    }

    fn check_credentials(&self) -> Result<(), Invalid> {
        if !self.allow_credential {
            return Ok(());
        }
        for (field, text) in [
            ("allow_origins", Some(&self.allow_origins)),
            ("allow_methods", Some(&self.allow_methods)),
            ("allow_headers", Some(&self.allow_headers)),
            ("expose_headers", self.expose_headers.as_ref()),
            ("timing_allow_origins", self.timing_allow_origins.as_ref()),
        ] {
            if text.is_some_and(|text| text == "*") {
                let message = "no field may be * when allow_credential is true: name what is allowed, or write **";
                return Err(Invalid::new(field, message));
            }
        }
        Ok(())
    }

    fn warnings(&self) -> Vec<Invalid> {
        let mut found = Vec::new();
        for (field, text) in
            [("allow_origins", Some(&self.allow_origins)), ("timing_allow_origins", self.timing_allow_origins.as_ref())]
        {
            if let Some(odd) = text.and_then(|text| origins::never_sent(text)) {
                let message = format!("no browser sends the origin {odd}: it is in lower case and has no path");
                found.push(Invalid::warning(field, message));
            }
        }
        if self.expose_headers.as_deref() == Some("**") {
            found.push(Invalid::warning("expose_headers", "no browser knows ** here: name the fields"));
        }
        // With credentials `allow_origins` may not stay `*`, whether it is used or not.
        if self.allow_origins_by_regex.is_some() && self.allow_origins != "*" && !self.allow_credential {
            let message = "allow_origins_by_regex takes the place of allow_origins, which has no effect";
            found.push(Invalid::warning("allow_origins", message));
        }
        if self.timing_allow_origins_by_regex.is_some() && self.timing_allow_origins.is_some() {
            let message = "timing_allow_origins_by_regex takes the place of timing_allow_origins, which has no effect";
            found.push(Invalid::warning("timing_allow_origins", message));
        }
        found
    }
}

fn by_regex(path: &str, patterns: Option<&[String]>) -> Option<Result<Origins, Invalid>> {
    patterns.map(|patterns| Patterns::compile(path, patterns, false).map(Origins::Matching))
}

/// An instance.
#[derive(Debug)]
struct Sharing {
    origins: Policy,
    timing: Option<Origins>,
    methods: Box<[u8]>,
    headers: AllowedFields,
    exposed: Option<Box<[u8]>>,
    max_age: Box<[u8]>,
    credentials: bool,
}

#[derive(Debug)]
enum AllowedFields {
    Listed(Box<[u8]>),
    /// Those that the page asks for.
    Asked,
}

const ALLOW_ORIGIN: &[u8] = b"Access-Control-Allow-Origin";
const ALLOW_METHODS: &[u8] = b"Access-Control-Allow-Methods";
const ALLOW_HEADERS: &[u8] = b"Access-Control-Allow-Headers";
const ALLOW_CREDENTIALS: &[u8] = b"Access-Control-Allow-Credentials";
const EXPOSE_HEADERS: &[u8] = b"Access-Control-Expose-Headers";
const MAX_AGE: &[u8] = b"Access-Control-Max-Age";
const TIMING_ALLOW_ORIGIN: &[u8] = b"Timing-Allow-Origin";

impl Plugin for Sharing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.request().method() == Method::Options { cx.reply(200).done() } else { Flow::Continue }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let (request, response) = cx.messages();
        // As the client sent it: other plugins may have changed it for the upstream.
        let sent = |name: &[u8]| request.head.fields.received(request.buffer.bytes(), name);
        let origin = sent(b"origin");
        let (fields, base) = (&mut response.head.fields, response.buffer.bytes());
        for name in [ALLOW_ORIGIN, ALLOW_METHODS, ALLOW_HEADERS, ALLOW_CREDENTIALS, MAX_AGE] {
            fields.remove_str(base, name);
        }
        if self.exposed.is_some() {
            fields.remove_str(base, EXPOSE_HEADERS);
        }
        if let Some(allowed) = self.origins.allowed(origin) {
            let asked = match &self.headers {
                AllowedFields::Listed(listed) => Some(&**listed),
                AllowedFields::Asked => sent(b"access-control-request-headers"),
            };
            fields.add(ALLOW_ORIGIN, allowed);
            for (name, value) in [
                (ALLOW_METHODS, Some(&*self.methods)),
                (MAX_AGE, Some(&*self.max_age)),
                (EXPOSE_HEADERS, self.exposed.as_deref()),
                (ALLOW_HEADERS, asked),
                (ALLOW_CREDENTIALS, self.credentials.then_some(&b"true"[..])),
            ] {
                if let Some(value) = value.filter(|value| !value.is_empty()) {
                    fields.add(name, value);
                }
            }
        }
        if let Some(timing) = &self.timing {
            fields.remove_str(base, TIMING_ALLOW_ORIGIN);
            if let Some(allowed) = timing.allowed(origin) {
                fields.add(TIMING_ALLOW_ORIGIN, allowed);
            }
        }
        let varies = self.origins.depends_on_origin() || self.timing.as_ref().is_some_and(Origins::depends_on_origin);
        if varies && !varies_by_origin(fields, base) {
            fields.add(b"Vary", b"Origin");
        }
        Flow::Continue
    }
}

/// True if the field for caches is there already (RFC 9110 section 12.5.5).
fn varies_by_origin(fields: &Fields, base: &[u8]) -> bool {
    let vary = fields.iter(base).filter(|(name, _)| name.eq_ignore_ascii_case(b"vary"));
    vary.flat_map(|(_, value)| weir_wire::list(value)).any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
}
