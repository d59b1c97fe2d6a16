//! A service as it is written, in one form: texts and numbers may stand for each other, and absent fields may be null.

use weir_config::env::Variables;
use weir_config::{Diagnostic, Kind, Mark, Node};
use weir_plugins::threescale::name_of;

use crate::pem::{Pair, of_file};
use crate::rule;

/// Variables of the environment that APIcast reads.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// Ids of the services that are served; none: all.
    pub(crate) services: Vec<String>,
    /// The backend of all services.
    pub(crate) backend: Option<String>,
    /// The caching of verdicts without a policy for it.
    pub(crate) caching: Option<String>,
    /// `OPENSSL_VERIFY`, where it is given.
    pub(crate) verifies: Option<bool>,
    /// The certificate that clients are shown.
    pub(crate) https: Option<Pair>,
}

/// Variables that would change what APIcast does, and do not here.
const REFUSED: [(&str, &str); 2] = [
    ("APICAST_PATH_ROUTING", "services are chosen by their hosts alone: give each service a host of its own"),
    ("APICAST_SERVICES_FILTER_BY_URL", "name the services in APICAST_SERVICES_LIST"),
];

impl Environment {
    /// Reads the variables; findings are at the beginning of the document.
    pub(crate) fn read(variables: Variables<'_>, mark: Mark, found: &mut Vec<Diagnostic>) -> Self {
        let given = |name: &str| variables(name).filter(|value| !value.is_empty());
        let is_on = |value: &str| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes");
        for (name, reason) in REFUSED {
            let value = given(name).filter(|value| name != "APICAST_PATH_ROUTING" || is_on(value));
            if value.is_some() {
                let text = format!("the variable {name} is not supported: {reason}");
                found.push(Diagnostic::error(mark, "", rule(text)));
            }
        }
        if given("APICAST_RESPONSE_CODES").is_some_and(|value| is_on(&value)) {
            let text = "APICAST_RESPONSE_CODES has no effect: statuses of responses are not reported to the backend";
            found.push(Diagnostic::warning(mark, "", rule(text)));
        }
        for name in ["APICAST_CACHE_MAX_TIME", "APICAST_CACHE_STATUS_CODES"] {
            if given(name).is_some() {
                let text = format!(
                    "{name} has no effect: content_caching keeps 200 and 302 for a minute unless told otherwise"
                );
                found.push(Diagnostic::warning(mark, "", rule(text)));
            }
        }
        let caching = given("APICAST_BACKEND_CACHE_HANDLER");
        if let Some(name) = caching.as_ref().filter(|name| !matches!(name.as_str(), "strict" | "resilient")) {
            let text = format!("APICAST_BACKEND_CACHE_HANDLER: expected strict or resilient, found '{name}'");
            found.push(Diagnostic::error(mark, "", rule(text)));
        }
        let files = ["APICAST_HTTPS_CERTIFICATE", "APICAST_HTTPS_CERTIFICATE_KEY"].map(|name| (name, given(name)));
        let [cert, key] = files.each_ref().map(|(name, path)| match (path, &files) {
            (Some(path), _) => of_file(path).map(Some).map_err(|reason| format!("{name}: {reason}")),
            (None, [(_, None), (_, None)]) => Ok(None),
            (None, _) => Err(format!("{name} is missing beside the other one of the certificate and its key")),
        });
        let https = match (cert, key) {
            (Ok(cert), Ok(key)) => cert.zip(key).map(|(cert, key)| Pair { cert, key }),
            (Err(reason), _) | (_, Err(reason)) => {
                found.push(Diagnostic::error(mark, "", rule(reason)));
                None
            }
        };
        let services = given("APICAST_SERVICES_LIST").or_else(|| given("APICAST_SERVICES")).unwrap_or_default();
        let ids = services.split(',').map(str::trim).filter(|id| !id.is_empty());
        Self {
            services: ids.map(str::to_owned).collect(),
            backend: given("BACKEND_ENDPOINT_OVERRIDE"),
            caching,
            verifies: given("OPENSSL_VERIFY").map(|value| is_on(&value)),
            https,
        }
    }

