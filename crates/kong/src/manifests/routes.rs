//! Ingress and HTTPRoute as routes, Service and EndpointSlice as services and upstreams.

use weir_config::{Diagnostic, Kind, Node};

use super::entities::Made;
use super::objects::{Object, Objects};
use super::{doubt, fault};
use crate::document::whole;
use crate::lower::{escaped, flag, list, map, number, text};

/// Annotations of routes.
const OF_ROUTES: &[&str] = &[
    "plugins",
    "strip-path",
    "preserve-host",
    "protocols",
    "methods",
    "https-redirect-status-code",
    "regex-priority",
    "snis",
    "request-buffering",
    "response-buffering",
];

/// Annotations of services.
const OF_SERVICES: &[&str] =
    &["plugins", "protocol", "path", "connect-timeout", "read-timeout", "write-timeout", "retries", "host-header"];

/// The service that a backend names.
struct Backend<'n> {
    namespace: &'n str,
    name: &'n str,
    /// A port by its number or its name.
    port: Option<&'n Node>,
    weight: i64,
}

impl<'n> Objects<'n> {
    /// Adds the routes of all Ingresses and HTTPRoutes, with the services that they lead to.
    pub(super) fn routes(&self, resolve: &[(String, String)], made: &mut Made, found: &mut Vec<Diagnostic>) {
        for object in self.all("Ingress") {
            object.check_annotations(OF_ROUTES, found);
            self.ingress(object, resolve, made, found);
        }
        for object in self.all("HTTPRoute") {
            object.check_annotations(OF_ROUTES, found);
            self.http_route(object, resolve, made, found);
        }
    }

