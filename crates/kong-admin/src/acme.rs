//! `/acme`: certificates that the plugin `acme` orders before a client asks for them.

use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::json;
use weir_acme::Progress;
use weir_admin::FamilyRequest;

use crate::body;
use crate::fault::{self, Outcome, answer};

/// Longest wait for a certificate: orders give up before.
const LONGEST: Duration = Duration::from_secs(90);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Orders a certificate and waits for it.
pub(crate) async fn order(request: &FamilyRequest) -> Outcome {
    if request.method != Method::POST {
        return Err(fault::wrong_method());
    }
    if !weir_acme::is_followed() {
        return Err(fault::not_found());
    }
    let (fields, _) = body::read(&request.body, &request.fields)?;
    let refused = |text: &str| Err(fault::message(StatusCode::BAD_REQUEST, text));
    let Some(host) = fields.get("host").and_then(|host| host.as_str()).map(str::to_ascii_lowercase) else {
        return refused("host must be provided and containing a single domain");
    };
    if host.contains(':') {
        return refused("port is not allowed in host");
    }
    if fields.contains_key("test_http_challenge_flow") {
        return refused(
            "test_http_challenge_flow is not supported: ask for http://HOST/.well-known/acme-challenge/x, which answers \"Not found\"",
        );
    }
    if !weir_acme::ask(&host) {
        return refused(&format!("the plugin has no domain {host}"));
    }
    let waiting = async {
        loop {
            match weir_acme::progress(&host) {
                Progress::Held => return Ok(()),
                Progress::Failed(reason) => return Err(reason),
                Progress::Open => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    let late = || Err("it takes too long".to_owned());
    match tokio::time::timeout(LONGEST, waiting).await.unwrap_or_else(|_| late()) {
        Ok(()) => {
            Ok(answer(StatusCode::CREATED, &json!({ "message": format!("certificate for host {host} is created") })))
        }
        Err(reason) => {
            let text = format!("failed to update certificate: {reason}");
            Err(fault::message(StatusCode::INTERNAL_SERVER_ERROR, &text))
        }
    }
}
