//! The Service Management API: which call is answered by what, and the form of its answers.

use std::sync::PoisonError;

use bytes::Bytes;
use hyper::Method;
use serde_json::json;

use crate::authorize::{Kind, authorize, credentials, given_usage};
use crate::backend::Backend;
use crate::extensions::Extensions;
use crate::fault::Fault;
use crate::params::{Params, parse, parse_multipart};
use crate::report::report;
use crate::xml;

/// A call with all of its body.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// The path as it was sent.
    pub(crate) path: String,
    pub(crate) query: String,
    /// The field `3scale-options`.
    pub(crate) options: Option<Vec<u8>>,
    pub(crate) content_type: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Bytes,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

/// The media type of documents.
const XML: &str = "application/vnd.3scale-v2.0+xml";

/// Fields for pages of other origins, on every answer.
const CORS: [(&str, &str); 3] = [
    ("access-control-allow-origin", "*"),
    ("access-control-expose-headers", "ETag, Link, 3scale-rejection-reason"),
    ("content-security-policy", "default-src 'self'"),
];
/// Those of the answer to OPTIONS.
const PREFLIGHT: [(&str, &str); 3] = [
    ("access-control-max-age", "86400"),
    ("access-control-allow-methods", "GET, POST, PATCH, PUT, DELETE"),
    (
        "access-control-allow-headers",
        "Authorization, Accept-Encoding, Content-Type, Cache-Control, Accept, If-Match, If-Modified-Since, \
         If-None-Match, If-Unmodified-Since, X-Requested-With, X-HTTP-Method-Override, 3scale-options",
    ),
];

impl Answer {
    /// An answer with a document, or without one.
    fn xml(status: u16, body: String) -> Self {
        Self::of_type(status, XML, body)
    }

    /// An answer with a body of this type.
    pub(crate) fn of_type(status: u16, media_type: &str, body: String) -> Self {
        let mut fields = vec![("content-type", media_type.to_owned())];
        fields.extend(CORS.map(|(name, value)| (name, value.to_owned())));
        Self { status, fields, body }
    }

    /// The answer to a call with an error. `no_body` leaves the document out.
    pub(crate) fn error(fault: &Fault, no_body: bool) -> Self {
        Self::xml(fault.status(), if no_body { String::new() } else { xml::error(fault) })
    }
}

/// The kind of authorisation at a path.
fn kind_at(path: &str) -> Option<Kind> {
    let (reports, is_oauth) = match path {
        "/transactions/authorize.xml" => (false, false),
        "/transactions/authrep.xml" => (true, false),
        "/transactions/oauth_authorize.xml" => (false, true),
        "/transactions/oauth_authrep.xml" => (true, true),
        _ => return None,
    };
    Some(Kind { reports, is_oauth })
}

impl Backend {
    /// Answers a call of the Service Management API, at a time in milliseconds since 1970.
    pub(crate) fn answer(&self, call: &Call, now: u64) -> Answer {
        let reads = call.method == Method::GET || call.method == Method::HEAD;
        match (&call.method, call.path.as_str()) {
            (&Method::OPTIONS, _) => {
                let mut answer = Answer::xml(204, String::new());
                answer.fields.extend(PREFLIGHT.map(|(name, value)| (name, value.to_owned())));
                answer
            }
            (&Method::POST, "/transactions.xml") => self.answer_report(call, now),
            (&Method::HEAD, "/available") => Answer::xml(200, String::new()),
            (_, "/check.txt") if reads => Answer::of_type(200, "text/plain", "ok".to_owned()),
            (_, "/status") if reads => {
                let version = env!("CARGO_PKG_VERSION");
                let status = json!({ "status": "ok", "version": { "backend": version } });
                Answer::of_type(200, "application/json", status.to_string())
            }
            (_, path) => match kind_at(path).filter(|_| reads) {
                Some(kind) => self.answer_authorization(kind, call, now),
                None => Answer::xml(404, String::new()),
            },
        }
    }

    fn answer_authorization(&self, kind: Kind, call: &Call, now: u64) -> Answer {
        let mut params = Params::new();
        let read = parse(call.query.as_bytes(), &mut params);
        let extensions = Extensions::read(call.options.as_deref(), &params);
        if let Err(fault) = read {
            return Answer::error(&fault, extensions.no_body && fault != Fault::NotValidData);
        }
        let catalog = self.catalog();
        let service = catalog.service_of_call(&credentials(&params));
        if let Err(fault) = &service
            && fault.is_of_credentials()
        {
            return Answer::error(fault, extensions.no_body);
        }
        if params.get("user_id").is_some_and(|value| !value.is_null()) {
            return Answer::error(&Fault::EndUsersNoLongerSupported, extensions.no_body);
        }
        if given_usage(&params).is_err() {
            return Answer::xml(403, String::new());
        }
        match authorize(&catalog, &self.counts, kind, (&params, extensions), now) {
            Ok(verdict) => {
                let body = if extensions.no_body { String::new() } else { verdict.document(extensions) };
                let mut answer = Answer::xml(if verdict.refusal.is_none() { 200 } else { 409 }, body);
                if let Some(reason) = verdict.refusal.as_ref().filter(|_| extensions.rejection_reason_header) {
                    answer.fields.push(("3scale-rejection-reason", reason.code().to_owned()));
                }
                if let Some((remaining, reset, max)) = verdict.limit_fields(now).filter(|_| extensions.limit_headers) {
                    answer.fields.push(("3scale-limit-remaining", remaining.to_string()));
                    answer.fields.push(("3scale-limit-reset", reset.to_string()));
                    answer.fields.extend(max.map(|max| ("3scale-limit-max-value", max.to_string())));
                }
                answer
            }
            Err(fault) => {
                if let Ok(service) = service {
                    let mut errors = self.errors.write().unwrap_or_else(PoisonError::into_inner);
                    errors.add(&service.service.id, &fault, now);
                }
                Answer::error(&fault, extensions.no_body)
            }
        }
    }

    fn answer_report(&self, call: &Call, now: u64) -> Answer {
        let mut params = Params::new();
        let read = read_form(call, &mut params);
        let extensions = Extensions::read(call.options.as_deref(), &params);
        let catalog = self.catalog();
        let reported = read.and_then(|()| report(&catalog, &self.counts, (&params, extensions), now));
        match reported {
            Ok((service, wrong)) => {
                if !wrong.is_empty() {
                    let mut errors = self.errors.write().unwrap_or_else(PoisonError::into_inner);
                    wrong.iter().for_each(|fault| errors.add(&service, fault, now));
                }
                Answer::xml(202, String::new())
            }
            Err(fault) => Answer::error(&fault, extensions.no_body && fault != Fault::NotValidData),
        }
    }
}

/// Reads the parameters of a call with a form, and those of its query.
fn read_form(call: &Call, params: &mut Params) -> Result<(), Fault> {
    let given = call.content_type.as_deref().unwrap_or_default();
    let media_type = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    parse(call.query.as_bytes(), params)?;
    match media_type.as_str() {
        "" | "application/x-www-form-urlencoded" => parse(&call.body, params),
        "multipart/form-data" if call.body.is_empty() => Ok(()),
        "multipart/form-data" => parse_multipart(given, &call.body, params),
        _ => Err(Fault::ContentTypeInvalid(media_type)),
    }
}
