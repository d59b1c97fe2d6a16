//! Translation of values of `config.yaml` into values of settings.
//!
//! A reader puts the tree of a value under its setting, where it is checked like that of a `weir.yaml`. Where several
//! keys make one setting, each of their readers reads all these keys: the order in a file does not matter.

use std::thread::available_parallelism;

use weir_expr::{Variable, VariableError};

use super::{Entry, Translation, plain};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Mark, Node, plain_scalar, push_index, quoted};
use crate::settings::overlay::{leaves, put};

/// Takes the value as it is. A number or a boolean may stand in quotes, as placeholders often do.
pub(super) fn same(to: &mut Translation<'_>, entry: &Entry<'_>) {
    for setting in entry.settings {
        to.set(setting, unquoted(entry.value, setting));
    }
}

/// A number of bytes, where one below 1 stands for none.
pub(super) fn size_or_none(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref().map(str::parse::<i64>) {
        Some(Ok(bytes)) => set_all(to, entry, &Kind::Int(bytes.max(0))),
        _ => to.error(entry, "a number of bytes"),
    }
}

/// A list, or the only element of it.
pub(super) fn one_or_several(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let value = match &entry.value.kind {
        Kind::Str(_) => Node { mark: entry.value.mark, kind: Kind::Seq(vec![entry.value.clone()]) },
        _ => entry.value.clone(),
    };
    for setting in entry.settings {
        to.set(setting, value.clone());
    }
}

/// The settings of a registry of services. APISIX reserves memory for some of them.
pub(super) fn registry(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let value = without_reserve(to, entry.path, entry.value);
    for setting in entry.settings {
        to.set(setting, value.clone());
    }
}

/// The settings of one cluster, or of several.
pub(super) fn clusters(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let clusters = match &entry.value.kind {
        Kind::Seq(clusters) => clusters.iter().map(|cluster| without_reserve(to, entry.path, cluster)).collect(),
        _ => vec![without_reserve(to, entry.path, entry.value)],
    };
    set_all(to, entry, &Kind::Seq(clusters));
}

/// Zones of caches. Their folders have one level here.
pub(super) fn cache_zones(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Kind::Seq(zones) = &entry.value.kind else { return to.error(entry, "a list of zones") };
    let zones =
        zones.iter().map(|zone| without(to, entry.path, zone, "cache_levels", "folders have one level")).collect();
    set_all(to, entry, &Kind::Seq(zones));
}

fn without_reserve(to: &mut Translation<'_>, path: &str, value: &Node) -> Node {
    without(to, path, value, "shared_size", "memory is not reserved")
}

/// A value without a key that has no effect here.
fn without(to: &mut Translation<'_>, path: &str, value: &Node, name: &str, why: &str) -> Node {
    let mut value = value.clone();
    if let Some((key, _)) = value.remove(name) {
        let code = Code::NoEffect { why: format!("here: {why}").into() };
        to.found.push(Diagnostic::warning(key.mark, format!("{path}.{name}"), code));
    }
    value
}

fn unquoted(value: &Node, setting: &str) -> Node {
    let is_text = leaves().iter().any(|leaf| leaf.path == setting && (leaf.text || leaf.list));
    match &value.kind {
        Kind::Str(text) if !is_text => Node { mark: value.mark, kind: plain_scalar(text.clone()) },
        _ => value.clone(),
    }
}

/// nginx's times: `60`, `60s`, `500ms`, `1m 30s`, `2h`, `1d`.
pub(super) fn time(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref().and_then(seconds) {
        Some(seconds) => {
            for setting in entry.settings {
                to.set(setting, Node { mark: entry.value.mark, kind: Kind::Float(seconds) });
            }
        }
        None => to.error(entry, "a time such as 60s, 500ms or 1m30s"),
    }
}

fn seconds(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "" | "s" => 1.0,
                "ms" => 0.001,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = rest[letters..].trim_start();
    }
    (!text.trim().is_empty()).then_some(total)
}

/// nginx's switches, which YAML does not take for booleans.
pub(super) fn on_off(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref() {
        Some("on" | "true") => set_all(to, entry, &Kind::Bool(true)),
        Some("off" | "false") => set_all(to, entry, &Kind::Bool(false)),
        _ => to.error(entry, "on or off"),
    }
}

