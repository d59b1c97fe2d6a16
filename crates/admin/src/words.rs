//! What is wrong with a change, in the words that clients of APISIX know.

use hyper::StatusCode;
use serde_json::{Map, Value};
use weir_config::Diagnostic;
use weir_store::{Key, Kind};

use crate::Refused;
use crate::answer::Answer;
use crate::api::Api;

impl Api {
    /// The answer to a change that was refused; `value` is what should have been stored as `key`.
    pub(crate) async fn refusal(&self, key: &Key, refused: Refused, value: Option<&Map<String, Value>>) -> Answer {
        match refused {
            Refused::Store(error) => Answer::store(&error),
            Refused::ReadOnly(reason) => Answer::error(StatusCode::METHOD_NOT_ALLOWED, reason),
            Refused::Invalid(found) => {
                if let Some(value) = value
                    && let Some(message) = self.missing_reference(key.kind(), value).await
                {
                    return Answer::bad(message);
                }
                Answer::bad(of_diagnostics(key.kind(), &found))
            }
        }
    }
}

/// The first error of a refused change.
fn of_diagnostics(kind: Kind, found: &[Diagnostic]) -> String {
    let _ = kind;
    let first = found.iter().find(|found| found.is_error()).or(found.first());
    match first {
        Some(found) => format!("invalid configuration: {found}"),
        None => "invalid configuration".to_owned(),
    }
}

/// An error of a resource by itself, with its path from the resource on, as the schema checks of APISIX tell it.
pub(crate) fn of_item(section: &str, found: &Diagnostic) -> String {
    let kind = Kind::ALL.into_iter().find(|kind| kind.directory() == section).unwrap_or(Kind::Routes);
    let message = of_diagnostics(kind, std::slice::from_ref(found));
    message.strip_prefix("invalid configuration: ").map(str::to_owned).unwrap_or(message)
}

/// What a JSON value is called.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}
