//! Applications, their keys and their referrer filters.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use super::{Outcome, Reply, Request, text_of};
use crate::backend::{Backend, Step};
use crate::catalog::Catalog;
use crate::model::{Application, Record};

type Steps<T> = Result<(Vec<Step>, T), Reply>;

/// Answers requests about applications.
pub(super) async fn answer(backend: &Backend, request: &Request<'_>, service: &str, path: &[&str]) -> Outcome {
    match (request.method, path) {
        ("PUT", ["batch"]) => batch(backend, request, service).await,
        ("GET", ["key", user_key]) => {
            let catalog = backend.catalog();
            let id = catalog.id_of_user_key(service, user_key);
            let id = id.ok_or_else(|| Reply::not_found("application key not found"))?;
            Ok(Reply::ok(json!({ "status": "found", "application": { "id": id } })))
        }
        ("DELETE", ["key", user_key]) => {
            backend.change(|catalog| Ok::<_, Reply>((without_user_key(catalog, service, user_key), ()))).await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        ("PUT", [id, "key", user_key]) => {
            backend.change(|catalog| Ok::<_, Reply>((with_user_key(catalog, (service, id), user_key), ()))).await?;
            Ok(Reply::ok(json!({ "status": "modified", "application": { "id": id } })))
        }
        (_, [id, "keys", rest @ ..]) => keys(backend, request, (service, id), rest).await,
        (_, [id, "referrer_filters", rest @ ..]) => filters(backend, request, (service, id), rest).await,
        (_, [id]) => one(backend, request, service, id).await,
        _ => Err(Reply::not_found("Not found")),
    }
}

fn not_found() -> Reply {
    Reply::not_found("application not found")
}

fn shown(application: &Application) -> Value {
    json!({
        "service_id": application.service_id,
        "id": application.id,
        "state": application.state,
        "plan_id": application.plan_id,
        "plan_name": application.plan_name,
        "redirect_url": application.redirect_url,
    })
}

/// Everything that is known of an application, for a change.
fn known(catalog: &Catalog, service: &str, id: &str) -> Application {
    let new = || Application { service_id: service.to_owned(), id: id.to_owned(), ..Application::default() };
    catalog.known_application(service, id).cloned().unwrap_or_else(new)
}

fn put(application: Application) -> Step {
    Step::Put(Record::Application(application))
}

async fn one(backend: &Backend, request: &Request<'_>, service: &str, id: &str) -> Outcome {
    match request.method {
        "GET" => {
            let catalog = backend.catalog();
            let application = catalog.application(service, id).ok_or_else(not_found)?;
            Ok(Reply::ok(json!({ "status": "found", "application": shown(application) })))
        }
        "POST" | "PUT" => {
            let given = request.object("application")?;
            let is_post = request.method == "POST";
            let change = backend.change(|catalog| {
                let is_there = catalog.application(service, id).is_some();
                if is_post && is_there {
                    let error = "application cannot be created, exists already";
                    return Err(Reply { status: 405, body: json!({ "status": "exists", "error": error }) });
                }
                let application = with_fields(known(catalog, service, id), given)?;
                Ok((vec![put(application.clone())], (application, is_there)))
            });
            let (application, was_there) = change.await?;
            let status = if was_there { "modified" } else { "created" };
            let body = json!({ "status": status, "application": shown(&application) });
            Ok(if is_post { Reply::created(body) } else { Reply::ok(body) })
        }
        "DELETE" => {
            let change = backend.change(|catalog| {
                catalog.application(service, id).ok_or_else(not_found)?;
                Ok::<_, Reply>((vec![Step::RemoveApplication { service: service.to_owned(), id: id.to_owned() }], ()))
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

/// An application with the fields of a body.
fn with_fields(mut application: Application, given: &Map<String, Value>) -> Result<Application, Reply> {
    let state = text_of(given.get("state")).ok_or_else(|| {
        let error = format!("Application with id=\"{}\" has no state", application.id);
        Reply { status: 400, body: json!({ "status": "bad_request", "error": error }) }
    })?;
    application.state = Some(state);
    for (name, field) in [
        ("plan_id", &mut application.plan_id),
        ("plan_name", &mut application.plan_name),
        ("redirect_url", &mut application.redirect_url),
    ] {
        if let Some(text) = text_of(given.get(name)) {
            *field = Some(text);
        }
    }
    Ok(application)
}

/// Steps that take a user key from the application that has it.
fn without_user_key(catalog: &Catalog, service: &str, user_key: &str) -> Vec<Step> {
    let Some(id) = catalog.id_of_user_key(service, user_key) else { return Vec::new() };
    let mut application = known(catalog, service, id);
    application.user_keys.remove(user_key);
    vec![put(application)]
}

/// Steps that give a user key to an application.
fn with_user_key(catalog: &Catalog, (service, id): (&str, &str), user_key: &str) -> Vec<Step> {
    let mut steps = without_user_key(catalog, service, user_key);
    let mut application = known(catalog, service, id);
    application.user_keys.insert(user_key.to_owned());
    steps.push(put(application));
    steps
}

/// Saves several applications, each by itself.
async fn batch(backend: &Backend, request: &Request<'_>, service: &str) -> Outcome {
    let given = request.body.get("applications").and_then(Value::as_array);
    let given = given.ok_or_else(|| Reply::missing("applications"))?;
    let (mut applications, mut failures) = (Vec::new(), Vec::new());
    for data in given {
        let id = text_of(data.get("id"));
        let saved = match (&id, data.as_object()) {
            (Some(id), Some(data)) => backend.change(|catalog| save_whole(catalog, (service, id), data)).await,
            _ => Err(Reply::bad("Application has no id")),
        };
        match saved {
            Ok(saved) => applications.push(saved),
            Err(refusal) => {
                let failure = json!({ "id": data.get("id"), "error": refusal.body["error"] });
                let mut about = failure.clone();
                about["status"] = "error".into();
                applications.push(about);
                failures.push(failure);
            }
        }
    }
    let mut body = json!({
        "status": "completed",
        "total": given.len(),
        "successful": given.len() - failures.len(),
        "failed": failures.len(),
        "applications": applications,
    });
    if !failures.is_empty() {
        body["failures"] = failures.into();
    }
    Ok(Reply::ok(body))
}

/// Saves an application with its keys and filters.
fn save_whole(catalog: &Catalog, (service, id): (&str, &str), given: &Map<String, Value>) -> Steps<Value> {
    let was_there = catalog.application(service, id).is_some();
    let mut application = with_fields(known(catalog, service, id), given)?;
    let user_key = text_of(given.get("user_key"));
    let mut steps = user_key.as_ref().map(|key| without_user_key(catalog, service, key)).unwrap_or_default();
    application.user_keys.extend(user_key.clone());
    for (name, texts) in
        [("application_keys", &mut application.keys), ("referrer_filters", &mut application.referrer_filters)]
    {
        let list = given.get(name).and_then(Value::as_array).into_iter().flatten();
        texts.extend(list.filter_map(|text| text_of(Some(text))));
    }
    let mut about = shown(&application);
    about["user_key"] = user_key.into();
    about["application_keys"] = application.keys.iter().cloned().collect();
    about["referrer_filters"] = application.referrer_filters.iter().cloned().collect();
    steps.push(put(application));
    Ok((steps, json!({ "status": if was_there { "modified" } else { "created" }, "application": about })))
}

async fn keys(backend: &Backend, request: &Request<'_>, (service, id): (&str, &str), path: &[&str]) -> Outcome {
    match (request.method, path) {
        ("GET", []) => {
            let catalog = backend.catalog();
            let application = catalog.application(service, id).ok_or_else(not_found)?;
            let key = |value: &String| json!({ "service_id": service, "app_id": id, "value": value });
            let keys: Vec<Value> = application.keys.iter().map(key).collect();
            Ok(Reply::ok(json!({ "status": "found", "application_keys": keys })))
        }
        ("POST", []) => {
            let given = request.body.get("application_key").and_then(|key| text_of(key.get("value")));
            let value = match given {
                Some(value) => value,
                None => random_key()?,
            };
            let change = backend.change(|catalog| {
                let mut application = catalog.application(service, id).cloned().ok_or_else(not_found)?;
                application.keys.insert(value.clone());
                Ok::<_, Reply>((vec![put(application)], ()))
            });
            change.await?;
            let key = json!({ "app_id": id, "value": value });
            Ok(Reply::created(json!({ "status": "created", "application_key": key })))
        }
        ("DELETE", [value]) => {
            let change = backend.change(|catalog| {
                let mut application = catalog.application(service, id).cloned().ok_or_else(not_found)?;
                match application.keys.remove(*value) {
                    true => Ok((vec![put(application)], ())),
                    false => Err(Reply::not_found("application key not found")),
                }
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

async fn filters(backend: &Backend, request: &Request<'_>, (service, id): (&str, &str), path: &[&str]) -> Outcome {
    match (request.method, path) {
        ("GET", []) => {
            let catalog = backend.catalog();
            let application = catalog.application(service, id).ok_or_else(not_found)?;
            Ok(Reply::ok(json!({ "status": "found", "referrer_filters": application.referrer_filters })))
        }
        ("POST", []) => {
            let filter = text_of(request.body.get("referrer_filter")).filter(|filter| !filter.trim().is_empty());
            let change = backend.change(|catalog| {
                let mut application = catalog.application(service, id).cloned().ok_or_else(not_found)?;
                let blank = || Reply { status: 400, body: json!({ "error": "referrer filter can't be blank" }) };
                let filter = filter.ok_or_else(blank)?;
                application.referrer_filters.insert(filter.clone());
                Ok::<_, Reply>((vec![put(application)], filter))
            });
            let filter = change.await?;
            Ok(Reply::created(json!({ "status": "created", "referrer_filter": filter })))
        }
        ("DELETE", [value]) => {
            // A filter stands in a path as base64, or as it is.
            let decoded = URL_SAFE.decode(value).or_else(|_| URL_SAFE_NO_PAD.decode(value)).ok();
            let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let change = backend.change(|catalog| {
                let mut application = catalog.application(service, id).cloned().ok_or_else(not_found)?;
                if decoded.is_none_or(|filter| !application.referrer_filters.remove(&filter)) {
                    application.referrer_filters.remove(*value);
                }
                Ok::<_, Reply>((vec![put(application)], ()))
            });
            change.await?;
            Ok(Reply::ok(json!({ "status": "deleted" })))
        }
        _ => Err(Reply::not_found("Not found")),
    }
}

/// A key that nobody guesses: 32 hexadecimal digits.
fn random_key() -> Result<String, Reply> {
    let mut bytes = [0; 16];
    let failed = |_| Reply { status: 500, body: json!({ "status": "error", "error": "there are no random numbers" }) };
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