fn set_all(to: &mut Translation<'_>, entry: &Entry<'_>, kind: &Kind) {
    for setting in entry.settings {
        to.set(setting, Node { mark: entry.value.mark, kind: kind.clone() });
    }
}

pub(super) fn dev_mode(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref() {
        Some("true") => set_all(to, entry, &Kind::Int(1)),
        Some("false") => {}
        _ => to.error(entry, "true or false"),
    }
}

/// nginx counts for each worker, and this gateway for all of them.
pub(super) fn connections(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let workers = match to.elsewhere("nginx_config.worker_processes").and_then(plain).map(|text| text.parse()) {
        Some(Ok(count)) => count,
        _ => available_parallelism().map_or(1, |count| i64::try_from(count.get()).unwrap_or(1)),
    };
    let each = plain(entry.value).and_then(|text| text.parse::<i64>().ok());
    match each.and_then(|each| each.checked_mul(workers)) {
        Some(all) => set_all(to, entry, &Kind::Int(all)),
        None => to.error(entry, "a number of connections"),
    }
}

/// `TLSv1.2 TLSv1.3`, or a list.
pub(super) fn protocols(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let asked: Vec<String> = match &entry.value.kind {
        Kind::Str(text) => text.split_whitespace().map(str::to_owned).collect(),
        Kind::Seq(items) => items.iter().filter_map(plain).collect(),
        _ => return to.error(entry, "versions such as TLSv1.2 TLSv1.3"),
    };
    let (spoken, old): (Vec<_>, Vec<_>) = asked.into_iter().partition(|name| !OLD_PROTOCOLS.contains(&name.as_str()));
    if !old.is_empty() && !spoken.is_empty() {
        let code = Code::OldProtocols { names: old.join(" ") };
        to.found.push(Diagnostic::warning(entry.value.mark, entry.path, code));
    }
    if spoken.is_empty() {
        return to.error(entry, "TLSv1.2, TLSv1.3 or both");
    }
    let item = |name: String| Node { mark: entry.value.mark, kind: Kind::Str(name) };
    set_all(to, entry, &Kind::Seq(spoken.into_iter().map(item).collect()));
}

const OLD_PROTOCOLS: [&str; 5] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.0", "TLSv1.1"];

pub(super) const REAL_IP_FROM: &str = "nginx_config.http.real_ip_from";

/// The addresses of a list, without `unix:`.
pub(super) fn ranges(list: &Node) -> Option<Node> {
    let kept = list.as_seq()?.iter().filter(|item| item.as_str() != Some("unix:")).cloned().collect();
    Some(Node { mark: list.mark, kind: Kind::Seq(kept) })
}

pub(super) fn real_ip_from(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(trusted) = ranges(entry.value) else { return to.error(entry, "a list of addresses and ranges") };
    if !address_from_proxy(to) {
        to.set("real_ip.trusted", trusted);
    }
}

pub(super) fn real_ip_header(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if !address_from_proxy(to) {
        same(to, entry);
    }
}

fn address_from_proxy(to: &Translation<'_>) -> bool {
    to.elsewhere("nginx_config.http.real_ip_header").and_then(Node::as_str) == Some("proxy_protocol")
}

pub(super) fn log_level(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let level = match plain(entry.value).as_deref() {
        Some(level @ ("debug" | "info" | "warn" | "error")) => level.to_owned(),
        Some("notice") => "info".to_owned(),
        Some("crit" | "alert" | "emerg") => "error".to_owned(),
        _ => return to.error(entry, "debug, info, notice, warn, error, crit, alert or emerg"),
    };
    set_all(to, entry, &Kind::Str(level));
}

pub(super) fn error_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if !tell_syslog(to, entry) {
        same(to, entry);
    }
}

/// Logs of nginx may go to syslog.
fn tell_syslog(to: &mut Translation<'_>, entry: &Entry<'_>) -> bool {
    let syslog = entry.value.as_str().is_some_and(|path| path.starts_with("syslog:"));
    if syslog {
        to.without_effect(entry.key, entry.path, "logs go to files and streams, not to syslog");
    }
    syslog
}

