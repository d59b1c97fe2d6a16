//! Kong's `ldap-auth`: a caller is known by a user name and a password that a directory takes.

mod found;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::body;
use super::caller::{Caller, challenge};
use crate::auth::basic_auth::BASE64;
use crate::auth::directory::{Directory, IDLE, Security, Server, host_and_port, user_dn};
use found::Found;

/// The definition.
#[derive(Debug)]
pub(crate) struct LdapAuth;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Name or address of the directory.
    ldap_host: String,
    /// Its port.
    #[serde(default = "port")]
    ldap_port: u16,
    /// TLS from the first byte.
    #[serde(default)]
    ldaps: bool,
    /// TLS that is asked for on the connection (StartTLS).
    #[serde(default)]
    start_tls: bool,
    /// Verifies the certificate of the directory for `ldap_host`.
    #[serde(default)]
    verify_ldap_host: bool,
    /// Part of the distinguished names that all users have.
    base_dn: String,
    /// Attribute that user names are values of.
    #[schemars(regex(pattern = "^[A-Za-z0-9.-]+$"))]
    attribute: String,
    /// Seconds for which a password that the directory has taken is taken without asking.
    #[serde(default = "cache_ttl")]
    #[schemars(range(min = 0, max = 100_000_000))]
    cache_ttl: f64,
    /// Milliseconds for an answer of the directory, connecting included.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 600_000))]
    timeout: f64,
    /// Milliseconds for which an idle connection is kept.
    #[serde(default = "keepalive")]
    #[schemars(range(min = 0, max = 2_147_483_646))]
    keepalive: f64,
    /// Takes the credentials out of the request.
    #[serde(default)]
    hide_credentials: bool,
    /// Scheme of `Authorization` and `Proxy-Authorization`, without regard to case.
    #[serde(default = "header_type")]
    #[schemars(length(min = 1))]
    header_type: String,
    /// Name or id of the consumer as whom requests without valid credentials go on.
    #[serde(default)]
    anonymous: Option<String>,
    /// The realm told in `WWW-Authenticate`.
    #[serde(default)]
    realm: Option<String>,
}

fn port() -> u16 {
    389
}

fn cache_ttl() -> f64 {
    60.0
}

fn timeout() -> f64 {
    10_000.0
}

fn keepalive() -> f64 {
    60_000.0
}

fn header_type() -> String {
    "ldap".into()
}

impl Conf {
    fn server(&self) -> Result<Server, Invalid> {
        let tls = match (self.ldaps, self.start_tls) {
            (true, true) => {
                return Err(Invalid::new("start_tls", "ldaps and start_tls cannot be enabled at the same time"));
            }
            (true, false) => Security::Tls { verify: self.verify_ldap_host },
            (false, true) => Security::StartTls { verify: self.verify_ldap_host },
            (false, false) => Security::Plain,
        };
        let is_token = self.header_type.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~+/".contains(&b));
        if !is_token {
            return Err(Invalid::new("header_type", "expected the name of a scheme"));
        }
        let host = self.ldap_host.trim_start_matches('[').trim_end_matches(']');
        let is_host = host.parse::<Ipv6Addr>().is_ok() || matches!(host_and_port(host), Some((_, None)));
        if !is_host || self.ldap_port == 0 {
            return Err(Invalid::new("ldap_host", "expected a name or an address"));
        }
        Ok(Server {
            host: host.to_owned(),
            port: self.ldap_port,
            tls,
            timeout: Duration::from_millis(self.timeout as u64),
            kept: Duration::from_millis(self.keepalive as u64),
            idle: IDLE,
        })
    }
}

