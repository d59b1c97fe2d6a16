//! Questions about usage.

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use weir_usage::{Arguments, QueryError};

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

impl Api {
    /// Answers a question about usage, as JSON or CSV.
    pub(crate) async fn usage(&self, request: &Request) -> Outcome {
        self.answer_usage(Arguments(request.query.pairs())).await
    }

    /// Answers a question with these arguments.
    pub(super) async fn answer_usage(&self, arguments: Arguments) -> Outcome {
        let Some(usage) = self.gateway.usage() else {
            return Err(Answer::error(StatusCode::NOT_FOUND, "usage is not recorded: usage.enabled is false"));
        };
        let turn = self.turns.list().await?;
        let told = tokio::task::spawn_blocking(move || usage.ask(&arguments)).await;
        drop(turn);
        let told = told.map_err(|panicked| {
            tracing::error!(%panicked, "a question about usage could not be answered");
            Answer::internal()
        })?;
        match told {
            Ok(found) => {
                let content_type = HeaderValue::from_static(found.content_type);
                Ok(Answer::exact(StatusCode::OK, found.text).with(CONTENT_TYPE, content_type))
            }
            Err(QueryError::Bad(reason)) => Err(Answer::bad(reason)),
            Err(QueryError::Usage(error)) => {
                tracing::error!(%error, "usage cannot be read");
                Err(Answer::error(StatusCode::SERVICE_UNAVAILABLE, format!("usage cannot be read: {error}")))
            }
        }
    }
}