/// Destination of the access log, from three keys: APISIX writes one unless it is turned off.
pub(super) fn access_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if entry.path.starts_with("nginx_config.stream.") {
        return stream_access_log(to, entry);
    }
    let enabled = to.elsewhere("nginx_config.http.enable_access_log").and_then(plain);
    let path = to.elsewhere("nginx_config.http.access_log").cloned();
    let is_syslog = path.as_ref().and_then(Node::as_str).is_some_and(|path| path.starts_with("syslog:"));
    let path = match enabled.as_deref() {
        Some("false") => Some(Node { mark: entry.value.mark, kind: Kind::Str("off".to_owned()) }),
        _ if is_syslog => None,
        _ => path.or(Some(Node { mark: entry.value.mark, kind: Kind::Str("logs/access.log".to_owned()) })),
    };
    if let Some(path) = path {
        to.set("access_log.path", path);
    }
    if entry.path.ends_with(".access_log") {
        tell_syslog(to, entry);
    }
    if entry.settings.contains(&"access_log.format") {
        log_format(to, entry);
    }
}

/// The log of streams, which is off in APISIX unless it is asked for.
fn stream_access_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let enabled = to.elsewhere("nginx_config.stream.enable_access_log").and_then(plain);
    let path = to.elsewhere("nginx_config.stream.access_log").cloned();
    let is_syslog = path.as_ref().and_then(Node::as_str).is_some_and(|path| path.starts_with("syslog:"));
    let usual = |text: &str| Node { mark: entry.value.mark, kind: Kind::Str(text.to_owned()) };
    match enabled.as_deref() {
        Some("true") if is_syslog => {}
        Some("true") => to.set("stream_access_log.path", path.unwrap_or_else(|| usual("logs/access_stream.log"))),
        _ => to.set("stream_access_log.path", usual("off")),
    }
    if entry.path.ends_with(".access_log") {
        tell_syslog(to, entry);
    }
    if entry.settings.contains(&"stream_access_log.format") {
        log_format(to, entry);
    }
}

/// Between APISIX's quotes nginx takes a backslash away from a quote that follows it.
fn log_format(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(text) = entry.value.as_str() else { return to.error(entry, "a text with $variables") };
    let text = text.trim_end_matches('\n').replace("\\\"", "\"").replace("\\'", "'").replace("\\\\", "\\");
    let json = to.elsewhere(&format!("{}_escape", entry.path)).and_then(Node::as_str) == Some("json");
    let (text, missing) = known_variables(&text, if json { "" } else { "-" });
    let written = if json { "nothing" } else { "-" };
    for reason in missing {
        let code = Code::WrittenForIt { reason: reason.to_string(), written };
        to.found.push(Diagnostic::warning(entry.value.mark, entry.path, code));
    }
    let setting = entry.settings.first().copied().unwrap_or_default();
    to.set(setting, Node { mark: entry.value.mark, kind: Kind::Str(text) });
}

/// Puts what there is in the place of nginx's variables that are not here, and else what nginx writes for a variable
/// without a value. Returns those as well.
fn known_variables(text: &str, none: &str) -> (String, Vec<VariableError>) {
    let mut parts = text.split('$');
    let mut known = parts.next().unwrap_or_default().to_owned();
    let mut missing = Vec::new();
    for part in parts {
        let in_braces = part.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = in_braces.unwrap_or((&part[..end], &part[end..]));
        match name {
            // As in the form `combined`: the consumer, for every way of authentication.
            "remote_user" => known.extend(["${consumer_name}", rest]),
            "request" => known.extend(["$request_method $request_uri ${server_protocol}", rest]),
            // A `$` that no name follows is itself.
            name if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && in_braces.is_none() => {
                known.extend(["$", part]);
            }
            name => match Variable::parse(name) {
                Ok(_) => known.extend(["$", part]),
                Err(reason) => {
                    known.extend([none, rest]);
                    missing.extend((!missing.contains(&reason)).then_some(reason));
                }
            },
        }
    }
    (known, missing)
}

pub(super) fn log_escape(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match entry.value.as_str() {
        Some("none") => to.without_effect(entry.key, entry.path, "a client could forge lines"),
        _ => same(to, entry),
    }
}

