//! `ldap-auth`: a consumer is known by a user name and a password that a directory takes.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Io, LocalFuture, Phases,
    Plugin, RequestCx,
};
use weir_wire::name::Known;

use super::basic_auth::{BASE64, credentials_of};
use super::credentials::{self, CredentialTable};
use super::directory::{Directory, IDLE, KEPT, Security, Server, host_and_port, user_dn};

/// The definition.
#[derive(Debug)]
pub(crate) struct LdapAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The part of the distinguished names that all users have, such as `ou=users,dc=example,dc=org`.
    base_dn: String,
    /// The server: `HOST` or `HOST:PORT`. The port is 389 unless it is given, and 636 with `use_tls`.
    ldap_uri: String,
    /// Speaks TLS from the first byte (LDAPS). Without it passwords can be read on the way.
    #[serde(default)]
    use_tls: bool,
    /// Verifies the certificate of the server, by an authority of `tls.trusted_certificate` and for the host of `ldap_uri`.
    #[serde(default)]
    tls_verify: bool,
    /// The attribute that user names are values of.
    #[serde(default = "cn")]
    #[schemars(regex(pattern = "^[A-Za-z0-9.-]+$"))]
    uid: String,
    /// Takes `Authorization` out of the request before it goes upstream.
    #[serde(default)]
    hide_credentials: bool,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 7617 section 2).
    #[serde(default = "ldap")]
    #[schemars(length(min = 1))]
    realm: String,
}

pub(super) fn cn() -> String {
    "cn".into()
}

pub(super) fn ldap() -> String {
    "ldap".into()
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The distinguished name of the user, as the plugin makes it: `UID=NAME,BASE_DN`. Of the name `,+"\<>;=` are escaped by a
    /// backslash, and so are a `#` and blanks at its ends. No two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    user_dn: String,
}

/// Limit for an answer of the directory.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Define for LdapAuth {
    const NAME: &'static str = "ldap-auth";
    const PRIORITY: i32 = 2540;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when a directory (LDAP) takes the user name and the password of `Authorization: Basic …`, and there is a \
consumer with the user's distinguished name. The name is `UID=NAME,BASE_DN`, and the password is checked by a bind with it. The \
upstream is told who called by `X-Consumer-Username` and, where they are known, `X-Credential-Identifier` and \
`X-Consumer-Custom-ID`.

Otherwise the answer is 401 with `WWW-Authenticate: Basic realm=\"…\"`. The body tells a missing field (`Missing authorization in \
request`) from one that cannot be read (`Invalid authorization in request`) and from a wrong name or password (`Invalid user \
authorization`). An empty password is never taken: a directory would say yes to it without looking (RFC 4513 section 5.1.2).

A directory that gives no answer within 10 seconds, or says that it cannot check passwords, refuses the request with 503, so \
that an outage is not taken for a wrong password. (APISIX answers 401.) Each worker keeps up to 5 connections to a directory, \
for a minute without use.";
    const EXAMPLE: &'static str = "\
base_dn: ou=users,dc=example,dc=org
ldap_uri: 127.0.0.1:1389
uid: cn
hide_credentials: true
";
    const AUTH: bool = true;

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(super::check_realm(&conf.realm).err());
        if conf.use_tls && !conf.tls_verify {
            cx.warn("tls_verify", "anybody on the way can answer in the place of the directory");
        }
        if conf.tls_verify && !conf.use_tls {
            cx.warn("tls_verify", "it has no effect without use_tls");
        }
        let Some((host, port)) = host_and_port(&conf.ldap_uri) else {
            cx.say([Invalid::new("ldap_uri", "expected HOST or HOST:PORT, such as ldap.example.org:389")]);
            return None;
        };
        let server = Server {
            host: host.to_owned(),
            port: port.unwrap_or(if conf.use_tls { 636 } else { 389 }),
            tls: match conf.use_tls {
                true => Security::Tls { verify: conf.tls_verify },
                false => Security::Plain,
            },
            timeout: TIMEOUT,
            kept: KEPT,
            idle: IDLE,
        };
        Some(Compiled::build(move |build| {
            Ok(Checked {
                directory: Directory::build("ldap_uri", server, build)?,
                attribute: conf.uid,
                base: conf.base_dn,
                hide: conf.hide_credentials,
                challenge: format!("Basic realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let table = credentials::changed_texts(&change, |conf| &conf.user_dn, ("user_dn", "distinguished name"))?;
        Ok(Arc::new(table))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    directory: Directory,
    attribute: String,
    base: String,
    hide: bool,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
}

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        match given(cx) {
            Some(_) => Flow::Suspend,
            None => self.refuse(cx, "Missing authorization in request"),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some((dn, password)) = self.named(cx) else {
                return self.refuse(cx, "Invalid authorization in request");
            };
            match self.directory.takes(&dn, &password).await {
                Ok(is_taken) => match self.consumer(cx, &dn).filter(|_| is_taken) {
                    Some(who) => self.admit(cx, who),
                    None => self.refuse(cx, "Invalid user authorization"),
                },
                Err(_) => cx.fail(503, "ldap-auth: no answer from the directory"),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A bind ends before, by its own limit.
        Some(TIMEOUT + Duration::from_secs(5))
    }
}

/// The value of `Authorization`.
fn given<'c>(cx: &'c RequestCx<'_>) -> Option<&'c [u8]> {
    let request = cx.request();
    request.head.fields.get_known(request.buffer.bytes(), Known::Authorization)
}

impl Checked {
    /// Distinguished name and password of the request.
    fn named(&self, cx: &RequestCx<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut pair = BASE64.decode(credentials_of(given(cx)?)?).ok()?;
        // RFC 7617 section 2: the first colon ends the user name.
        let colon = pair.iter().position(|b| *b == b':')?;
        let mut dn = Vec::with_capacity(self.base.len() + colon + 16);
        user_dn(&self.attribute, pair.get(..colon).filter(|name| !name.is_empty())?, &self.base, &mut dn);
        Some((dn, pair.split_off(colon + 1)))
    }

    fn consumer(&self, cx: &RequestCx<'_>, dn: &[u8]) -> Option<ConsumerMatch> {
        cx.credentials::<CredentialTable>(self.position)?.find(dn).map(|found| found.who)
    }

    fn admit(&self, cx: &mut RequestCx<'_>, who: ConsumerMatch) -> Flow {
        if self.hide {
            cx.request_mut().head.fields.remove_known(Known::Authorization);
        }
        cx.set_consumer(who);
        Flow::Continue
    }

    fn refuse(&self, cx: &mut RequestCx<'_>, message: &str) -> Flow {
        super::refuse(cx, None, &self.challenge, message)
    }
}