    /// True for a service that is served.
    pub(crate) fn takes(&self, service: &Service) -> bool {
        self.services.is_empty() || self.services.contains(&service.id)
    }
}

/// A service.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) id: String,
    pub(crate) node: Node,
    /// Path in the document.
    pub(crate) path: String,
}

/// Fields that are numbers, of which some files have texts.
const NUMBERS: [&str; 4] =
    ["error_status_auth_failed", "error_status_auth_missing", "error_status_limits_exceeded", "error_status_no_match"];

impl Service {
    /// Reads a service; `None` with an error among the findings.
    pub(crate) fn read(
        mut node: Node,
        path: String,
        environment: &Environment,
        found: &mut Vec<Diagnostic>,
    ) -> Option<Self> {
        drop_nulls(&mut node);
        if node.as_map().is_none() {
            found.push(Diagnostic::error(
                node.mark,
                path,
                rule(format!("expected a service, found {}", node.describe())),
            ));
            return None;
        }
        for field in
            ["id", "system_name", "backend_version", "backend_authentication_type", "backend_authentication_value"]
        {
            to_text(&mut node, field);
        }
        let id = match node.get("id").and_then(Node::as_str) {
            Some(id) if !id.is_empty() => id.to_owned(),
            _ => "default".to_owned(),
        };
        let before = found.len();
        if let Some(proxy) = node.get_mut("proxy") {
            normalise_proxy(proxy, environment);
        }
        let service = Self { id, node, path };
        service.check(found);
        let is_refused = found.iter().skip(before).any(Diagnostic::is_error);
        (!is_refused).then_some(service)
    }

    /// The value at a path of names.
    pub(crate) fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(&self.node, |node, name| node.get(name))
    }

    pub(crate) fn text(&self, path: &str) -> &str {
        self.at(path).and_then(Node::as_str).unwrap_or_default()
    }

    /// A fault of a field, at its position.
    pub(crate) fn fault(&self, field: &str, text: impl Into<String>) -> Diagnostic {
        let mark = self.at(field).map_or(self.node.mark, |node| node.mark);
        Diagnostic::error(mark, format!("{}.{field}", self.path), rule(text))
    }

    pub(crate) fn doubt(&self, field: &str, text: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: weir_config::Severity::Warning, ..self.fault(field, text) }
    }

    /// Policies at the top of the chain: their names without the words before them, and their nodes.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (usize, &str, &Node)> {
        let chain = self.at("proxy.policy_chain").and_then(Node::as_seq).unwrap_or_default();
        let named = |(at, policy)| Some((at, name_of(Node::get(policy, "name")?.as_str()?), policy));
        chain.iter().enumerate().filter_map(named)
    }

    fn check(&self, found: &mut Vec<Diagnostic>) {
        let version = self.text("backend_version");
        let method = Some(self.text("proxy.authentication_method")).filter(|method| !method.is_empty());
        match (version, method.unwrap_or(version)) {
            ("oauth" | "oidc", "oidc") | ("1", "1") | ("2", "2") => {}
            ("oauth", _) => {
                let text = "the OAuth server of APIcast itself is not supported: set authentication_method to oidc, and \
                    oidc_issuer_endpoint to a provider";
                found.push(self.fault("backend_version", text));
            }
            ("1" | "2" | "oidc", method) => {
                let text = format!("authentication_method '{method}' does not fit backend_version {version}");
                found.push(self.fault("proxy.authentication_method", text));
            }
            ("", _) => found.push(self.fault("backend_version", "required field missing: expected 1, 2 or oauth")),
            (other, _) => {
                found.push(self.fault("backend_version", format!("expected one of: 1, 2, oauth; found '{other}'")));
            }
        }
        for (at, rule) in self.at("proxy.proxy_rules").and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            let has_query = rule.get("pattern").and_then(Node::as_str).is_some_and(|pattern| pattern.contains('?'));
            if has_query && rule.get("querystring_parameters").is_none() {
                let text =
                    "what follows ? is not looked at, as in APIcast: name the arguments in querystring_parameters";
                let path = format!("{}.proxy.proxy_rules[{at}].pattern", self.path);
                found.push(Diagnostic::warning(rule.mark_of("pattern"), path, crate::rule(text)));
            }
        }
        self.check_versions(found);
    }

    fn check_versions(&self, found: &mut Vec<Diagnostic>) {
        for (at, name, policy) in self.policies() {
            let version = policy.get("version").and_then(Node::as_str).unwrap_or_default();
            if !matches!(version, "" | "builtin") {
                let text = format!(
                    "the policy {name} of version '{version}' is not there: expected builtin, for policies \
                    written in Lua are not loaded"
                );
                let path = format!("{}.proxy.policy_chain[{at}].version", self.path);
                found.push(Diagnostic::error(policy.mark_of("version"), path, rule(text)));
            }
        }
    }
}