pub(super) fn metrics_server(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let group = "plugin_attr.prometheus";
    let off = to.elsewhere(&format!("{group}.enable_export_server")).and_then(plain).as_deref() == Some("false");
    server(to, entry, off, &format!("{group}.export_addr"), 9091);
}

pub(super) fn admin(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let off = to.elsewhere("apisix.enable_admin").and_then(plain).as_deref() == Some("false");
    server(to, entry, off, "deployment.admin.admin_listen", 9180);
}

/// APISIX makes a key for an entry without one, as this gateway does for a role without one.
pub(super) fn admin_keys(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(items) = entry.value.as_seq() else {
        return to.error(entry, "a list of mappings with name, key and role");
    };
    let (mut admin, mut viewer, mut further) = (None, None, Vec::new());
    for (index, item) in items.iter().enumerate() {
        let text = |name: &str| item.get(name).filter(|node| !node.is_null());
        match text("role").map(|role| (role, plain(role))) {
            _ if text("key").and_then(plain).is_none_or(|key| key.is_empty()) => {}
            Some((_, Some(role))) if role == "admin" && admin.is_none() => admin = text("key"),
            Some((_, Some(role))) if role == "viewer" && viewer.is_none() => viewer = text("key"),
            Some((_, Some(role))) if role == "admin" || role == "viewer" => further.push(item.clone()),
            other => {
                let mut path = entry.path.to_owned();
                push_index(&mut path, index);
                let Some((role, Some(name))) = other else {
                    to.found.push(Diagnostic::error(
                        item.mark,
                        path,
                        Code::Expected { what: "a role: admin or viewer" },
                    ));
                    continue;
                };
                // The role matters to the Admin API alone, and only the start decides whether that is on.
                to.found.push(Diagnostic::warning(role.mark, path, Code::NotARole { name: quoted(&name) }));
                let as_node = |text: &str| Node { mark: role.mark, kind: Kind::Str(text.to_owned()) };
                let mut key = Node { mark: item.mark, kind: Node::empty_map().kind };
                for (field, value) in [
                    ("name", text("name").cloned().unwrap_or_else(|| as_node(&name))),
                    ("key", text("key").cloned().unwrap_or_else(|| as_node(""))),
                    ("role", as_node("none")),
                ] {
                    put(&mut key, field, value);
                }
                further.push(key);
            }
        }
    }
    // A key of digits alone is a number for YAML.
    let as_text = |node: &Node| Node { mark: node.mark, kind: Kind::Str(plain(node).unwrap_or_default()) };
    for (setting, key) in [("admin.key", admin.map(as_text)), ("viewer.key", viewer.map(as_text))] {
        if let Some(key) = key {
            to.set(setting, key);
        }
    }
    if !further.is_empty() {
        to.set("admin.keys", Node { mark: entry.value.mark, kind: Kind::Seq(further) });
    }
}

/// Certificates have no effect without `https_admin`, and that has none without them.
pub(super) fn admin_tls(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let group = "deployment.admin";
    let on = match to.elsewhere("deployment.admin.https_admin").and_then(plain).as_deref() {
        Some("true") => true,
        Some("false") | None => false,
        Some(_) => return tell_once(to, wrong_switch(entry)),
    };
    let file =
        |name: &str| to.elsewhere(&format!("{group}.admin_api_mtls.{name}")).filter(|node| node.as_str() != Some(""));
    let files = [
        ("admin.tls.cert", file("admin_ssl_cert").cloned()),
        ("admin.tls.key", file("admin_ssl_cert_key").cloned()),
        ("admin.tls.client_ca", file("admin_ssl_ca_cert").cloned()),
    ];
    if !on {
        return;
    }
    if files[0].1.is_none() || files[1].1.is_none() {
        let what = "admin_api_mtls.admin_ssl_cert and admin_api_mtls.admin_ssl_cert_key";
        let code = Code::NeedsSettings { what };
        return tell_once(to, Diagnostic::error(Mark::NONE, "deployment.admin.https_admin", code));
    }
    for (setting, file) in files {
        if let Some(file) = file {
            to.set(setting, file);
        }
    }
}

