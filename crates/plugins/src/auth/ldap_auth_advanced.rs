//! `ldap-auth-advanced`: a directory finds the user by an attribute, and takes the password for the entry that it has found.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, CompileCx, Compiled, Credentials, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx,
};
use weir_wire::name::FieldName;

use super::basic_auth::BASE64;
use super::credentials::{self, CredentialTable};
use super::directory::{Directory, Login, Search, Security, Server, host_and_port};

/// The definition.
#[derive(Debug)]
pub(crate) struct LdapAuthAdvanced;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The server: `HOST` or `HOST:PORT`. The port is 389 unless it is given, and 636 with `use_ldaps`.
    #[schemars(length(min = 1, max = 256))]
    ldap_uri: String,
    /// Speaks TLS from the first byte (LDAPS).
    #[serde(default)]
    use_ldaps: bool,
    /// Asks for TLS on the connection before anything else (RFC 4511 section 4.14).
    #[serde(default)]
    use_starttls: bool,
    /// Verifies the certificate of the server, by an authority of `tls.trusted_certificate` and for the host of `ldap_uri`.
    #[serde(default = "super::service_conf::yes")]
    ssl_verify: bool,
    /// Milliseconds for all that is asked about a request, connecting included.
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = 60_000))]
    timeout: u64,
    /// Keeps connections for further requests.
    #[serde(default = "super::service_conf::yes")]
    keepalive: bool,
    /// Milliseconds for which an idle connection is kept.
    #[serde(default = "super::service_conf::minute")]
    #[schemars(range(min = 1000))]
    keepalive_timeout: u64,
    /// Idle connections that each worker keeps.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    keepalive_pool_size: usize,
    /// No effect: connections are shared by all who ask the same server in the same way.
    #[schemars(length(min = 1, max = 256))]
    keepalive_pool_name: Option<String>,
    /// Distinguished name of the entry at and below which users are looked for.
    #[schemars(length(min = 1, max = 4096))]
    base_dn: String,
    /// The attribute that has the name of a user.
    #[serde(default = "super::ldap_auth::cn")]
    #[schemars(
        length(max = 256),
        regex(pattern = r"^([A-Za-z][A-Za-z0-9-]*|(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+)(;[A-Za-z0-9-]+)*$")
    )]
    attribute: String,
    /// Distinguished name of the account that looks for users. Unset: nobody does, which the directory has to allow.
    #[schemars(length(min = 1, max = 4096))]
    bind_dn: Option<String>,
    /// Its password.
    #[schemars(length(min = 1, max = 4096))]
    ldap_password: Option<String>,
    /// Entries that the directory gives at most. Two are enough to see that a name is not unique.
    #[serde(default = "two")]
    #[schemars(range(min = 2))]
    size_limit: u32,
    /// Seconds for which the directory searches at most; 0: as long as it likes.
    #[serde(default = "five_seconds")]
    time_limit: u32,
    /// Refuses users that are no consumers. Otherwise they pass, and no consumer is set.
    #[serde(default = "super::service_conf::yes")]
    consumer_required: bool,
    /// The scheme of `Proxy-Authorization` and `Authorization`: `ldap` or `basic`, in any case.
    #[serde(default)]
    header_type: HeaderType,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 7617 section 2).
    #[serde(default = "super::ldap_auth::ldap")]
    #[schemars(length(min = 1))]
    realm: String,
}

/// A scheme.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum HeaderType {
    #[default]
    Ldap,
    Basic,
}

fn ten_seconds() -> u64 {
    10_000
}

fn five() -> usize {
    5
}

fn five_seconds() -> u32 {
    5
}

fn two() -> u32 {
    2
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The distinguished name of the user, as the directory writes it. No two consumers or credentials may have the same.
    #[schemars(length(min = 1, max = 4096))]
    user_dn: String,
}

impl Conf {
    fn server(&self) -> Result<Server, Invalid> {
        let (host, port) = host_and_port(&self.ldap_uri)
            .ok_or_else(|| Invalid::new("ldap_uri", "expected HOST or HOST:PORT, such as ldap.example.org:389"))?;
        let verify = self.ssl_verify;
        let tls = match (self.use_ldaps, self.use_starttls) {
            (true, true) => return Err(Invalid::new("use_starttls", "expected either use_ldaps or use_starttls")),
            (true, false) => Security::Tls { verify },
            (false, true) => Security::StartTls { verify },
            (false, false) => Security::Plain,
        };
        Ok(Server {
            host: host.to_owned(),
            port: port.unwrap_or(if self.use_ldaps { 636 } else { 389 }),
            tls,
            timeout: Duration::from_millis(self.timeout),
            kept: Duration::from_millis(self.keepalive_timeout),
            idle: if self.keepalive { self.keepalive_pool_size } else { 0 },
        })
    }
}

