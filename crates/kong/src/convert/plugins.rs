//! Plugins: from Kong's configurations to those of APISIX.

mod access;
mod changes;
mod traffic;

use serde_json::{Map, Value, json};

use super::values::{flag, text};
pub(super) use access::credential;
use access::{acl, bot_detection, ip_restriction, jwt, key_auth, with_caller};
use changes::{correlation_id, request_transformer, response_transformer};
use traffic::{cors, proxy_cache, rate_limiting, redirect, request_size_limiting, request_termination};

/// The plugins that were made of those of one place.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// Name of Kong's plugin, name of the plugin that it became, and its configuration.
    parts: Vec<(String, &'static str, Value)>,
    pub(super) notes: Vec<String>,
    pub(super) missing: Vec<String>,
}

/// Outcome of the conversion of one plugin.
type Outcome = Result<(&'static str, Value), String>;

impl Made {
    pub(super) fn of(plugins: &Map<String, Value>) -> Self {
        let mut made = Self::default();
        for (name, conf) in plugins {
            let filter = conf.get("_meta").cloned();
            match counterpart(name, conf, &mut made.notes) {
                Ok((to, mut value)) => {
                    if let (Some(filter), Value::Object(value)) = (filter, &mut value) {
                        value.insert("_meta".to_owned(), filter);
                    }
                    made.add(name, to, value);
                }
                Err(reason) if only_reports(name) => made.missing.push(format!("{name}: {reason}: left out")),
                Err(reason) => {
                    made.missing.push(format!("{name}: {reason}: requests are answered with 503"));
                    made.close(&format!("{name}: {reason}"));
                }
            }
        }
        made
    }

    /// Adds a configuration that `from` became. Several of one plugin are laid over each other.
    pub(super) fn add(&mut self, from: &str, to: &'static str, conf: Value) {
        self.parts.push((from.to_owned(), to, conf));
    }

    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// Answers all requests with 503, so that none passes without what is missing.
    pub(super) fn close(&mut self, reason: &str) {
        let body = json!({ "message": format!("no counterpart: {reason}") }).to_string().replace('$', "");
        let abort = json!({ "http_status": 503, "body": body });
        self.notes.push(format!("Closed, because there is no counterpart for {reason}"));
        self.add("", "fault-injection", json!({ "abort": abort }));
    }

    /// True if a plugin answers in the place of an upstream.
    pub(super) fn answers(&self) -> bool {
        self.parts.iter().any(|(_, to, _)| matches!(*to, "fault-injection" | "redirect"))
    }

    /// Adds what the service's plugins became where one of these takes the place of it: a plugin of a route lies over that of
    /// its service as a whole. `own` are Kong's plugins of the route.
    pub(super) fn lie_over(&mut self, service: &Self, own: &Map<String, Value>) {
        let is_here = |to: &str| self.parts.iter().any(|(_, own, _)| *own == to);
        let shared = |(from, to, _): &&(String, &'static str, Value)| is_here(to) && !own.contains_key(from);
        let shared: Vec<_> = service.parts.iter().filter(shared).cloned().collect();
        self.parts.splice(0..0, shared);
    }

    /// Refuses what would take the place of a route's own rewriting of paths. True if there is any.
    pub(super) fn refuse_rewrites(&mut self) -> bool {
        let is_rewrite = |(_, to, _): &(String, &'static str, Value)| *to == "proxy-rewrite";
        let has_any = self.parts.iter().any(is_rewrite);
        if has_any {
            self.parts.retain(|part| !is_rewrite(part));
            self.close("request-transformer of a consumer");
        }
        has_any
    }

    /// The configurations by the names of plugins.
    pub(super) fn plugins(&self) -> Map<String, Value> {
        let mut all = Map::new();
        for (_, to, conf) in &self.parts {
            match all.get_mut(*to) {
                // An answer to all requests takes precedence over one to some.
                Some(held) if *to == "fault-injection" && held["abort"]["vars"].is_null() => {}
                Some(held) if *to == "fault-injection" => *held = conf.clone(),
                Some(held) => lay_over(held, conf),
                None => drop(all.insert((*to).to_owned(), conf.clone())),
            }
        }
        all
    }
}

fn lay_over(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (name, value) in over {
                match under.get_mut(name) {
                    Some(held) => lay_over(held, value),
                    None => drop(under.insert(name.clone(), value.clone())),
                }
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// True for plugins without which a request is served as well.
fn only_reports(name: &str) -> bool {
    const REPORTS: [&str; 14] = [
        "correlation-id",
        "datadog",
        "file-log",
        "http-log",
        "loggly",
        "opentelemetry",
        "prometheus",
        "proxy-cache",
        "statsd",
        "syslog",
        "tcp-log",
        "udp-log",
        "upstream-timeout",
        "zipkin",
    ];
    REPORTS.contains(&name)
}

fn counterpart(name: &str, conf: &Value, notes: &mut Vec<String>) -> Outcome {
    match name {
        "key-auth" => key_auth(conf, notes),
        "basic-auth" => Ok(("basic-auth", with_caller(json!({ "realm": text(conf, "realm", "service") }), conf))),
        "jwt" => jwt(conf, notes),
        "acl" => acl(conf),
        "rate-limiting" => rate_limiting(conf, notes),
        "request-size-limiting" => request_size_limiting(conf),
        "cors" => cors(conf, notes),
        "ip-restriction" => ip_restriction(conf, notes),
        "bot-detection" => bot_detection(conf, notes),
        "request-termination" => request_termination(conf),
        "redirect" => redirect(conf),
        "request-transformer" | "request-transformer-advanced" => request_transformer(conf, notes),
        "response-transformer" => response_transformer(conf, notes),
        "correlation-id" => correlation_id(conf, notes),
        "proxy-cache" => proxy_cache(conf, notes),
        "grpc-web" => Ok(("grpc-web", json!({}))),
        "prometheus" => {
            notes.push("prometheus: metrics have APISIX's names, and those of this gateway.".to_owned());
            Ok(("prometheus", json!({ "prefer_name": true })))
        }
        "file-log" => {
            notes.push("file-log: entries have APISIX's fields.".to_owned());
            Ok(("file-logger", json!({ "path": conf["path"] })))
        }
        "http-log" => {
            notes.push("http-log: entries have APISIX's fields and come in lists, 1000 at most.".to_owned());
            Ok(("http-logger", json!({ "uri": conf["http_endpoint"] })))
        }
        "tcp-log" | "udp-log" => {
            notes.push(format!("{name}: entries have APISIX's fields."));
            let mut made = json!({ "host": conf["host"], "port": conf["port"] });
            if flag(conf, "tls", false) {
                made["tls"] = true.into();
            }
            Ok((if name == "tcp-log" { "tcp-logger" } else { "udp-logger" }, made))
        }
        // Limits of the route, which have been written there.
        "upstream-timeout" => Err("its limits are those of the route".to_owned()),
        _ => Err("the plugin".to_owned()),
    }
}
