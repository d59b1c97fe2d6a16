//! Reports: errors of a service, and the use of an application's limits.

use std::sync::PoisonError;

use serde_json::{Value, json};

use super::{Outcome, Reply, Request};
use crate::backend::Backend;
use crate::params::text;

/// Errors on a page, unless a request says how many.
const PAGE: usize = 100;

/// Answers requests about the errors of a service.
pub(super) fn errors(backend: &Backend, request: &Request<'_>, service: &str) -> Outcome {
    backend.catalog().service(service).ok_or_else(|| Reply::not_found("service not found"))?;
    match request.method {
        "GET" => {
            let number = |name: &str| text(&request.query, name).map(|text| text.trim().parse::<usize>().unwrap_or(0));
            let per_page = number("per_page").unwrap_or(PAGE);
            if per_page == 0 {
                return Err(Reply { status: 400, body: json!({ "error": "per_page needs to be > 0" }) });
            }
            let lists = backend.errors.read().unwrap_or_else(PoisonError::into_inner);
            let errors = lists.page(service, number("page").unwrap_or(1), per_page);
            Ok(Reply::ok(json!({ "status": "found", "errors": errors, "count": lists.count(service) })))
        }
        "DELETE" => {
            backend.errors.write().unwrap_or_else(PoisonError::into_inner).clear(service);
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

/// Answers requests about the use of an application's limits.
pub(super) fn utilization(backend: &Backend, request: &Request<'_>, service: &str, id: &str) -> Outcome {
    if request.method != "GET" {
        return Err(Reply::not_found("Not found"));
    }
    let catalog = backend.catalog();
    let service = catalog.service(service).ok_or_else(|| Reply::not_found("service not found"))?;
    let application = catalog.application(&service.service.id, id);
    let application = application.ok_or_else(|| Reply::not_found("application not found"))?;
    let used = backend.counts.used(service, application, request.now).into_iter().map(|used| {
        json!({
            "period": used.period.name(),
            "metric_name": service.metric_name(used.metric),
            "max_value": used.max,
            "current_value": used.count,
        })
    });
    Ok(Reply::ok(json!({ "status": "found", "utilization": used.collect::<Vec<Value>>() })))
}