    fn ingress(&self, object: &Object<'n>, resolve: &[(String, String)], made: &mut Made, found: &mut Vec<Diagnostic>) {
        let mut count = 0;
        for (at, one) in object.at(&["spec", "rules"]).and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            let host = one.get("host").filter(|host| !host.is_null());
            let paths = one.get("http").and_then(|http| http.get("paths")).and_then(Node::as_seq);
            for (place, path) in paths.unwrap_or_default().iter().enumerate() {
                let field = format!("spec.rules[{at}].http.paths[{place}]");
                let Some(backend) = self.backend(object, path.get("backend"), &field, found) else { continue };
                let service = self.service(object, &[backend], resolve, made, found);
                let written = path.get("path").and_then(Node::as_str).unwrap_or("/");
                let kind = path.get("pathType").and_then(Node::as_str).unwrap_or("ImplementationSpecific");
                let mut route = self.route(object, &format!("{}.{count}", object.name), &service);
                count += 1;
                let paths = paths_of(kind, written).into_iter().map(|path| text(&path)).collect();
                route.insert("paths", list(path.mark, paths));
                if let Some(host) = host {
                    route.insert("hosts", list(host.mark, vec![host.clone()]));
                }
                self.add_route(object, route, &field, made, found);
            }
        }
        if let Some(default) = object.at(&["spec", "defaultBackend"])
            && let Some(backend) = self.backend(object, Some(default), "spec.defaultBackend", found)
        {
            let service = self.service(object, &[backend], resolve, made, found);
            let mut route = self.route(object, &format!("{}.default", object.name), &service);
            route.insert("paths", list(default.mark, vec![text("/")]));
            self.add_route(object, route, "spec.defaultBackend", made, found);
        }
    }

    fn http_route(
        &self,
        object: &Object<'n>,
        resolve: &[(String, String)],
        made: &mut Made,
        found: &mut Vec<Diagnostic>,
    ) {
        let mut count = 0;
        for (at, one) in object.at(&["spec", "rules"]).and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            let field = format!("spec.rules[{at}]");
            for filter in one.get("filters").and_then(Node::as_seq).unwrap_or_default() {
                let kind = filter.get("type").and_then(Node::as_str).unwrap_or_default();
                let text = format!("the filter {kind} is not supported: a KongPlugin by konghq.com/plugins does it");
                found.push(fault(filter, object.path(&format!("{field}.filters")), text));
            }
            let mut backends = Vec::new();
            for backend in one.get("backendRefs").and_then(Node::as_seq).unwrap_or_default() {
                let Some(name) = backend.get("name").and_then(Node::as_str) else {
                    found.push(fault(
                        backend,
                        object.path(&format!("{field}.backendRefs")),
                        "name: required field missing",
                    ));
                    continue;
                };
                backends.push(Backend {
                    namespace: backend.get("namespace").and_then(Node::as_str).unwrap_or(object.namespace),
                    name,
                    port: backend.get("port"),
                    weight: backend.get("weight").and_then(whole).unwrap_or(1),
                });
            }
            if backends.is_empty() {
                found.push(fault(one, object.path(&field), "a rule without backendRefs answers nothing"));
                continue;
            }
            let service = self.service(object, &backends, resolve, made, found);
            let none = vec![map(one.mark, [])];
            let matches = one.get("matches").and_then(Node::as_seq).filter(|all| !all.is_empty()).unwrap_or(&none);
            for condition in matches {
                let mut route = self.route(object, &format!("{}.{count}", object.name), &service);
                count += 1;
                let path = condition.get("path");
                let part = |name: &str| path.and_then(|path| path.get(name)?.as_str());
                let kind = match part("type") {
                    Some("Exact") => "Exact",
                    Some("RegularExpression") => "Regex",
                    _ => "Prefix",
                };
                let paths = paths_of(kind, part("value").unwrap_or("/")).into_iter().map(|path| text(&path)).collect();
                route.insert("paths", list(condition.mark, paths));
                if let Some(hosts) = object.at(&["spec", "hostnames"]) {
                    route.insert("hosts", hosts.clone());
                }
                if let Some(method) = condition.get("method") {
                    route.insert("methods", list(method.mark, vec![method.clone()]));
                }
                let mut headers = map(condition.mark, []);
                for header in condition.get("headers").and_then(Node::as_seq).unwrap_or_default() {
                    let of = |name: &str| header.get(name).and_then(Node::as_str).unwrap_or_default();
                    let start = if of("type") == "RegularExpression" { "~*" } else { "" };
                    let values = vec![text(&format!("{start}{}", of("value")))];
                    headers.insert(of("name"), list(header.mark, values));
                }
                if headers.as_map().is_some_and(|all| !all.is_empty()) {
                    route.insert("headers", headers);
                }
                if let Some(query) = condition.get("queryParams") {
                    let place = object.path(&format!("{field}.matches.queryParams"));
                    found.push(fault(query, place, "conditions on query arguments are not supported"));
                }
                self.add_route(object, route, &field, made, found);
            }
        }
    }

    /// A route with what the annotations of its object say. The ingress controller's defaults differ from Kong's.
    fn route(&self, object: &Object<'n>, name: &str, service: &str) -> Node {
        let mark = object.node.mark;
        let is = |name: &str, usual: bool| {
            let written = object.annotation(name).and_then(Node::as_str);
            written.map_or(usual, |value| value == "true")
        };
        let mut route = map(
            mark,
            [
                ("name", text(&format!("{}.{name}", object.namespace))),
                ("service", text(service)),
                ("strip_path", flag(is("strip-path", false))),
                ("preserve_host", flag(is("preserve-host", true))),
            ],
        );
        for (annotation, field) in [("protocols", "protocols"), ("methods", "methods"), ("snis", "snis")] {
            let values: Vec<Node> = object.listed(annotation).into_iter().map(text).collect();
            if !values.is_empty() {
                route.insert(field, list(mark, values));
            }
        }
        for (annotation, field) in
            [("https-redirect-status-code", "https_redirect_status_code"), ("regex-priority", "regex_priority")]
        {
            let written = object.annotation(annotation).and_then(Node::as_str);
            if let Some(value) = written.and_then(|value| value.parse::<i64>().ok()) {
                route.insert(field, number(value));
            }
        }
        let annotations = object.at(&["metadata", "annotations"]).and_then(Node::as_map).unwrap_or_default();
        let mut headers = map(mark, []);
        for (key, value) in annotations {
            let name = key.text.strip_prefix("konghq.com/headers.");
            if let (Some(name), Some(value)) = (name, value.as_str()) {
                headers.insert(name, list(mark, value.split(',').map(|value| text(value.trim())).collect()));
            }
        }
        if headers.as_map().is_some_and(|all| !all.is_empty()) {
            route.insert("headers", headers);
        }
        route
    }

    fn add_route(&self, object: &Object<'n>, route: Node, field: &str, made: &mut Made, found: &mut Vec<Diagnostic>) {
        let name = route.get("name").and_then(Node::as_str).unwrap_or_default().to_owned();
        made.add("routes", route, object, field);
        self.attach(object, ("route", &name), made, found);
    }

    fn backend(
        &self,
        object: &Object<'n>,
        backend: Option<&'n Node>,
        field: &str,
        found: &mut Vec<Diagnostic>,
    ) -> Option<Backend<'n>> {
        let service = backend.and_then(|backend| backend.get("service"));
        let Some(name) = service.and_then(|service| service.get("name")?.as_str()) else {
            let place = object.path(&format!("{field}.backend"));
            found.push(fault(backend.unwrap_or(object.node), place, "expected a service with a name and a port"));
            return None;
        };
        let port = service.and_then(|service| service.get("port"));
        let port = port.and_then(|port| port.get("number").or_else(|| port.get("name")));
        Some(Backend { namespace: object.namespace, name, port, weight: 100 })
    }

    /// Name of the service of Kong for these backends, which is added where there is none yet.
    fn service(
        &self,
        object: &Object<'n>,
        backends: &[Backend<'n>],
        resolve: &[(String, String)],
        made: &mut Made,
        found: &mut Vec<Diagnostic>,
    ) -> String {
        let port_of = |backend: &Backend<'_>| match backend.port.map(|port| &port.kind) {
            Some(Kind::Int(port)) => port.to_string(),
            Some(Kind::Str(name)) => name.clone(),
            _ => "80".to_owned(),
        };
        let one = |backend: &Backend<'_>| format!("{}.{}.{}", backend.namespace, backend.name, port_of(backend));
        let name = backends.iter().map(one).collect::<Vec<_>>().join("_");
        if made.has("services", &name) {
            return name;
        }
        let mark = object.node.mark;
        let first = backends.first().and_then(|backend| self.find("Service", backend.namespace, backend.name));
        let source = first.unwrap_or(object);
        let mut entity = map(mark, [("name", text(&name)), ("host", text(&format!("{name}.svc")))]);
        if let Some(service) = first {
            service.check_annotations(OF_SERVICES, found);
            for (annotation, field) in [("protocol", "protocol"), ("path", "path")] {
                if let Some(value) = service.annotation(annotation) {
                    entity.insert(field, value.clone());
                }
            }
            for (annotation, field) in [
                ("connect-timeout", "connect_timeout"),
                ("read-timeout", "read_timeout"),
                ("write-timeout", "write_timeout"),
                ("retries", "retries"),
            ] {
                let written = service.annotation(annotation).and_then(Node::as_str);
                if let Some(value) = written.and_then(|value| value.parse::<i64>().ok()) {
                    entity.insert(field, number(value));
                }
            }
        }
        made.add("services", entity, source, "");
        let mut targets = Vec::new();
        for backend in backends {
            for target in self.targets(backend, resolve, object, found) {
                let entries = [("target", text(&target)), ("weight", number(backend.weight))];
                targets.push(map(mark, entries));
            }
        }
        let mut upstream = map(mark, [("name", text(&format!("{name}.svc"))), ("targets", list(mark, targets))]);
        if let Some(host) = first.and_then(|service| service.annotation("host-header")) {
            upstream.insert("host_header", host.clone());
        }
        made.add("upstreams", upstream, source, "");
        if let Some(service) = first {
            self.attach(service, ("service", &name), made, found);
        }
        name
    }

    /// The addresses of a backend: by `--resolve`, of its EndpointSlices, or its name in the DNS of a cluster.
    fn targets(
        &self,
        backend: &Backend<'n>,
        resolve: &[(String, String)],
        object: &Object<'n>,
        found: &mut Vec<Diagnostic>,
    ) -> Vec<String> {
        let Backend { namespace, name, port, .. } = backend;
        let service = self.find("Service", namespace, name);
        let ports =
            service.and_then(|service| service.at(&["spec", "ports"])).and_then(Node::as_seq).unwrap_or_default();
        let is_this = |entry: &&Node| match port.map(|port| &port.kind) {
            Some(Kind::Int(number)) => entry.get("port").and_then(whole) == Some(*number),
            Some(Kind::Str(name)) => entry.get("name").and_then(Node::as_str) == Some(name.as_str()),
            _ => true,
        };
        let entry = ports.iter().find(is_this);
        let number = match port.map(|port| &port.kind) {
            Some(Kind::Int(number)) => Some(*number),
            _ => entry.and_then(|entry| entry.get("port")).and_then(whole),
        };
        let full = format!("{namespace}/{name}");
        let with_port = |key: &str| number.map(|number| format!("{key}:{number}"));
        let keys = [with_port(&full), with_port(name), Some(full.clone()), Some((*name).to_owned())];
        let known = keys.into_iter().flatten().find_map(|key| resolve.iter().find(|(service, _)| *service == key));
        if let Some((_, address)) = known {
            return vec![address.clone()];
        }
        let mut targets = Vec::new();
        for slice in self.all("EndpointSlice").filter(|slice| slice.namespace == *namespace) {
            let labels = slice.at(&["metadata", "labels"]);
            if labels.and_then(|labels| labels.get("kubernetes.io/service-name")?.as_str()) != Some(*name) {
                continue;
            }
            let of_slice = slice.at(&["ports"]).and_then(Node::as_seq).unwrap_or_default();
            let named = entry.and_then(|entry| entry.get("name")?.as_str());
            let port = of_slice.iter().find(|port| named.is_none() || port.get("name").and_then(Node::as_str) == named);
            let port = port.and_then(|port| port.get("port")).and_then(whole).or(number).unwrap_or(80);
            for endpoint in slice.at(&["endpoints"]).and_then(Node::as_seq).unwrap_or_default() {
                let ready = endpoint.get("conditions").and_then(|conditions| conditions.get("ready"));
                if ready.is_some_and(|ready| ready.kind == Kind::Bool(false)) {
                    continue;
                }
                let addresses = endpoint.get("addresses").and_then(Node::as_seq).unwrap_or_default();
                targets.extend(addresses.iter().filter_map(Node::as_str).map(|address| match address.contains(':') {
                    true => format!("[{address}]:{port}"),
                    false => format!("{address}:{port}"),
                }));
            }
        }
        if targets.is_empty() {
            let external = service.and_then(|service| service.at(&["spec", "externalName"])?.as_str());
            let host = external.map_or_else(|| format!("{name}.{namespace}.svc"), str::to_owned);
            let port = number.unwrap_or(80);
            if external.is_none() {
                let text =
                    format!("{host}:{port} is looked up in the DNS: --resolve {full}=ADDRESS:PORT says where else");
                found.push(doubt(object.node, object.path(""), text));
            }
            targets.push(format!("{host}:{port}"));
        }
        targets
    }
}

/// The paths of Kong for a path of an Ingress.
fn paths_of(kind: &str, path: &str) -> Vec<String> {
    let path = if path.is_empty() { "/" } else { path };
    match (kind, path.trim_end_matches('/')) {
        ("Exact", _) => vec![format!("~{}$", escaped_path(path))],
        ("Regex", _) => vec![format!("~{path}")],
        ("Prefix", "") => vec!["/".to_owned()],
        ("Prefix", whole) => vec![format!("{whole}/"), format!("~{}$", escaped_path(whole))],
        // `/~` begins a regular expression there.
        _ => vec![path.strip_prefix("/~").map_or_else(|| path.to_owned(), |regex| format!("~{regex}"))],
    }
}

/// A path as a regular expression for it alone.
fn escaped_path(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<_>>().join("/")
}
