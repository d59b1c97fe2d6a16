//! `referer-restriction`: by the page a request comes from.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::HostPattern;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::authority;

use super::Listed;
use super::host_set::HostSet;

/// The definition.
#[derive(Debug)]
pub(crate) struct RefererRestriction;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Lets requests through that have no `Referer`, or none with a host.
    bypass_missing: bool,
    /// Hosts that are let through, and no others: `example.com`, or `*.example.com` for all below it. Either this or
    /// `blacklist`.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<HostPattern>>,
    /// Hosts that are refused, and no others. Either this or `whitelist`.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<HostPattern>>,
    /// The message to a refused client.
    #[schemars(length(min = 1, max = 1024))]
    message: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            bypass_missing: false,
            whitelist: None,
            blacklist: None,
            message: "Your referer host is not allowed".into(),
        }
    }
}

impl Define for RefererRestriction {
    const NAME: &'static str = "referer-restriction";
    const PRIORITY: i32 = 2990;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets requests through, or refuses them with 403, by the host in their `Referer`: keeps other people's pages from showing \
one's images. Hosts are compared without regard to case and port.

A `Referer` that is no `http` or `https` URI with a host, or has user information in it, counts as missing.";
    const EXAMPLE: &'static str = "\
bypass_missing: true
whitelist: [example.com, \"*.example.com\"]
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let list = cx.ok(conf.list())?;
        Some(Compiled::ready(Restricted { list, bypass: conf.bypass_missing, message: conf.message }))
    }
}

impl Conf {
    fn list(&self) -> Result<Listed<HostSet>, Invalid> {
        let (allowed, denied) = (self.whitelist.as_ref(), self.blacklist.as_ref());
        Listed::compile(("whitelist", allowed), ("blacklist", denied), |_, hosts| Ok(HostSet::new(hosts)))
    }
}

/// An instance.
#[derive(Debug)]
struct Restricted {
    list: Listed<HostSet>,
    bypass: bool,
    message: String,
}

impl Plugin for Restricted {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut host = cx.take_scratch();
        host.extend_from_slice(cx.request().field_str("Referer").and_then(host_of).unwrap_or_default());
        host.make_ascii_lowercase();
        let passes = if host.is_empty() { self.bypass } else { self.list.lets_through(|set| set.contains(&host)) };
        cx.put_scratch(host);
        if passes { Flow::Continue } else { cx.refuse(403, &self.message) }
    }
}

/// The host of a URI (RFC 3986 section 3); `//host/` is one too, by the scheme of the page.
fn host_of(uri: &[u8]) -> Option<&[u8]> {
    let colon = uri.iter().position(|b| matches!(b, b':' | b'/')).filter(|at| uri.get(*at) == Some(&b':'));
    let (scheme, rest) = match colon {
        Some(at) => (uri.get(..at)?, uri.get(at + 1..)?),
        None => (&b""[..], uri),
    };
    if ![&b""[..], b"http", b"https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let rest = rest.strip_prefix(b"//")?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#' | b'\\')).unwrap_or(rest.len());
    authority::parse(rest.get(..end)?).ok().map(|authority| authority.host)
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn hosts_are_taken_from_uris() {
        for (uri, host) in [
            ("http://a.test", Some("a.test")),
            ("https://a.test/", Some("a.test")),
            ("HTTPS://A.test:8443/x?y#z", Some("A.test")),
            ("//a.test/x", Some("a.test")),
            ("http://a.test?x", Some("a.test")),
            ("http://[::1]:80/x", Some("[::1]")),
            ("http://a.test\\.b.test/", Some("a.test")),
            ("http://good.test@evil.test/", None),
            ("http://good.test:80@evil.test/", None),
            ("http:///x", None),
            ("http:a.test", None),
            ("ftp://a.test/", None),
            ("javascript://a.test/", None),
            ("://a.test/", Some("a.test")),
            ("a.test", None),
            ("/x", None),
            ("/x:y", None),
            ("", None),
        ] {
            let found = host_of(uri.as_bytes()).map(|host| std::str::from_utf8(host).unwrap());
            assert_eq!(found, host, "{uri}");
        }
    }
}