fn wrong_switch(entry: &Entry<'_>) -> Diagnostic {
    let code = Code::Expected { what: "true or false" };
    Diagnostic::error(entry.value.mark, "deployment.admin.https_admin", code)
}

pub(super) fn control(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let off = to.elsewhere("apisix.enable_control").and_then(plain).as_deref() == Some("false");
    server(to, entry, off, "apisix.control", 9090);
}

pub(super) fn status(to: &mut Translation<'_>, entry: &Entry<'_>) {
    server(to, entry, false, "apisix.status", 7085);
}

/// A server of the gateway's own, from `ip` and `port` of a mapping.
fn server(to: &mut Translation<'_>, entry: &Entry<'_>, off: bool, group: &str, port: u16) {
    let part = |name: &str| to.elsewhere(&format!("{group}.{name}")).and_then(plain);
    let (ip, given) = (part("ip"), part("port"));
    if off {
        return set_all(to, entry, &Kind::Str("off".to_owned()));
    }
    if ip.is_none() && given.is_none() {
        return;
    }
    let ip = ip.unwrap_or_else(|| "127.0.0.1".to_owned());
    let ip = if ip.contains(':') && !ip.starts_with('[') { format!("[{ip}]") } else { ip };
    let address = format!("{ip}:{}", given.unwrap_or_else(|| port.to_string()));
    set_all(to, entry, &Kind::Str(address));
}

/// An empty list would refuse every plugin, and no file means that.
pub(super) fn plugins(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match entry.value.as_seq() {
        None if entry.value.is_null() => set_all(to, entry, &Kind::Seq(Vec::new())),
        None => to.error(entry, "a list of names of plugins"),
        Some(_) => same(to, entry),
    }
}

/// Folders of a path of Lua: `/a/?.lua;/b/?.lua`.
pub(super) fn lua_path(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let text = plain(entry.value).unwrap_or_default();
    let mut folders = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        match part.strip_suffix("/?.lua") {
            Some(folder) => {
                folders.push(Node { mark: entry.value.mark, kind: Kind::Str(folder.to_owned()) });
            }
            // Modules that are folders are found beside the others.
            None if part.ends_with("/?/init.lua") => {}
            None => return to.error(entry, "folders as in /a/?.lua;/b/?.lua"),
        }
    }
    if !folders.is_empty() {
        set_all(to, entry, &Kind::Seq(folders));
    }
}

/// The provider beside those of roles, which take precedence in APISIX.
pub(super) fn shared_config_provider(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let role = to.elsewhere("deployment.role").and_then(plain).unwrap_or_else(|| "traditional".to_owned());
    let own = format!("deployment.role_{role}.config_provider");
    match to.elsewhere(&own).map(plain) {
        None => same(to, entry),
        Some(provider) if provider == plain(entry.value) => {}
        Some(_) => to.without_effect(entry.key, entry.path, &format!("{own} takes precedence")),
    }
}

/// Reads the provider of the role; the other roles' keys are there in files that people copy whole.
pub(super) fn config_provider(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let role = to.elsewhere("deployment.role").and_then(plain).unwrap_or_else(|| "traditional".to_owned());
    if !entry.path.starts_with(&format!("deployment.role_{role}.")) {
        return;
    }
    match plain(entry.value).as_deref() {
        Some(provider @ ("etcd" | "yaml" | "json")) => set_all(to, entry, &Kind::Str(provider.to_owned())),
        Some("xds") => {
            let code = Code::NotSupported { feature: "configuration over xDS".into() };
            to.found.push(Diagnostic::error(entry.value.mark, entry.path, code));
        }
        Some("control_plane") => {
            let hint = "config_provider: etcd, with deployment.etcd";
            let error = Diagnostic::error(entry.value.mark, entry.path, Code::DataPlaneAsksEtcd);
            to.found.push(error.with_hint(hint));
        }
        _ => to.error(entry, "etcd, yaml or json"),
    }
}

/// Reports a finding once, though several keys read the same values.
pub(super) fn tell_once(to: &mut Translation<'_>, found: Diagnostic) {
    if !to.found.contains(&found) {
        to.found.push(found);
    }
}
