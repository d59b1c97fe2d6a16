//! Properties and content of this gateway, and problems that need attention.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_store::{Item, Kind};

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::tls::end_of_certificates;

/// Time before the end of a certificate from which on it is a problem.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// Problems of one sort in an answer.
const MOST: usize = 100;

impl Api {
    /// Version, start, what may be changed, and the number of resources of each kind.
    pub(crate) async fn about(&self) -> Outcome {
        let listing = self.configuration.listing(None).await.map_err(|error| Answer::store(&error))?;
        let kinds = Kind::ALL.into_iter().filter(|_| self.family.is_none());
        let mut counts: BTreeMap<&str, u64> = kinds.map(|kind| (kind.plural(), 0)).collect();
        for item in &listing.items {
            *counts.entry(kind_of(item)).or_default() += 1;
        }
        let mut told = self.gateway.about();
        told["revision"] = listing.revision.into();
        told["counts"] = json!(counts);
        let family = told.get("family").and_then(Value::as_str).map(str::to_owned);
        told["family"] = self.family.map(str::to_owned).or(family).unwrap_or_else(|| "apisix".to_owned()).into();
        told["usage"] = self.gateway.usage().is_some().into();
        told["read_only"] = match self.configuration.read_only() {
            Some(reason) => reason.into(),
            None if self.standalone => {
                "in standalone mode the configuration is replaced as a whole: PUT /apisix/admin/configs".into()
            }
            None => Value::Null,
        };
        Ok(Answer::json(StatusCode::OK, &told))
    }

    /// Certificates that end soon, nodes that do not serve, resources that are left out, changes that were refused.
    pub(crate) async fn problems(&self) -> Outcome {
        let kind = if self.family.is_some() { Kind::Entities } else { Kind::Ssls };
        let certificates = self.configuration.listing(Some(kind)).await.map_err(|error| Answer::store(&error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reading = tokio::task::spawn_blocking(move || {
            let mut problems: Vec<Value> =
                certificates.items.iter().filter_map(|item| of_certificate(item, now)).take(MOST).collect();
            problems.sort_by_key(|problem| problem["ends"].as_u64());
            problems
        });
        let mut problems = reading.await.map_err(|panicked| {
            tracing::error!(%panicked, "certificates could not be looked at");
            Answer::internal()
        })?;
        let health = self.gateway.health();
        problems.extend(health.as_array().into_iter().flatten().flat_map(of_upstream).take(MOST));
        problems.extend(of_gateways(&self.gateway.about()["version"], &self.gateway.gateways()));
        if let Some(pulse) = self.gateway.pulse() {
            let mut figures = pulse.metrics().figures();
            // A change over this API is refused to whoever asks for it.
            figures.last_rejected &= self.configuration.read_only().is_some();
            problems.extend(of_figures(&figures));
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "problems": problems, "health": health })))
    }
}

/// Name of the kind of a resource, as paths have it; of entities of another family that of the family.
fn kind_of(item: &Item) -> &str {
    match item.key.kind() {
        Kind::Entities => item.key.id().split('/').next().unwrap_or_default(),
        kind => kind.plural(),
    }
}

fn problem(severity: &str, sort: &str, key: &str, text: &str, hint: &str) -> Value {
    json!({ "severity": severity, "sort": sort, "key": key, "text": text, "hint": hint })
}

fn of_certificate(item: &Item, now: Duration) -> Option<Value> {
    if !matches!(kind_of(item), "ssls" | "certificates") {
        return None;
    }
    let value: Value = serde_json::from_str(&item.value).ok()?;
    let pem = value.get("cert")?.as_str()?;
    let names = value.get("snis").or_else(|| value.get("sni")).map(Value::to_string).unwrap_or_default();
    let key = item.key.to_string();
    let key = key.strip_prefix("entities/").unwrap_or(&key);
    // A reference to a secret is no text of a certificate; its value is not shown here.
    if !pem.contains("-----BEGIN") {
        return None;
    }
    let Some(ends) = end_of_certificates(pem) else {
        let hint = "replace the certificate by one in PEM";
        return Some(problem(
            "error",
            "certificate",
            key,
            &format!("the certificate for {names} cannot be read"),
            hint,
        ));
    };
    let days = ends.saturating_sub(now).as_secs() / (24 * 3600);
    let (severity, text) = match ends.checked_sub(now) {
        None => ("error", format!("the certificate for {names} has ended")),
        Some(left) if left < SOON => ("warning", format!("the certificate for {names} ends in {days} days")),
        Some(_) => return None,
    };
    let mut told = problem(severity, "certificate", key, &text, "put a renewed certificate and its key in its place");
    told["ends"] = ends.as_secs().into();
    Some(told)
}

