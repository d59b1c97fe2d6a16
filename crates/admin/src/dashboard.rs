//! The dashboard's files at `/` and `/dashboard/`.
//!
//! They are public, as what they show is not: everybody whom `admin.allow` lets in may read them, and the API asks for a
//! key or a session.

use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, Method, StatusCode};
use weir_dashboard::asset;

use crate::answer::{Answer, Outcome};

/// Everything comes from this origin, nothing is evaluated, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const PERMISSIONS: HeaderName = HeaderName::from_static("permissions-policy");
const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The answer for a path that belongs to the dashboard; `None` for any other.
pub(crate) fn answer(method: &Method, path: &[String], fields: &HeaderMap) -> Option<Outcome> {
    let asset = asset(&path.join("/"))?;
    if method != Method::GET && method != Method::HEAD {
        let refusal = Answer::error(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are known here");
        return Some(Err(refusal.unversioned().with(ALLOW, HeaderValue::from_static("GET, HEAD"))));
    }
    let text = |name: HeaderName| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known = text(IF_NONE_MATCH).split(',').any(|tag| tag.trim().trim_start_matches("W/") == asset.tag);
    let takes_gzip = takes_gzip(text(ACCEPT_ENCODING));
    let mut answer = match (is_known, method == Method::GET) {
        (true, _) => Answer::empty(StatusCode::NOT_MODIFIED),
        (false, false) => Answer::empty(StatusCode::OK),
        (false, true) if takes_gzip => Answer::shared(asset.gzip.into()),
        (false, true) => Answer::shared(asset.plain().into()),
    };
    if takes_gzip && !is_known {
        answer = answer.with(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(Ok(answer
        .unversioned()
        .with(CONTENT_TYPE, HeaderValue::from_static(asset.media_type))
        .with(ETAG, HeaderValue::from_static(asset.tag))
        .with(VARY, HeaderValue::from_static("Accept-Encoding"))
        .with(CACHE_CONTROL, HeaderValue::from_static("no-cache"))
        .with(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))
        .with(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
        .with(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .with(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"))
        .with(PERMISSIONS, HeaderValue::from_static("camera=(), geolocation=(), microphone=()"))
        .with(OPENER, HeaderValue::from_static("same-origin"))
        .with(RESOURCE, HeaderValue::from_static("same-origin"))))
}

/// True if `Accept-Encoding` takes gzip (RFC 9110 section 12.5.3).
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
        is_gzip && weight.is_ok_and(|weight| weight > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::takes_gzip;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        for (accepted, takes) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.2", true),
            ("*", true),
            ("", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
        ] {
            assert_eq!(takes_gzip(accepted), takes, "{accepted}");
        }
    }
}