/// Brings the fields of a proxy into one form.
fn normalise_proxy(proxy: &mut Node, environment: &Environment) {
    for field in ["hostname_rewrite", "secret_token", "auth_user_key", "auth_app_id", "auth_app_key"] {
        to_text(proxy, field);
    }
    for field in NUMBERS {
        to_number(proxy, field);
    }
    if let Some(Node { kind: Kind::Seq(rules), .. }) = proxy.get_mut("proxy_rules") {
        for rule in rules {
            to_number(rule, "delta");
            to_number(rule, "owner_id");
            let is_list = rule.get("querystring_parameters").is_some_and(|node| node.as_map().is_none());
            if is_list {
                // An empty mapping that a program has written as a list.
                rule.remove("querystring_parameters");
            }
        }
    }
    if let Some(endpoint) = &environment.backend {
        let mark = proxy.mark;
        let text = Node { mark, kind: Kind::Str(endpoint.clone()) };
        match proxy.get_mut("backend").filter(|backend| matches!(backend.kind, Kind::Map(_))) {
            Some(backend) => {
                backend.remove("endpoint");
                backend.insert("endpoint", text);
            }
            None => {
                proxy.remove("backend");
                let mut backend = Node { mark, kind: Kind::Map(Vec::new()) };
                backend.insert("endpoint", text);
                proxy.insert("backend", backend);
            }
        }
    }
    // A backend that was written as its URL alone.
    if let Some(Node { kind: Kind::Str(url), mark }) = proxy.get("backend").cloned() {
        proxy.remove("backend");
        let mut backend = Node { mark, kind: Kind::Map(Vec::new()) };
        backend.insert("endpoint", Node { mark, kind: Kind::Str(url) });
        proxy.insert("backend", backend);
    }
    if let (Some(verifies), Some(backend)) = (environment.verifies, proxy.get_mut("backend")) {
        backend.remove("verify");
        let mark = backend.mark;
        backend.insert("verify", Node { mark, kind: Kind::Bool(verifies) });
    }
}

fn drop_nulls(node: &mut Node) {
    match &mut node.kind {
        Kind::Map(entries) => {
            entries.retain(|(_, value)| !value.is_null());
            entries.iter_mut().for_each(|(_, value)| drop_nulls(value));
        }
        Kind::Seq(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// A number in the place of a text.
fn to_text(node: &mut Node, field: &str) {
    if let Some(value) = node.get_mut(field)
        && let Kind::Int(number) = value.kind
    {
        value.kind = Kind::Str(number.to_string());
    }
}

/// A text of digits in the place of a number.
fn to_number(node: &mut Node, field: &str) {
    let Some(value) = node.get_mut(field) else { return };
    if let Kind::Str(text) = &value.kind
        && let Ok(number) = text.trim().parse::<i64>()
    {
        value.kind = Kind::Int(number);
    }
}