impl Define for LdapAuthAdvanced {
    const NAME: &'static str = "ldap-auth-advanced";
    const PRIORITY: i32 = 2541;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when a directory (LDAP) takes its user name and password, wherever below `base_dn` the user's entry is: it \
is looked for by `attribute`, as the account of `bind_dn` or as nobody, and then the password is checked by a bind with its \
distinguished name. `Proxy-Authorization` goes before `Authorization` where it has a name and a password in the form of \
`header_type`: `ldap` or `Basic`, and both in base64 with a colon between them. With `consumer_required` there has to be a consumer \
with that distinguished name. The upstream is told who called by `X-Consumer-Username` and, where they are known, \
`X-Credential-Identifier` and `X-Consumer-Custom-ID`; what the client sent under these names, and as `X-Authenticated-Groups`, is \
dropped.

Otherwise the answer is 401 with `WWW-Authenticate` and `{\"message\":\"Authorization required\"}`, whatever was wrong; the log says \
it at the level `info`. A name that several entries have is refused. An empty password is never taken: a directory would say yes to \
it without looking (RFC 4513 section 5.1.2).

A directory that gives no answer within `timeout`, does not take the account that looks for users, or cannot search refuses the \
request with 500.";
    const EXAMPLE: &'static str = "\
ldap_uri: 127.0.0.1:1389
base_dn: dc=example,dc=org
attribute: uid
header_type: basic
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["ldap_password"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(super::check_realm(&conf.realm).err());
        if conf.bind_dn.is_some() && conf.ldap_password.is_none() {
            cx.say([Invalid::new("ldap_password", "bind_dn needs a password")]);
        }
        if conf.bind_dn.is_none() && conf.ldap_password.is_some() {
            cx.warn("ldap_password", "it has no effect without bind_dn");
        }
        if (conf.use_ldaps || conf.use_starttls) && !conf.ssl_verify {
            cx.warn("ssl_verify", "anybody on the way can answer in the place of the directory");
        }
        if conf.keepalive_pool_name.is_some() {
            cx.warn("keepalive_pool_name", "it has no effect: connections are shared by all who ask the same server");
        }
        let server = cx.ok(conf.server())?;
        Some(Compiled::build(move |build| {
            let (scheme, told) = match conf.header_type {
                HeaderType::Ldap => ("ldap", "ldap"),
                HeaderType::Basic => ("basic", "Basic"),
            };
            Ok(Checked {
                directory: Directory::build("ldap_uri", server, build)?,
                search: Search {
                    base: conf.base_dn,
                    attribute: conf.attribute,
                    size_limit: conf.size_limit,
                    time_limit: conf.time_limit,
                },
                account: conf.bind_dn.zip(conf.ldap_password),
                needs_consumer: conf.consumer_required,
                timeout: Duration::from_millis(conf.timeout),
                scheme,
                challenge: format!("{told} realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
                dropped: DROPPED.map(FieldName::constant),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let table = credentials::changed_texts(&change, |conf| &conf.user_dn, ("user_dn", "distinguished name"))?;
        Ok(Arc::new(table))
    }
}

/// Fields that tell of users, and that no client may send.
const DROPPED: [&str; 4] =
    ["X-Authenticated-Groups", "X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"];

/// An instance.
#[derive(Debug)]
struct Checked {
    directory: Directory,
    search: Search,
    /// Distinguished name and password of the account that looks for users.
    account: Option<(String, String)>,
    needs_consumer: bool,
    timeout: Duration,
    /// In lower case.
    scheme: &'static str,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
    dropped: [FieldName; 4],
}

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        for name in &self.dropped {
            cx.request_mut().remove_field(name);
        }
        match self.given(cx) {
            Some(_) => Flow::Suspend,
            None => self.refuse(cx, "no name and password"),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some((name, password)) = self.given(cx) else { return self.refuse(cx, "no name and password") };
            let account = self.account.as_ref().map(|(name, password)| (name.as_str(), password.as_str()));
            match self.directory.find(account, &self.search, &name, &password).await {
                Ok(Login::Taken(dn)) => self.admit(cx, &dn),
                Ok(Login::Refused(reason)) => self.refuse(cx, reason),
                Err(_) => cx.fail(500, "ldap-auth-advanced: no answer from the directory"),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // All that is asked ends before, by its own limit.
        Some(self.timeout + Duration::from_secs(5))
    }
}

impl Checked {
    /// Name and password of the request.
    fn given(&self, cx: &RequestCx<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
        let request = cx.request();
        let of = |name: &str| request.field_str(name).and_then(|value| self.pair(value));
        of("Proxy-Authorization").or_else(|| of("Authorization"))
    }

    fn pair(&self, value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let (scheme, rest) = value.split_at_checked(self.scheme.len())?;
        let is_ours = scheme.eq_ignore_ascii_case(self.scheme.as_bytes()) && matches!(rest.first(), Some(b' ' | b'\t'));
        let mut pair = BASE64.decode(weir_wire::trim_ows(rest)).ok().filter(|_| is_ours)?;
        // RFC 7617 section 2: the first colon ends the user name.
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let password = pair.split_off(colon + 1);
        pair.pop();
        // Names in a directory are UTF-8 (RFC 4511 section 4.1.2).
        let is_good = !pair.is_empty() && !password.is_empty() && std::str::from_utf8(&pair).is_ok();
        is_good.then_some((pair, password))
    }

    fn admit(&self, cx: &mut RequestCx<'_>, dn: &[u8]) -> Flow {
        if !self.needs_consumer {
            return Flow::Continue;
        }
        let table = cx.credentials::<CredentialTable>(self.position);
        match table.and_then(|table| table.find(dn)).map(|found| found.who) {
            Some(who) => {
                cx.set_consumer(who);
                Flow::Continue
            }
            None => self.refuse(cx, "no consumer has the user's distinguished name"),
        }
    }

    fn refuse(&self, cx: &mut RequestCx<'_>, reason: &str) -> Flow {
        tracing::info!(reason, "ldap-auth-advanced refuses a request");
        super::refuse(cx, None, &self.challenge, "Authorization required")
    }
}
