//! `basic-auth`: a consumer is known by user name and password (RFC 7617).

use std::sync::Arc;

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin,
    RequestCx,
};
use weir_wire::name::Known;

use super::credentials::{self, CredentialTable, same_secret};

/// The definition.
#[derive(Debug)]
pub(crate) struct BasicAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Takes `Authorization` out of the request before it goes upstream.
    hide_credentials: bool,
    /// Name of the consumer as whom requests without valid credentials are let through; without it, and while it does
    /// not exist, they are refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 7617 section 2).
    #[schemars(length(min = 1))]
    realm: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self { hide_credentials: false, anonymous_consumer: None, realm: "basic".into() }
    }
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The user name. It may not hold a colon, and no two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: String,
}

impl Define for BasicAuth {
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 2520;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when `Authorization: Basic …` carries the user name and the password of a consumer. The upstream \
is told who called by `X-Consumer-Username` and, where they are known, `X-Credential-Identifier` and \
`X-Consumer-Custom-ID`.

Otherwise the answer is 401 with `WWW-Authenticate: Basic realm=\"…\"`, unless `anonymous_consumer` names a consumer as \
whom such requests are let through. The body tells a missing field (`Missing authorization in request`) from one that \
cannot be read (`Invalid authorization in request`) and from a wrong name or password (`Invalid user authorization`); \
the last two cannot be told from each other, by text or by time.

User name and password are compared byte by byte as they are configured. (APISIX takes white space out of both.)";
    const EXAMPLE: &'static str = "\
hide_credentials: true
realm: example
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["password"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(super::check_realm(&conf.realm).err());
        Some(Compiled::build(move |build| {
            Ok(Checked {
                hide: conf.hide_credentials,
                anonymous: super::anonymous(conf.anonymous_consumer.as_deref(), build),
                challenge: format!("Basic realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable, AuthEntry { who, conf, .. }: &AuthEntry<ConsumerConf>| {
            for (field, value) in [("username", &conf.username), ("password", &conf.password)] {
                super::check_credential(value).map_err(|message| Invalid::new(field, message))?;
            }
            if conf.username.contains(':') {
                let message = "a user name may not hold a colon (RFC 7617 section 2)";
                return Err(Invalid::new("username", message));
            }
            Ok(table.insert(conf.username.as_bytes(), conf.password.as_bytes(), *who, ()))
        };
        let named = ("username", "user name");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.username, put, named)?))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    hide: bool,
    anonymous: Option<u32>,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
}

/// Padding is often left out or wrong in what clients send, and says nothing.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let request = cx.request();
        let given = request.head.fields.get_known(request.buffer.bytes(), Known::Authorization);
        let found = find(cx.credentials(self.position), given, &mut room);
        // A fault elsewhere could let the next plugin or request read scratch memory.
        room.fill(0);
        cx.put_scratch(room);
        if self.hide && (found.is_ok() || self.anonymous.is_some()) {
            cx.request_mut().head.fields.remove_known(Known::Authorization);
        }
        match found {
            Ok(who) => {
                cx.set_consumer(who);
                Flow::Continue
            }
            Err(message) => super::refuse(cx, self.anonymous, &self.challenge, message),
        }
    }
}

/// Whose credentials these are, the value of `Authorization`.
fn find(
    users: Option<&CredentialTable>,
    given: Option<&[u8]>,
    room: &mut Vec<u8>,
) -> Result<ConsumerMatch, &'static str> {
    let given = given.ok_or("Missing authorization in request")?;
    let malformed = "Invalid authorization in request";
    let encoded = credentials_of(given).ok_or(malformed)?;
    BASE64.decode_vec(encoded, room).map_err(|_| malformed)?;
    // RFC 7617 section 2: the first colon ends the user name; a password may hold more of them.
    let colon = room.iter().position(|b| *b == b':').ok_or(malformed)?;
    let (name, password) = room.split_at(colon);
    let password = password.get(1..).unwrap_or_default();
    // An unknown user's password is compared as well, so that the answer takes the same time.
    let user = users.and_then(|users| users.find(name));
    let same = same_secret(password, user.map_or(b"not a password", |user| user.secret));
    user.filter(|_| same).map(|user| user.who).ok_or("Invalid user authorization")
}

/// The credentials after the scheme, which is compared without regard to case (RFC 9110 section 11.1).
pub(crate) fn credentials_of(field: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = field.split_at_checked(5)?;
    let rest = rest.strip_prefix(b" ").filter(|_| scheme.eq_ignore_ascii_case(b"basic"))?;
    Some(weir_wire::trim_ows(rest)).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{BASE64, credentials_of};
    use base64::Engine;

    #[test]
    fn the_scheme_is_read() {
        for (field, credentials) in [
            ("Basic YTpi", Some("YTpi")),
            ("basic YTpi", Some("YTpi")),
            ("BASIC   YTpi ", Some("YTpi")),
            ("Basic", None),
            ("Basic ", None),
            ("Basic\tYTpi", None),
            ("BasicYTpi", None),
            ("Bearer YTpi", None),
            ("", None),
        ] {
            assert_eq!(credentials_of(field.as_bytes()), credentials.map(str::as_bytes), "{field}");
        }
    }

    #[test]
    fn padding_does_not_matter() {
        for (text, decoded) in [("YTpiYw==", Some("a:bc")), ("YTpiYw", Some("a:bc")), ("YTpi!", None), ("Y", None)] {
            let got = BASE64.decode(text).ok();
            assert_eq!(got.as_deref(), decoded.map(str::as_bytes), "{text}");
        }
    }
}
