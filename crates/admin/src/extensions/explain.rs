//! Explanation of the treatment of a request.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hyper::StatusCode;

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

impl Api {
    /// Explains which route would take a request now, and why, with its plugins and its upstream.
    pub(crate) async fn explain(&self, request: &Request) -> Outcome {
        let asked = request.query.get("request").map(str::to_owned);
        let asked =
            asked.ok_or_else(|| Answer::bad("request: expected a method and a URL: GET http://example.com/a"))?;
        let field = |text: &str| {
            let (name, value) = text.split_once(':')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let fields: Option<Vec<_>> = request.query.all("header").map(field).collect();
        let fields = fields.ok_or_else(|| Answer::bad("header: expected NAME: VALUE, such as apikey: k1"))?;
        let remote = match request.query.get("remote") {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(text) => text.parse().map_err(|_| Answer::bad("remote: expected an address, such as 10.0.0.7"))?,
        };
        let gateway = Arc::clone(&self.gateway);
        let told = tokio::task::spawn_blocking(move || gateway.explain(&asked, fields, remote)).await;
        let told = told.map_err(|panicked| {
            tracing::error!(%panicked, "a request could not be explained");
            Answer::internal()
        })?;
        told.map(|told| Answer::json(StatusCode::OK, &told)).map_err(Answer::bad)
    }
}
