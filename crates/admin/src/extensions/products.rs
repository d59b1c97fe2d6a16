//! Products: APIs, and the plans on which they may be called.

use hyper::StatusCode;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use weir_store::{Item, Kind};

use super::rights::wanted_team;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

impl Api {
    /// Services with their routes, and routes without a service, each with the plans that include it.
    pub(crate) async fn products(&self, request: &Request) -> Outcome {
        let (team, plan) = (wanted_team(request)?, request.query.get("plan"));
        let (revision, all) = self.all_products().await?;
        let of = |product: &Value, plan: &str| plans_of(product).any(|one| one == plan);
        let is_wanted = |product: &Value| {
            team.is_none_or(|team| product.get("team").and_then(Value::as_str) == Some(team))
                && plan.is_none_or(|plan| of(product, plan))
        };
        let products: Vec<Value> = all.into_iter().filter(is_wanted).collect();
        Ok(Answer::json(StatusCode::OK, &json!({ "revision": revision, "products": products })))
    }

    /// The products that one of these plans includes, each with those of these plans.
    pub(super) async fn products_of(&self, plans: &[String]) -> Result<Vec<Value>, Answer> {
        let (_, mut products) = self.all_products().await?;
        for product in &mut products {
            if let Some(Value::Array(found)) = product.get_mut("plans") {
                found.retain(|plan| {
                    plan.get("id").and_then(Value::as_str).is_some_and(|id| plans.iter().any(|one| one == id))
                });
            }
        }
        products.retain(|product| plans_of(product).next().is_some());
        Ok(products)
    }

    /// The OpenAPI documents of an API: those of its service and of its routes.
    pub(crate) async fn product_documents(&self, api: &str) -> Outcome {
        let _turn = self.turns.list().await?;
        let listing = self.configuration.listing(None).await.map_err(|error| Answer::store(&error))?;
        let mut found = Vec::new();
        let mut is_known = false;
        for item in listing.items.iter().filter(|item| matches!(item.key.kind(), Kind::Services | Kind::Routes)) {
            let known = Known::new(item);
            // A service has no such field.
            if known.text("service_id").unwrap_or(known.id) != api {
                continue;
            }
            is_known = true;
            if let Some(document) = document_of::<Value>(&known.value) {
                found.push(json!({ "of": item.key.to_string(), "document": document }));
            }
        }
        if !is_known {
            return Err(Answer::error(StatusCode::NOT_FOUND, format!("there is no API {api}")));
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "api": api, "documents": found })))
    }

    async fn all_products(&self) -> Result<(u64, Vec<Value>), Answer> {
        let _turn = self.turns.list().await?;
        let listing = self.configuration.listing(None).await.map_err(|error| Answer::store(&error))?;
        let of = |kind: Kind| listing.items.iter().filter(move |item| item.key.kind() == kind).map(Known::new);
        let (services, routes) = (of(Kind::Services).collect::<Vec<_>>(), of(Kind::Routes).collect::<Vec<_>>());
        let plans: Vec<Known<'_>> = of(Kind::Plans).collect();
        let mut products = Vec::new();
        for service in &services {
            let own: Vec<&Known<'_>> =
                routes.iter().filter(|route| route.text("service_id") == Some(service.id)).collect();
            products.push(product(service, Some(service.id), &own, &plans));
        }
        for route in routes.iter().filter(|route| route.text("service_id").is_none()) {
            products.push(product(route, None, &[route], &plans));
        }
        Ok((listing.revision, products))
    }
}

/// Ids of the plans of a product.
fn plans_of(product: &Value) -> impl Iterator<Item = &str> {
    let plans = product.get("plans").and_then(Value::as_array).into_iter().flatten();
    plans.filter_map(|plan| plan.get("id")?.as_str())
}

/// A resource with its value.
struct Known<'a> {
    id: &'a str,
    value: Value,
}

impl<'a> Known<'a> {
    fn new(item: &'a Item) -> Self {
        Self { id: item.key.own_id(), value: serde_json::from_str(&item.value).unwrap_or_default() }
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.value.get(field).and_then(Value::as_str)
    }
}

/// The OpenAPI document that a service or a route has with `oas-validator`, also where that is switched off.
fn document_of<T: DeserializeOwned>(resource: &Value) -> Option<T> {
    let text = resource.pointer("/plugins/oas-validator/spec")?.as_str()?;
    serde_json::from_str(text).ok()
}

fn product(api: &Known<'_>, service: Option<&str>, own: &[&Known<'_>], plans: &[Known<'_>]) -> Value {
    let routes: Vec<&str> = own.iter().map(|route| route.id).collect();
    let included = plans.iter().filter(|plan| includes(&plan.value, service, &routes));
    let plans: Vec<Value> = included
        .map(|plan| {
            let mut told = json!({ "id": plan.id, "limits": plan.value.get("limits").cloned().unwrap_or(json!([])) });
            for field in ["name", "desc"] {
                if let Some(text) = plan.text(field) {
                    told[field] = text.into();
                }
            }
            told
        })
        .collect();
    let mut told = json!({ "api": api.id, "routes": routes, "plans": plans });
    for field in ["name", "desc"] {
        if let Some(text) = api.text(field) {
            told[field] = text.into();
        }
    }
    if [api].iter().chain(own).any(|one| document_of::<IgnoredAny>(&one.value).is_some()) {
        told["documented"] = true.into();
    }
    if let Some(team) = api.value.get("labels").and_then(|labels| labels.get("team")) {
        told["team"] = team.clone();
    }
    told
}

/// True if a plan lets some request of an API through. Methods and paths are not looked at.
fn includes(plan: &Value, service: Option<&str>, routes: &[&str]) -> bool {
    let Some(access) = plan.get("access").and_then(Value::as_array) else { return true };
    let has = |entry: &Value, field: &str, ids: &[&str]| {
        let Some(named) = entry.get(field).and_then(Value::as_array) else { return true };
        named.iter().any(|one| one.as_str().is_some_and(|one| ids.contains(&one)))
    };
    access.iter().any(|entry| {
        let service: Vec<&str> = service.into_iter().collect();
        has(entry, "routes", routes) && has(entry, "services", &service)
    })
}

#[cfg(test)]
mod tests {
    use super::includes;
    use serde_json::json;

    #[test]
    fn a_plan_includes_what_its_access_names() {
        let cases = [
            (json!({}), true),
            (json!({ "access": [{ "methods": ["GET"] }] }), true),
            (json!({ "access": [{ "services": ["shop"] }] }), true),
            (json!({ "access": [{ "routes": ["orders"] }] }), true),
            (json!({ "access": [{ "services": ["shop"], "routes": ["other"] }] }), false),
            (json!({ "access": [{ "services": ["other"] }, { "routes": ["items"] }] }), true),
            (json!({ "access": [{ "services": ["other"] }] }), false),
        ];
        for (plan, expected) in cases {
            assert_eq!(includes(&plan, Some("shop"), &["orders", "items"]), expected, "{plan}");
        }
        assert!(!includes(&json!({ "access": [{ "services": ["shop"] }] }), None, &["open"]));
    }
}
