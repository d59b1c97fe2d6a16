//! Middleware in JavaScript and over gRPC, and handlers of events.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_config::{Diagnostic, Kind, Mark, Node};

use super::{Scripts, add_storage, list, map, number, text};
use crate::conf::Conf;
use crate::definition::{Definition, drop_nulls, is_on};
use crate::files::scripts::is_script;

/// Reason for which middleware in other languages is refused.
const OTHER: &str = "only middleware in JavaScript and over gRPC is supported";

/// Driver of middleware over gRPC.
pub(super) const GRPC: &str = "grpc";

/// The hooks of a kind that are on.
fn hooks(api: &Definition, name: &str) -> Vec<Node> {
    let hooks = api.at(&format!("custom_middleware.{name}")).and_then(Node::as_seq).unwrap_or_default();
    let is_off = |hook: &Node| hook.get("disabled").is_some_and(|disabled| disabled.kind == Kind::Bool(true));
    hooks.iter().filter(|hook| !is_off(hook)).cloned().collect()
}

/// Adds the plugins of the hooks that an API has.
pub(super) fn add(
    api: &Definition,
    id: &str,
    (conf, scripts): (&Conf, &Scripts),
    plugins: &mut Node,
    found: &mut Vec<Diagnostic>,
) {
    let driver = api.text("custom_middleware.driver");
    if driver == GRPC {
        add_services(api, id, conf, plugins, found);
        return;
    }
    let pre = hooks(api, "pre");
    let post = [hooks(api, "post_key_auth"), hooks(api, "post")].concat();
    let response = hooks(api, "response");
    let has_hooks = [&pre, &post, &response].iter().any(|hooks| !hooks.is_empty());
    if has_hooks && !is_script(driver) {
        found
            .push(api.fault("custom_middleware.driver", format!("middleware in '{driver}' is not supported: {OTHER}")));
        return;
    }
    for (plugin, hooks) in [("pre", pre), ("post", post), ("response", response)] {
        if !hooks.is_empty()
            && let Some(made) = self::plugin(api, id, plugin, &hooks, (conf, scripts), found)
        {
            plugins.insert(plugin, made);
        }
    }
}

/// Adds the plugins of hooks over gRPC.
fn add_services(api: &Definition, id: &str, conf: &Conf, plugins: &mut Node, found: &mut Vec<Diagnostic>) {
    let hooks = |names: &[&str]| {
        let mut all = map(api.node.mark, []);
        for name in names {
            let functions = hooks(api, name);
            if !functions.is_empty() {
                all.insert(name, list(api.node.mark, functions.iter().map(function).collect()));
            }
        }
        all
    };
    for (plugin, mut made) in [
        ("coprocess_pre", hooks(&["pre"])),
        ("coprocess_post", hooks(&["post_key_auth", "post"])),
        ("coprocess_response", hooks(&["response"])),
    ] {
        if made.as_map().is_some_and(<[_]>::is_empty) {
            continue;
        }
        match service(api, id, conf) {
            Ok(service) => {
                made.insert("service", service);
                plugins.insert(plugin, made);
            }
            Err(reason) => found.push(api.fault("custom_middleware.driver", reason)),
        }
    }
}

/// The function of a hook.
pub(super) fn function(hook: &Node) -> Node {
    let mut made = map(hook.mark, []);
    for name in ["name", "raw_body_only"] {
        if let Some(value) = hook.get(name) {
            made.insert(name, value.clone());
        }
    }
    made
}

/// The service of middleware over gRPC, with what it is told of an API.
///
/// # Errors
/// There is none.
pub(super) fn service(api: &Definition, id: &str, conf: &Conf) -> Result<Node, &'static str> {
    const NONE: &str =
        "middleware over gRPC needs coprocess_options.enable_coprocess and coprocess_grpc_server of tyk.conf";
    let server = conf.coprocess.as_deref().ok_or(NONE)?;
    let mut made =
        map(api.node.mark, [("api_id", text(id)), ("org_id", text(api.text("org_id"))), ("server", text(server))]);
    if let Some(data) = api.at("config_data").filter(|data| is_on(data) && !api.flag("config_data_disabled")) {
        made.insert("config_data", data.clone());
    }
    Ok(made)
}

