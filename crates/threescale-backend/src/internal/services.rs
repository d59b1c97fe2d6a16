//! Services, their metrics, the limits of their plans, and their tokens.

use serde_json::{Map, Value, json};

use super::{Outcome, Reply, Request, text_of};
use crate::backend::{Backend, Step};
use crate::catalog::Catalog;
use crate::model::{Limit, MOST, Metric, Record, Service, is_in_circle};
use crate::period::Period;

/// Answers requests about services.
pub(super) async fn answer(backend: &Backend, request: &Request<'_>, path: &[&str]) -> Outcome {
    match (request.method, path) {
        ("GET", [id]) => {
            let catalog = backend.catalog();
            let found = catalog.service(id).map(|indexed| shown(&indexed.service));
            let missing = Reply { status: 404, body: json!({ "status": "not_found", "error": "service not found" }) };
            found.map(|service| Reply::ok(json!({ "status": "found", "service": service }))).ok_or(missing)
        }
        ("POST", []) => {
            let given = request.object("service")?;
            let service = backend.change(|catalog| save(catalog, None, given)).await?;
            Ok(Reply::created(json!({ "service": shown(&service), "status": "created" })))
        }
        ("PUT", ["change_provider_key", key]) => {
            let new = text_of(request.body.get("new_key")).unwrap_or_default();
            backend.change(|catalog| change_provider_key(catalog, key, &new)).await?;
            Ok(Reply::ok(json!({ "status": "ok" })))
        }
        ("PUT", [id]) => {
            let given = request.object("service")?;
            let service = backend.change(|catalog| save(catalog, Some(id), given)).await?;
            Ok(Reply::ok(json!({ "service": shown(&service), "status": "ok" })))
        }
        ("DELETE", [id]) => {
            backend.change(|catalog| remove(catalog, id)).await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

fn shown(service: &Service) -> Value {
    json!({
        "id": service.id,
        "state": if service.is_suspended { "suspended" } else { "active" },
        "provider_key": service.provider_key,
        "backend_version": service.backend_version,
        "referrer_filters_required": service.referrer_filters_required,
        "default_service": service.is_default,
    })
}

type Steps<T> = Result<(Vec<Step>, T), Reply>;

/// Everything that is known of a service, for a change.
fn known(catalog: &Catalog, id: &str) -> Service {
    let new = || Service { id: id.to_owned(), ..Service::default() };
    catalog.known(id).map_or_else(new, |indexed| indexed.service.clone())
}

/// Saves a service, which becomes the default one of a provider that has none.
fn save(catalog: &Catalog, id: Option<&str>, given: &Map<String, Value>) -> Steps<Service> {
    let id = id.map(str::to_owned).or_else(|| text_of(given.get("id"))).ok_or_else(|| Reply::missing("service.id"))?;
    let mut service = known(catalog, &id);
    let before = service.provider_key.clone();
    if let Some(key) = text_of(given.get("provider_key")) {
        service.provider_key = Some(key);
    }
    let key = service.provider_key.clone().ok_or_else(|| Reply::missing("service.provider_key"))?;
    if let Some(version) = text_of(given.get("backend_version")) {
        service.backend_version = Some(version);
    }
    match given.get("referrer_filters_required") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(required)) => service.referrer_filters_required = *required,
        Some(other) => service.referrer_filters_required = text_of(Some(other)).is_some_and(|text| text != "0"),
    }
    if let Some(state) = text_of(given.get("state")) {
        service.is_suspended = state != "active";
    }
    let was_default = service.is_default && before.as_ref() == Some(&key);
    let asked = given.get("default_service").and_then(Value::as_bool);
    service.is_default = was_default || asked.unwrap_or_else(|| catalog.default_of(&key).is_none());
    let mut steps = Vec::new();
    if service.is_default
        && let Some(other) = catalog.default_of(&key).filter(|other| *other != id)
    {
        steps.push(Step::Put(Record::Service(Service { is_default: false, ..known(catalog, other) })));
    }
    steps.push(Step::Put(Record::Service(service.clone())));
    Ok((steps, service))
}

fn change_provider_key(catalog: &Catalog, old: &str, new: &str) -> Steps<()> {
    let of = |key: &str| catalog.services().filter(|service| service.provider_key.as_deref() == Some(key)).count();
    let bad = |error: String| Reply { status: 400, body: json!({ "error": error }) };
    if new.is_empty() || old == new {
        return Err(bad("Provider keys are not valid, must be not nil and different".to_owned()));
    }
    if of(new) > 0 {
        return Err(bad(format!("Provider key=\"{new}\" already exists")));
    }
    if of(old) == 0 {
        return Err(bad(format!("Provider key=\"{old}\" does not exist")));
    }
    let services = catalog.services().filter(|service| service.provider_key.as_deref() == Some(old));
    let change = |service: &Service| Service { provider_key: Some(new.to_owned()), ..service.clone() };
    Ok((services.map(|service| Step::Put(Record::Service(change(service)))).collect(), ()))
}

fn remove(catalog: &Catalog, id: &str) -> Steps<()> {
    let not_found = || Reply::not_found(&format!("service id \"{id}\" is invalid"));
    let service = &catalog.service(id).ok_or_else(not_found)?.service;
    let has_others = catalog.services().any(|other| other.id != id && other.provider_key == service.provider_key);
    if service.is_default && has_others {
        let error = format!("Service id=\"{id}\" is the default service, cannot be removed");
        return Err(Reply { status: 400, body: json!({ "error": error }) });
    }
    Ok((vec![Step::RemoveService(id.to_owned())], ()))
}

/// Answers requests about a metric.
pub(super) async fn metric(backend: &Backend, request: &Request<'_>, service: &str, id: &str) -> Outcome {
    let shown = |metric: &Metric| json!({ "service_id": service, "id": metric.id, "parent_id": metric.parent_id, "name": metric.name });
    let not_found = || Reply::not_found("metric not found");
    match request.method {
        "GET" => {
            let catalog = backend.catalog();
            let found = catalog.known(service).and_then(|indexed| indexed.service.metrics.iter().find(|m| m.id == id));
            let metric = shown(found.ok_or_else(not_found)?);
            Ok(Reply::ok(json!({ "status": "found", "metric": metric })))
        }
        "POST" | "PUT" => {
            let given = request.object("metric")?;
            let metric = backend.change(|catalog| save_metric(known(catalog, service), id, given)).await?;
            let is_new = request.method == "POST";
            let status = if is_new { "created" } else { "modified" };
            let body = json!({ "status": status, "metric": shown(&metric) });
            Ok(if is_new { Reply::created(body) } else { Reply::ok(body) })
        }
        "DELETE" => {
            let change = backend.change(|catalog| {
                let mut service = known(catalog, service);
                let before = service.metrics.len();
                service.metrics.retain(|metric| metric.id != id);
                match service.metrics.len() < before {
                    true => Ok((vec![Step::Put(Record::Service(service))], ())),
                    false => Err(not_found()),
                }
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

fn save_metric(mut service: Service, id: &str, given: &Map<String, Value>) -> Steps<Metric> {
    let name = text_of(given.get("name")).ok_or_else(|| Reply::missing("metric.name"))?;
    let before = service.metrics.iter().position(|metric| metric.id == id);
    let kept = before.and_then(|at| service.metrics.get(at)).and_then(|metric| metric.parent_id.clone());
    let parent_id = if given.contains_key("parent_id") { text_of(given.get("parent_id")) } else { kept };
    let metric = Metric { id: id.to_owned(), name, parent_id };
    match before.and_then(|at| service.metrics.get_mut(at)) {
        Some(before) => *before = metric.clone(),
        None => service.metrics.push(metric.clone()),
    }
    if is_in_circle(&service.metrics, id) {
        return Err(Reply::bad("metric.parent_id: the metric would be above itself"));
    }
    Ok((vec![Step::Put(Record::Service(service))], metric))
}

/// Answers requests about a limit: service, plan, metric and period.
pub(super) async fn limit(backend: &Backend, request: &Request<'_>, place: (&str, &str, &str, &str)) -> Outcome {
    let (service, plan, metric, period_name) = place;
    let period = Period::named(period_name).ok_or_else(|| {
        let names = Period::ALL.map(Period::name).join(", ");
        Reply::bad(format!("unknown period '{period_name}': expected one of {names}"))
    })?;
    let is_it = |limit: &Limit| limit.metric_id == metric && limit.period == period;
    let shown = |value: &Value| {
        let mut limit = json!({ "service_id": service, "plan_id": plan, "metric_id": metric });
        limit[period_name] = value.clone();
        limit
    };
    match request.method {
        "GET" => {
            let catalog = backend.catalog();
            let limits = catalog.known(service).and_then(|indexed| indexed.service.limits.get(plan));
            let found = limits.and_then(|limits| limits.iter().find(|limit| is_it(limit)));
            let found = found.ok_or_else(|| Reply::not_found("usagelimit not found"))?;
            Ok(Reply::ok(json!({ "status": "found", "usagelimit": shown(&found.value.into()) })))
        }
        "PUT" => {
            let given = request.object("usagelimit")?.get(period_name).ok_or_else(|| Reply::missing(period_name))?;
            let value = text_of(Some(given)).and_then(|text| text.trim().parse::<u64>().ok());
            let value = value.filter(|value| *value <= MOST).ok_or_else(|| {
                Reply::bad(format!("usagelimit.{period_name}: expected a whole number from 0 to {MOST}, found {given}"))
            })?;
            let change = backend.change(|catalog| {
                let mut service = known(catalog, service);
                let limits = service.limits.entry(plan.to_owned()).or_default();
                limits.retain(|limit| !is_it(limit));
                limits.push(Limit { metric_id: metric.to_owned(), period, value });
                Ok::<_, Reply>((vec![Step::Put(Record::Service(service))], ()))
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "modified", "usagelimit": shown(given) })))
        }
        "DELETE" => {
            let change = backend.change(|catalog| {
                let mut service = known(catalog, service);
                if let Some(limits) = service.limits.get_mut(plan) {
                    limits.retain(|limit| !is_it(limit));
                    return Ok::<_, Reply>((vec![Step::Put(Record::Service(service))], ()));
                }
                Ok((Vec::new(), ()))
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

/// Answers requests about tokens of services.
pub(super) async fn tokens(backend: &Backend, request: &Request<'_>, path: &[&str]) -> Outcome {
    match (request.method, path) {
        ("HEAD", [token, id]) => {
            let catalog = backend.catalog();
            let is_there = catalog.known(id).is_some_and(|indexed| indexed.service.tokens.contains(*token));
            Ok(Reply { status: if is_there { 200 } else { 404 }, body: Value::Null })
        }
        ("GET", [token, id, "provider_key"]) => {
            let catalog = backend.catalog();
            let found = catalog.known(id).filter(|indexed| indexed.service.tokens.contains(*token));
            let found = found.ok_or_else(|| Reply::not_found("token/service combination not found"))?;
            Ok(Reply::ok(json!({ "status": "found", "provider_key": found.service.provider_key })))
        }
        ("POST", []) => {
            let given = request.object("service_tokens")?;
            let blank = |what: &str| Reply {
                status: 422,
                body: json!({ "status": "error", "error": format!("Service {what} cannot be blank") }),
            };
            let mut pairs = Vec::new();
            for (token, about) in given {
                if token.trim().is_empty() {
                    return Err(blank("token"));
                }
                pairs.push((token.clone(), text_of(about.get("service_id")).ok_or_else(|| blank("ID"))?));
            }
            backend.change(|catalog| with_tokens(catalog, &pairs, true)).await?;
            Ok(Reply::created(json!({ "status": "created" })))
        }
        ("DELETE", []) => {
            let given = request.body.get("service_tokens").and_then(Value::as_array);
            let given = given.ok_or_else(|| Reply::missing("service_tokens"))?;
            let pair = |pair: &Value| Some((text_of(pair.get("service_token"))?, text_of(pair.get("service_id"))?));
            let pairs: Vec<_> = given.iter().filter_map(pair).collect();
            let count = backend.change(|catalog| with_tokens(catalog, &pairs, false)).await?;
            Ok(Reply::ok(json!({ "status": "deleted", "count": count })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

/// Adds tokens to services, or removes them. Tells how many have changed something.
fn with_tokens(catalog: &Catalog, pairs: &[(String, String)], adds: bool) -> Steps<usize> {
    let mut services: Vec<Service> = Vec::new();
    let mut count = 0;
    for (token, id) in pairs {
        if !adds && catalog.known(id).is_none() {
            continue;
        }
        let at = services.iter().position(|service| service.id == *id).unwrap_or_else(|| {
            services.push(known(catalog, id));
            services.len() - 1
        });
        let Some(service) = services.get_mut(at) else { continue };
        count += usize::from(match adds {
            true => service.tokens.insert(token.clone()),
            false => service.tokens.remove(token),
        });
    }
    Ok((services.into_iter().map(|service| Step::Put(Record::Service(service))).collect(), count))
}
