//! `/weir/v1/threescale/applications`: applications of the gateway's own backend of 3scale, for the dashboard.

use std::sync::Arc;

use hyper::StatusCode;

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

/// Applications of a page where none says another number, and at most.
const PAGE: usize = 50;
const MOST: usize = 500;

/// A question for applications of the backend of 3scale.
#[derive(Debug, Clone, Default)]
pub struct ThreescaleQuestion {
    /// Text that an application has somewhere; empty: any.
    pub words: String,
    /// Id of the service; empty: all.
    pub service: String,
    /// Applications that are passed over.
    pub skip: usize,
    /// Most applications of the answer.
    pub most: usize,
}

impl Api {
    /// Applications with what is used of their limits.
    pub(crate) async fn threescale_applications(&self, request: &Request) -> Outcome {
        let query = &request.query;
        let (page, most) = (query.number("page", 1, usize::MAX / MOST)?, query.number("page_size", PAGE, MOST)?);
        let text = |name: &str| request.query.get(name).unwrap_or_default().to_owned();
        let question = ThreescaleQuestion { words: text("q"), service: text("service"), skip: (page - 1) * most, most };
        let gateway = Arc::clone(&self.gateway);
        let asked = tokio::task::spawn_blocking(move || gateway.threescale_applications(&question));
        let answer = asked.await.map_err(|panicked| {
            tracing::error!(%panicked, "the backend of 3scale could not be asked");
            Answer::internal()
        })?;
        let none = "there is no backend of 3scale here: it needs listen.threescale_backend";
        let value = answer.ok_or_else(|| Answer::error(StatusCode::NOT_FOUND, none))?;
        Ok(Answer::json(StatusCode::OK, &value).unversioned())
    }
}