fn of_upstream(upstream: &Value) -> Vec<Value> {
    let key = upstream["key"].as_str().unwrap_or_default();
    let nodes = upstream["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_down = |node: &&Value| node["status"] == "unhealthy";
    let down: Vec<&str> = nodes.iter().filter(is_down).filter_map(|node| node["address"].as_str()).collect();
    if down.is_empty() {
        return Vec::new();
    }
    let (severity, all) = if down.len() == nodes.len() { ("error", "all") } else { ("warning", "some") };
    let text = format!("{all} of the {} nodes do not pass their checks: {}", nodes.len(), down.join(", "));
    vec![problem(severity, "node", key, &text, "look at the nodes, or at the upstream's checks")]
}

/// Gateways of other versions that share the store. APISIX's own tell of themselves at the same place, and are no others.
fn of_gateways(own: &Value, all: &[Value]) -> Option<Value> {
    let all: Vec<&Value> = all.iter().filter(|gateway| gateway["product"] == "weir").collect();
    let text = |gateway: &Value, field: &str| gateway[field].as_str().unwrap_or("?").to_owned();
    let others = all.iter().filter(|gateway| gateway["version"] != *own);
    let others: Vec<String> =
        others.map(|gateway| format!("{} {}", text(gateway, "hostname"), text(gateway, "version"))).collect();
    if others.is_empty() {
        return None;
    }
    let shown = others.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    let text = format!(
        "{} of {} gateways run another version than {}: {shown}{}",
        others.len(),
        all.len(),
        own.as_str().unwrap_or_default(),
        if others.len() > 8 { ", …" } else { "" }
    );
    let hint = "upgrade them; until then they may refuse what only the newer version knows";
    Some(problem("warning", "version", "", &text, hint))
}

fn of_figures(figures: &weir_telemetry::metrics::Figures) -> Vec<Value> {
    let mut found = Vec::new();
    if figures.left_out > 0 {
        let text =
            format!("{} resources do not serve as they stand, because something is wrong with them", figures.left_out);
        let hint = "the error log names each with the reason; a dry run of a resource tells the same";
        found.push(problem("error", "left_out", "", &text, hint));
    }
    if figures.withheld {
        let text = "the store has lost what serves; the last good state goes on";
        found.push(problem(
            "error",
            "withheld",
            "",
            text,
            "restore the store, or accept it: POST /v1/store/accept at the control API",
        ));
    }
    if figures.last_rejected {
        let text = "the last version of the configuration was refused; the one before serves";
        let hint = "the error log has each finding with file and line; `weir check` tells them before";
        found.push(problem("error", "refused", "", text, hint));
    }
    if figures.nodes_set_aside > 0 {
        let text = format!("{} nodes are set aside because they take no connections", figures.nodes_set_aside);
        found.push(problem("warning", "node", "", &text, "look at the nodes; they are tried again by themselves"));
    }
    let (open, limit) = (figures.clients.active, figures.connections_limit);
    if limit > 0 && open.saturating_mul(10) >= limit.saturating_mul(9) {
        let text = format!("{open} of {limit} client connections are in use");
        found.push(problem(
            "warning",
            "limit",
            "",
            &text,
            "raise limits.connections and the limit of file descriptors",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_telemetry::metrics::{Clients, Figures};

    use super::{of_figures, of_gateways, of_upstream};

    #[test]
    fn gateways_of_other_versions_are_a_problem() {
        let gateway = |host: &str, version: &str| json!({ "product": "weir", "hostname": host, "version": version });
        let own = json!("0.2.0");
        let apisix = json!({ "hostname": "c", "version": "3.14.0" });
        assert_eq!(of_gateways(&own, &[gateway("a", "0.2.0"), apisix]), None);
        let told = of_gateways(&own, &[gateway("a", "0.2.0"), gateway("b", "0.1.0")]).expect("a problem");
        let text = told["text"].as_str().expect("a text");
        assert_eq!(text, "1 of 2 gateways run another version than 0.2.0: b 0.1.0");
    }

    #[test]
    fn nodes_that_fail_their_checks_are_a_problem() {
        let upstream = |first: &str, second: &str| {
            let node = |address: &str, status: &str| json!({ "address": address, "status": status });
            json!({ "key": "upstreams/1", "nodes": [node("10.0.0.1:80", first), node("10.0.0.2:80", second)] })
        };
        assert!(of_upstream(&upstream("healthy", "mostly_unhealthy")).is_empty());
        let some = of_upstream(&upstream("healthy", "unhealthy"));
        assert_eq!((&some[0]["severity"], &some[0]["key"]), (&json!("warning"), &json!("upstreams/1")), "{some:?}");
        assert!(
            some[0]["text"].as_str().is_some_and(|text| text.contains("10.0.0.2:80") && !text.contains("10.0.0.1"))
        );
        assert_eq!(of_upstream(&upstream("unhealthy", "unhealthy"))[0]["severity"], "error");
    }

    #[test]
    fn figures_become_problems_where_somebody_has_to_act() {
        let calm = Figures { connections_limit: 100, ..Figures::default() };
        assert!(of_figures(&calm).is_empty());
        let busy = Figures { clients: Clients { active: 90, ..Clients::default() }, ..calm.clone() };
        assert_eq!(of_figures(&busy)[0]["sort"], "limit");
        let bad = Figures { left_out: 2, withheld: true, last_rejected: true, nodes_set_aside: 1, ..calm };
        let sorts: Vec<_> = of_figures(&bad).into_iter().map(|problem| problem["sort"].clone()).collect();
        assert_eq!(sorts, ["left_out", "withheld", "refused", "node"]);
    }
}