/// The plugin of virtual endpoints; `None` without any.
pub(super) fn virtuals(
    api: &Definition,
    id: &str,
    (conf, scripts): (&Conf, &Scripts),
    versions: &Node,
    found: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let mark = api.node.mark;
    let lists = versions.as_seq().unwrap_or_default().iter().filter_map(|version| version.get("virtual"));
    let endpoints: Vec<&Node> = lists.filter_map(Node::as_seq).flatten().collect();
    if endpoints.is_empty() {
        return None;
    }
    let (mut texts, mut sources) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        let of = |field: &str| endpoint.get(field).and_then(Node::as_str).unwrap_or_default();
        let (kind, source) = (of("function_source_type"), of("function_source_uri"));
        if sources.contains(&source) {
            continue;
        }
        sources.push(source);
        let code = match kind {
            "blob" => STANDARD.decode(source).ok().and_then(|bytes| String::from_utf8(bytes).ok()),
            _ => scripts.get(source).cloned(),
        };
        let Some(code) = code else {
            let reason = match kind {
                "blob" => "function_source_uri: expected a script in base64".to_owned(),
                _ => format!("the script '{source}' is read only with a tyk.conf or a folder of definitions"),
            };
            found.push(api.fault("version_data.versions", format!("virtual: {reason}")));
            return None;
        };
        let path = if kind == "blob" { of("response_function_name") } else { source };
        texts.push(map(mark, [("path", text(path)), ("text", text(&code))]));
    }
    let mut made = map(mark, [("api_id", text(id)), ("org_id", text(api.text("org_id")))]);
    made.insert("listen_path", text(api.text("proxy.listen_path")));
    made.insert("scripts", list(mark, texts));
    made.insert("timeout", number(conf.jsvm_timeout.into()));
    add_storage(&mut made, conf);
    made.insert("versions", versions.clone());
    if let Some(data) = api.at("config_data").filter(|data| is_on(data)) {
        made.insert("config_data", data.clone());
    }
    Some(made)
}

/// Adds the handlers of events to the plugins that send them.
pub(super) fn add_events(
    api: &Definition,
    id: &str,
    (conf, scripts): (&Conf, &Scripts),
    plugins: &mut Node,
    found: &mut Vec<Diagnostic>,
) {
    let mark = api.node.mark;
    let mut of_plugins = [("api", map(mark, [])), ("paths", map(mark, []))];
    for (key, handlers) in api.at("event_handlers.events").and_then(Node::as_map).into_iter().flatten() {
        let name = &*key.text;
        let place = format!("event_handlers.events.{name}");
        let handlers = handlers.as_seq().unwrap_or_default();
        let is_off = |handler: &Node| {
            let flag = handler.get("handler_meta").and_then(|meta| meta.get("disabled"));
            flag.is_some_and(|flag| flag.kind == Kind::Bool(true))
        };
        let live: Vec<&Node> = handlers.iter().filter(|handler| !is_off(handler)).collect();
        if live.is_empty() {
            continue;
        }
        let sender = weir_plugins::tyk::sender(name);
        let Some(sender) = sender.filter(|sender| of_plugins.iter().any(|(plugin, _)| plugin == sender)) else {
            found.push(api.doubt(&place, "this event is not sent"));
            continue;
        };
        let made: Result<Vec<Node>, String> = live.into_iter().map(|handler| self::handler(handler, scripts)).collect();
        match made {
            Ok(made) => {
                let of = of_plugins.iter_mut().find(|(plugin, _)| *plugin == sender);
                of.into_iter().for_each(|(_, of)| of.insert(name, list(mark, made.clone())));
            }
            Err(fault) => found.push(api.fault(&place, fault)),
        }
    }
    for (plugin, handlers) in of_plugins {
        if handlers.as_map().is_some_and(<[_]>::is_empty) {
            continue;
        }
        let mut events = map(mark, [("api_id", text(id)), ("org_id", text(api.text("org_id")))]);
        events.insert("handlers", handlers);
        events.insert("timeout", number(conf.jsvm_timeout.into()));
        add_storage(&mut events, conf);
        if let Some(of) = plugins.get_mut(plugin) {
            of.insert("events", events);
        }
    }
}

