//! Sessions of organisations: `/tyk/org/keys`. Their limits hold with `enforce_org_quotas`.

use serde_json::{Value, json};
use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::organisation_name;

use super::held::Held;
use super::keys::{complete, shown};
use super::{GatewayApi, Outcome, argument, method_not_supported};

/// Answers a request for organisations.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    let held = Held::of(api, request);
    let unknown = || (404, "Org not found".to_owned());
    match (method, rest) {
        ("GET", []) => {
            let mut orgs: Vec<String> = api.loaded().servers().map(|server| server.org).collect();
            orgs.sort_unstable();
            orgs.dedup();
            let mut with_session = Vec::new();
            for org in orgs {
                if held.written(&organisation_name(&org))?.is_some() {
                    with_session.push(org);
                }
            }
            Ok(json!({ "keys": with_session }))
        }
        ("GET", [org]) => {
            let name = organisation_name(org);
            held.written(&name)?.ok_or_else(unknown)?;
            shown(api, request, &name)
        }
        ("POST" | "PUT", [org]) => {
            let session = serde_json::from_slice::<Value>(&request.body).ok();
            let Some(Value::Object(session)) = session else { return Err((400, "Request malformed".to_owned())) };
            let name = organisation_name(org);
            let before = held.written(&name)?;
            let keeps = before.is_some() && argument(request, "reset_quota") != Some("1");
            held.put(&name, &complete(session, before.as_ref(), keeps), keeps)?;
            let action = if method == "POST" { "added" } else { "modified" };
            Ok(json!({ "key": org, "status": "ok", "action": action }))
        }
        ("DELETE", [org]) => {
            let name = organisation_name(org);
            held.written(&name)?.ok_or_else(unknown)?;
            held.remove(&name)?;
            Ok(json!({ "key": org, "status": "ok", "action": "deleted" }))
        }
        _ => method_not_supported(),
    }
}
