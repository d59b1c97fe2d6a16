//! Eureka: all applications, asked for now and then.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_config::settings::EurekaDiscovery;
use weir_config::{DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::asker::{Asker, Failures};
use super::node;

/// Asks for ever.
pub(super) fn follow(conf: &EurekaDiscovery, services: &Services, asker: &Asker) {
    let servers: Vec<(String, String)> = conf.host.iter().map(|host| server(host.expose(), &conf.prefix)).collect();
    let mut failures: Vec<Failures> = servers.iter().map(|(uri, _)| Failures::of("eureka", uri)).collect();
    let mut first = 0;
    loop {
        let mut answered = false;
        for at in (0..servers.len()).map(|step| (first + step) % servers.len()) {
            let (Some((uri, login)), Some(failures)) = (servers.get(at), failures.get_mut(at)) else { continue };
            let asked = asker.get(uri, &[("Authorization", login)], Duration::ZERO);
            match asked.and_then(|answer| applications(&answer.body, conf.weight).map_err(str::to_owned)) {
                Ok(found) => {
                    failures.end();
                    services.report(DiscoveryType::Eureka, "", found);
                    (first, answered) = (at, true);
                    break;
                }
                Err(error) => failures.note(&error),
            }
        }
        if !answered {
            services.report_failure(DiscoveryType::Eureka, None);
        }
        thread::sleep(Duration::from_secs(conf.fetch_interval.into()));
    }
}

/// URI of the applications, and the login.
fn server(host: &str, prefix: &str) -> (String, String) {
    let (protocol, rest) = host.split_once("://").unwrap_or(("http", host));
    let (login, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("Basic {}", STANDARD.encode(user)), rest),
        None => (String::new(), rest),
    };
    (format!("{}/apps", format!("{protocol}://{rest}{prefix}").trim_end_matches('/')), login)
}

/// The instances that are up, by the name of their application.
fn applications(answer: &Value, weight: u32) -> Result<HashMap<Service, Vec<NodeAddr>>, &'static str> {
    let applications = answer.pointer("/applications/application").and_then(Value::as_array);
    let mut found: HashMap<Service, Vec<NodeAddr>> = HashMap::new();
    for application in applications.ok_or("the answer has no applications")? {
        let Some(name) = application["name"].as_str() else { continue };
        for instance in application["instance"].as_array().into_iter().flatten() {
            if let Some(node) = of_instance(instance, weight) {
                found.entry(Service::named(DiscoveryType::Eureka, name)).or_default().push(node);
            }
        }
    }
    Ok(found)
}

fn of_instance(instance: &Value, weight: u32) -> Option<NodeAddr> {
    let overridden = instance.get("overriddenstatus").or_else(|| instance.get("overriddenStatus"));
    let overridden = overridden.and_then(Value::as_str).filter(|status| *status != "UNKNOWN");
    if overridden.or_else(|| instance["status"].as_str()) != Some("UP") {
        return None;
    }
    let port = |name: &str| {
        let port = &instance[name];
        let enabled = port["@enabled"] == "true" || port["@enabled"] == true;
        let number = || port["$"].as_u64().or_else(|| port["$"].as_str()?.parse().ok());
        if enabled { number().and_then(|number| u16::try_from(number).ok()) } else { None }
    };
    let own = &instance["metadata"]["weight"];
    let own = own.as_u64().or_else(|| own.as_str()?.parse().ok()).and_then(|own| u32::try_from(own).ok());
    // As in APISIX, the secure port takes precedence.
    node(instance["ipAddr"].as_str()?, port("securePort").or_else(|| port("port"))?, own.unwrap_or(weight))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instances_that_are_up_become_nodes() {
        let instance = |more: Value| {
            let mut instance = json!({
                "ipAddr": "10.0.0.1", "status": "UP", "overriddenstatus": "UNKNOWN",
                "port": { "$": 8761, "@enabled": "true" }, "securePort": { "$": 443, "@enabled": "false" },
                "metadata": { "management.port": "8761" },
            });
            instance.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            instance
        };
        let answer = json!({ "applications": { "application": [{ "name": "APISIX-EUREKA", "instance": [
            instance(json!({})),
            instance(json!({ "ipAddr": "10.0.0.2", "metadata": { "weight": "7" } })),
            instance(json!({ "ipAddr": "10.0.0.3", "securePort": { "$": 8443, "@enabled": true } })),
            instance(json!({ "ipAddr": "10.0.0.4", "status": "DOWN" })),
            instance(json!({ "ipAddr": "10.0.0.5", "overriddenstatus": "OUT_OF_SERVICE" })),
            instance(json!({ "ipAddr": "10.0.0.6", "port": { "$": 1, "@enabled": "false" } })),
        ] }] } });
        let found = applications(&answer, 100).unwrap();
        let nodes = &found[&Service::named(DiscoveryType::Eureka, "APISIX-EUREKA")];
        let shown: Vec<_> = nodes.iter().map(|node| (node.to_string(), node.weight)).collect();
        let expected = [("10.0.0.1:8761", 100), ("10.0.0.2:8761", 7), ("10.0.0.3:8443", 100)];
        assert_eq!(shown, expected.map(|(node, weight)| (node.to_owned(), weight)));
        assert!(applications(&json!({}), 1).is_err());
    }

    #[test]
    fn a_server_may_have_a_login() {
        let plain = ("http://127.0.0.1:8761/eureka/apps".to_owned(), String::new());
        assert_eq!(server("http://127.0.0.1:8761", "/eureka/"), plain);
        let (uri, login) = server("https://a:b@host:1", "");
        assert_eq!((uri.as_str(), login.as_str()), ("https://host:1/apps", "Basic YTpi"));
    }
}