impl Define for LdapAuth {
    const NAME: &'static str = "ldap-auth";
    const PRIORITY: i32 = 1200;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Lets a request through with a user name and a password that a directory (LDAP) takes.";
    const EXAMPLE: &'static str = "\
{ldap_host: 127.0.0.1, ldap_port: 1389, base_dn: 'ou=users,dc=example,dc=org', attribute: cn, hide_credentials: true}\n";
    const AUTH: bool = true;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let server = cx.ok(conf.server())?;
        match server.tls {
            Security::Tls { verify: false } | Security::StartTls { verify: false } => {
                cx.warn("verify_ldap_host", "anybody on the way can answer in the place of the directory");
            }
            Security::Plain if conf.verify_ldap_host => {
                cx.warn("verify_ldap_host", "it has no effect without ldaps or start_tls");
            }
            _ => {}
        }
        Some(Compiled::build(move |build| {
            let scheme = conf.header_type.to_uppercase();
            let state = format!("kong ldap-auth {:?}", (&server, &conf.attribute, &conf.base_dn));
            let found = build.states.get_or_create(&state, || Found::new(build.limit_keys));
            Ok(Checked {
                found,
                limit: server.timeout,
                directory: Directory::build("ldap_host", server, build)?,
                attribute: conf.attribute,
                base: conf.base_dn,
                ttl: (conf.cache_ttl * 1000.0) as u64,
                hide: conf.hide_credentials,
                scheme: conf.header_type.to_ascii_lowercase().into_bytes(),
                fields: ["Proxy-Authorization", "Authorization"].map(FieldName::constant),
                caller: Caller::new(conf.anonymous.as_deref(), challenge(&scheme, conf.realm.as_deref()), build),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    directory: Directory,
    /// Limit for a bind.
    limit: Duration,
    /// Credentials that the directory has taken.
    found: Arc<Found>,
    /// Milliseconds for which they are.
    ttl: u64,
    attribute: String,
    base: String,
    hide: bool,
    /// In lower case.
    scheme: Vec<u8>,
    fields: [FieldName; 2],
    caller: Caller,
}

/// A user name and a password.
struct Given {
    name: Vec<u8>,
    password: Vec<u8>,
}

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) {
            return Flow::Continue;
        }
        let mut is_asked = false;
        for field in &self.fields {
            let Some(given) = self.given(cx, field) else { continue };
            let (dn, now) = (self.dn(&given), cx.now_ms());
            if self.ttl > 0 && self.found.is_known(&dn, &given.password, now) {
                return self.accept(cx, &given);
            }
            is_asked = true;
        }
        if is_asked { Flow::Suspend } else { self.caller.refuse(cx, "Unauthorized") }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for field in &self.fields {
                let Some(given) = self.given(cx, field) else { continue };
                let dn = self.dn(&given);
                match self.directory.takes(&dn, &given.password).await {
                    Ok(true) => {
                        if self.ttl > 0 {
                            self.found.remember(&dn, &given.password, cx.now_ms() + self.ttl);
                        }
                        return self.accept(cx, &given);
                    }
                    Ok(false) => {}
                    Err(_) => return body::error(cx, 500, "An unexpected error occurred", &[]),
                }
            }
            self.caller.refuse(cx, "Unauthorized")
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A bind ends before, by its own limit; there may be one for each field.
        Some(self.limit * 2 + Duration::from_secs(5))
    }
}

impl Checked {
    /// Name and password in a field of the request.
    fn given(&self, cx: &RequestCx<'_>, field: &FieldName) -> Option<Given> {
        let value = cx.request().field(field)?;
        let (scheme, rest) = value.split_at_checked(self.scheme.len())?;
        let encoded = rest.trim_ascii();
        if !scheme.eq_ignore_ascii_case(&self.scheme) || rest.len() == encoded.len() {
            return None;
        }
        let mut name = BASE64.decode(encoded).ok()?;
        let colon = name.iter().position(|b| *b == b':').filter(|at| *at > 0)?;
        let password = name.split_off(colon).split_off(1);
        (!password.is_empty()).then_some(Given { name, password })
    }

    fn dn(&self, given: &Given) -> Vec<u8> {
        let mut dn = Vec::with_capacity(self.base.len() + given.name.len() + 16);
        user_dn(&self.attribute, &given.name, &self.base, &mut dn);
        dn
    }

    fn accept(&self, cx: &mut RequestCx<'_>, given: &Given) -> Flow {
        if self.hide {
            self.fields.iter().for_each(|field| cx.request_mut().remove_field(field));
        }
        self.caller.accept_alone(cx, Some(&given.name), Box::default())
    }
}
