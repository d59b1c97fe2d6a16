//! Plugins that authenticate the caller.

pub(crate) mod attach_consumer_label;
pub(crate) mod authz_casbin;
pub(crate) mod authz_casdoor;
pub(crate) mod authz_keycloak;
pub(crate) mod basic_auth;
mod callback;
pub(crate) mod cas_auth;
pub(crate) mod credentials;
pub(crate) mod directory;
pub(crate) mod forward_auth;
pub(crate) mod hmac_auth;
pub(crate) mod jwe_decrypt;
pub(crate) mod jwt_auth;
pub(crate) mod key_auth;
pub(crate) mod ldap_auth;
pub(crate) mod ldap_auth_advanced;
pub(crate) mod multi_auth;
pub(crate) mod opa;
pub(crate) mod openid_connect;
pub(crate) mod saml_auth;
pub(crate) mod service_conf;
pub(crate) mod wolf_rbac;

use aws_lc_rs::digest::{SHA256, digest};
use weir_plugin::{BuildCx, ConsumerMatch, Flow, Invalid, RequestCx};
use weir_wire::name::FieldName;

use crate::query;

/// The consumer that `anonymous_consumer` names; while it is not there, requests without credentials are refused.
fn anonymous(name: Option<&str>, cx: &BuildCx<'_>) -> Option<u32> {
    cx.consumer("anonymous_consumer", name?)
}

/// The field that carries a credential; `None` when its name is empty, which turns that source off.
fn source_field(name: &str) -> Result<Option<FieldName>, Invalid> {
    match name {
        "" => Ok(None),
        name => FieldName::new(name).map(Some).ok_or_else(|| Invalid::new("header", "expected the name of a field")),
    }
}

/// The argument or cookie that carries a credential; `None` when its name is empty, which turns that source off.
fn source(name: String) -> Option<Box<[u8]>> {
    (!name.is_empty()).then(|| name.into_bytes().into())
}

/// Warns where all sources of a credential are turned off.
fn check_sources(names: &[&str], credential: &str) -> Option<Invalid> {
    let message = format!("all sources of the {credential} are turned off: no request can carry one");
    names.iter().all(|name| name.is_empty()).then(|| Invalid::warning("", message))
}

/// Checks a user name, password or key: an empty one, or the name of one kept elsewhere, would be a credential that
/// anybody can guess.
fn check_credential(value: &str) -> Result<(), &'static str> {
    match value {
        "" => Err("expected a text of 1 or more characters"),
        _ if credentials::is_reference(value) => Err("no secret for this reference: it was not resolved"),
        _ => Ok(()),
    }
}

/// A realm goes into a quoted string (RFC 9110 section 5.6.4) as it stands.
fn check_realm(realm: &str) -> Result<(), Invalid> {
    let fits = realm.bytes().all(|b| weir_wire::is_field_byte(b) && !matches!(b, b'"' | b'\\'));
    if fits {
        Ok(())
    } else {
        Err(Invalid::new("realm", "expected a text without quotes, backslashes and control characters"))
    }
}

/// Takes every query argument of this name out of the request.
fn hide_argument(cx: &mut RequestCx<'_>, name: &[u8]) {
    if cx.request().query().is_some_and(|query| query::argument(query, name).is_some()) {
        cx.request_mut().retain_arguments(|argument| !query::has_name(argument, name));
    }
}

/// Eight digits that tell configurations apart in the names of their cookies.
fn short_digest(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a user of a login to another place. Nobody may keep the answer.
fn moved(cx: &mut RequestCx<'_>, location: &[u8], cookies: &[String]) -> Flow {
    let reply = cx.reply(302).field("Location", location).field("Cache-Control", b"no-store");
    cookies.iter().fold(reply, |reply, cookie| reply.field("Set-Cookie", cookie.as_bytes())).done()
}

/// Ends a request without credentials: it goes on as the anonymous consumer, or is refused.
fn refuse(cx: &mut RequestCx<'_>, anonymous: Option<u32>, challenge: &[u8], message: &str) -> Flow {
    match anonymous {
        Some(consumer) => {
            cx.set_consumer(ConsumerMatch { consumer, credential: None });
            Flow::Continue
        }
        None => cx.reply(401).field("WWW-Authenticate", challenge).message(message).done(),
    }
}
