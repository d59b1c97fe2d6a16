//! `real-ip`: the client's address from a variable of the request.

use std::borrow::Cow;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_expr::{Value, Variable, VariableError};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::forwarded;
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct RealIp;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Name of the variable that holds the address, such as `http_x_real_ip`, `arg_realip` or `http_x_forwarded_for`.
    /// The address may have a port, which then becomes the client's too. The name of a field, such as
    /// `X-Forwarded-For`, is taken for its variable, with a warning.
    #[schemars(length(min = 1))]
    source: String,
    /// Addresses and ranges that are believed: from no other client the variable is looked at. Unset: every client is
    /// believed, which is right only where none can come but through a proxy that sets the variable.
    #[serde(default)]
    #[schemars(length(min = 1))]
    trusted_addresses: Option<Vec<AddrRange>>,
    /// With the source `http_x_forwarded_for`: goes on from the right past trusted addresses to the first that is not.
    #[serde(default)]
    recursive: bool,
}

impl Define for RealIp {
    const NAME: &'static str = "real-ip";
    const PRIORITY: i32 = 23000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Takes the client's address from a variable of the request: for the plugins that follow, for the log, and for what the \
upstream is told in `X-Real-IP` and `X-Forwarded-For`. Without the variable, or with one that is no address, the address \
stays as it is. Routes are matched before, by the address that the settings `real_ip` come to.

In `X-Forwarded-For`, which may hold several addresses and stand in several fields, it is the last one, or with \
`recursive` the last that is not in `trusted_addresses`; if all are, the first.";
    const EXAMPLE: &'static str = "\
source: http_x_forwarded_for
trusted_addresses: [127.0.0.1, 10.0.0.0/8]
recursive: true
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let name = name_of(&conf.source);
        let source = cx.ok(Source::of(&conf));
        if source.is_some() && *name != conf.source {
            cx.warn("source", format!("{} is the name of a field: taken for the variable {name}", conf.source));
        } else if source.is_some() {
            cx.say(VariableError::doubt(&name).map(|reason| Invalid::warning("source", reason.to_string())));
        }
        if conf.recursive && !(name == FORWARDED_FOR && conf.trusted_addresses.is_some()) {
            cx.warn("recursive", "has no effect without trusted_addresses and the source http_x_forwarded_for");
        }
        let trusted = conf.trusted_addresses.map(|ranges| ranges.into_boxed_slice());
        Some(Compiled::ready(Believing { source: source?, recursive: conf.recursive && trusted.is_some(), trusted }))
    }
}

/// The source that is a list.
const FORWARDED_FOR: &str = "http_x_forwarded_for";

/// The name of the variable: people write the name of a field here too, such as `X-Forwarded-For`.
fn name_of(source: &str) -> Cow<'_, str> {
    let is_field = source.contains(|c: char| c == '-' || c.is_ascii_uppercase()) && FieldName::new(source).is_some();
    match Variable::parse(source) {
        Err(_) if is_field => Cow::Owned(format!("http_{}", source.to_ascii_lowercase().replace('-', "_"))),
        _ => Cow::Borrowed(source),
    }
}

/// The part of a request that carries the address.
#[derive(Debug)]
enum Source {
    /// In a list, to which each proxy appends.
    List(FieldName),
    One(Variable),
}

impl Source {
    fn of(conf: &Conf) -> Result<Self, Invalid> {
        let source = name_of(&conf.source);
        if source == FORWARDED_FOR
            && let Some(name) = FieldName::new("X-Forwarded-For")
        {
            return Ok(Self::List(name));
        }
        let variable = Variable::parse(&source).map_err(|error| Invalid::new("source", error.to_string()))?;
        Ok(Self::One(variable))
    }

    fn read(
        &self,
        cx: &RequestCx<'_>,
        recursive: bool,
        trusted: impl Fn(IpAddr) -> bool,
    ) -> Option<(IpAddr, Option<u16>)> {
        match self {
            Self::List(name) => {
                let request = cx.request();
                forwarded::client(request.head.fields.all(request.buffer.bytes(), name), recursive, trusted)
            }
            Self::One(variable) => match cx.variable(variable)? {
                Value::Bytes(text) => forwarded::parse(weir_wire::trim_ows(text)),
                Value::Ip(addr) => Some((addr, None)),
                Value::Number(_) | Value::Millis(_) | Value::Boolean(_) | Value::Json(_) => None,
            },
        }
    }
}

/// An instance.
#[derive(Debug)]
struct Believing {
    source: Source,
    /// `None`: all are.
    trusted: Option<Box<[AddrRange]>>,
    recursive: bool,
}

impl Plugin for Believing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let trusted = |addr| self.trusted.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(addr)));
        if trusted(cx.client().addr)
            && let Some((addr, port)) = self.source.read(cx, self.recursive, trusted)
        {
            cx.set_client_addr(addr, port);
        }
        Flow::Continue
    }
}
