//! Answers to requests that do not pass, in the words of the service.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Flow, Invalid, RequestCx};

/// Texts, statuses and content types of the answers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    error_auth_failed: Option<String>,
    error_auth_missing: Option<String>,
    error_limits_exceeded: Option<String>,
    error_no_match: Option<String>,
    error_status_auth_failed: Option<u16>,
    error_status_auth_missing: Option<u16>,
    error_status_limits_exceeded: Option<u16>,
    error_status_no_match: Option<u16>,
    error_headers_auth_failed: Option<String>,
    error_headers_auth_missing: Option<String>,
    error_headers_limits_exceeded: Option<String>,
    error_headers_no_match: Option<String>,
}

/// The answers of a service.
#[derive(Debug)]
pub(super) struct Errors {
    auth_failed: Answer,
    auth_missing: Answer,
    limits_exceeded: Answer,
    no_match: Answer,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    content_type: Box<[u8]>,
    body: Box<[u8]>,
}

/// Reason for which a request does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    AuthFailed,
    AuthMissing,
    LimitsExceeded,
    NoMatch,
}

impl Errors {
    /// Compiles the answers; `field` is their place in the configuration.
    pub(super) fn compile(conf: Conf, field: &str) -> Result<Self, Invalid> {
        let answer =
            |name: &str, (body, status, kind): (Option<String>, Option<u16>, Option<String>), default: (u16, &str)| {
                let status = status.unwrap_or(default.0);
                if !(200..=599).contains(&status) {
                    let text = format!("expected a status from 200 to 599, found {status}");
                    return Err(Invalid::new(format!("{field}.error_status_{name}"), text));
                }
                let content_type = kind.unwrap_or_else(|| "text/plain; charset=utf-8".to_owned());
                if !content_type.bytes().all(weir_wire::is_field_byte) {
                    let text = "expected a content type without control characters";
                    return Err(Invalid::new(format!("{field}.error_headers_{name}"), text));
                }
                let body = body.unwrap_or_else(|| default.1.to_owned());
                Ok(Answer { status, content_type: content_type.into_bytes().into(), body: body.into_bytes().into() })
            };
        let c = conf;
        Ok(Self {
            auth_failed: answer(
                "auth_failed",
                (c.error_auth_failed, c.error_status_auth_failed, c.error_headers_auth_failed),
                (403, "Authentication failed"),
            )?,
            auth_missing: answer(
                "auth_missing",
                (c.error_auth_missing, c.error_status_auth_missing, c.error_headers_auth_missing),
                (401, "Authentication parameters missing"),
            )?,
            limits_exceeded: answer(
                "limits_exceeded",
                (c.error_limits_exceeded, c.error_status_limits_exceeded, c.error_headers_limits_exceeded),
                (429, "Limits exceeded"),
            )?,
            no_match: answer(
                "no_match",
                (c.error_no_match, c.error_status_no_match, c.error_headers_no_match),
                (404, "No Mapping Rule matched"),
            )?,
        })
    }

    /// Refuses a request. `retry_after` are the seconds until limits begin anew, as the backend has told them.
    pub(super) fn refuse(&self, cx: &mut RequestCx<'_>, refusal: Refusal, retry_after: Option<&[u8]>) -> Flow {
        let answer = match refusal {
            Refusal::AuthFailed => &self.auth_failed,
            Refusal::AuthMissing => &self.auth_missing,
            Refusal::LimitsExceeded => &self.limits_exceeded,
            Refusal::NoMatch => &self.no_match,
        };
        let mut reply = cx.reply(answer.status).field("Content-Type", &answer.content_type);
        if let Some(seconds) = retry_after {
            reply = reply.field("Retry-After", seconds);
        }
        if refusal == Refusal::NoMatch {
            reply = reply.field("X-3scale-matched-rules", b"");
        }
        reply.body(&answer.body).done()
    }
}