/// A handler of events with the texts of its files.
///
/// # Errors
/// Its script is not there.
fn handler(written: &Node, scripts: &Scripts) -> Result<Node, String> {
    let meta = written.get("handler_meta");
    let of = |field: &str| meta.and_then(|meta| meta.get(field)).and_then(Node::as_str).unwrap_or_default();
    let mut made = written.clone();
    if written.get("handler_name").and_then(Node::as_str) == Some("eh_dynamic_handler") {
        let (name, path) = (of("name"), of("path"));
        let code = scripts
            .get(path)
            .ok_or_else(|| format!("the script '{path}' is read only with a tyk.conf or a folder of definitions"))?;
        let fields = [("script_name", text(name)), ("script_path", text(path)), ("script_text", text(code))];
        made.insert("handler_meta", map(written.mark, fields));
    } else if let Some(meta) = meta {
        made.insert("handler_meta", hook(meta, scripts));
    }
    Ok(made)
}

/// A web hook with the text of its template.
fn hook(written: &Node, scripts: &Scripts) -> Node {
    let mut made = written.clone();
    let path = written.get("template_path").and_then(Node::as_str).unwrap_or_default();
    if let Some(code) = scripts.get(path) {
        made.insert("template_text", text(code));
    }
    made
}

/// Triggers of quotas.
pub(super) fn monitor(written: &Value, scripts: &Scripts) -> Node {
    let mut made = Node::from(written);
    drop_nulls(&mut made);
    if let Some(written) = made.get("configuration").cloned() {
        made.insert("configuration", hook(&written, scripts));
    }
    made
}

/// The handlers of events of keys.
pub(super) fn key_events(conf: &Conf, scripts: &Scripts, mark: Mark) -> Node {
    let mut handlers = map(mark, []);
    for (name, written) in &conf.events {
        let mut written: Vec<Node> = written.as_array().into_iter().flatten().map(Node::from).collect();
        written.iter_mut().for_each(drop_nulls);
        // There are no scripts among them, which alone may be missing.
        let made = written.iter().filter_map(|written| handler(written, scripts).ok());
        handlers.insert(name, list(mark, made.collect()));
    }
    map(mark, [("handlers", handlers)])
}

/// A plugin, or a way of authentication, with the scripts of its hooks.
pub(super) fn plugin(
    api: &Definition,
    id: &str,
    plugin: &str,
    hooks: &[Node],
    (conf, scripts): (&Conf, &Scripts),
    found: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let mark = api.node.mark;
    let (mut texts, mut paths, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for hook in hooks {
        let of = |field: &str| hook.get(field).and_then(Node::as_str).unwrap_or_default();
        let (name, path) = (of("name"), of("path"));
        names.push(text(name));
        if paths.contains(&path) || path.is_empty() {
            continue;
        }
        let Some(code) = scripts.get(path) else {
            let fault = format!("the script '{path}' is read only with a tyk.conf or a folder of definitions");
            found.push(api.fault(&format!("custom_middleware.{plugin}"), fault));
            return None;
        };
        paths.push(path);
        texts.push(map(mark, [("path", text(path)), ("text", text(code))]));
    }
    let mut made = map(mark, [("api_id", text(id)), ("org_id", text(api.text("org_id")))]);
    made.insert("scripts", list(mark, texts));
    made.insert("middleware", list(mark, names));
    made.insert("timeout", number(conf.jsvm_timeout.into()));
    add_storage(&mut made, conf);
    if let Some(data) = api.at("config_data").filter(|data| is_on(data)) {
        made.insert("config_data", data.clone());
    }
    Some(made)
}
