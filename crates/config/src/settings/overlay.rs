use std::sync::OnceLock;

use serde_json::Value;

use super::{Listener, Settings, apisix};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::env::substitute;
use crate::node::{Key, Kind, Mark, Node, plain_scalar};
use crate::schema;

/// A single setting.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Path of the setting in the file: `limits.head_size`.
    pub path: String,
    /// Environment variable of the setting: `WEIR_LIMITS_HEAD_SIZE`.
    pub variable: String,
    /// True for a list; in a variable its elements are separated by commas.
    pub list: bool,
    /// True if the value is always a text, even if it looks like a number or a boolean.
    pub(super) text: bool,
    /// Schema of the value, with description, default and range.
    pub schema: Value,
}

/// All settings, derived from [`Settings`].
pub fn leaves() -> &'static [Leaf] {
    static LEAVES: OnceLock<Vec<Leaf>> = OnceLock::new();
    LEAVES.get_or_init(|| {
        let mut leaves = Vec::new();
        collect(schema::json_schema::<Settings>().as_value(), "", &mut leaves);
        leaves
    })
}

fn collect(schema: &Value, path: &str, leaves: &mut Vec<Leaf>) {
    if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
        for (name, field) in fields {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            collect(field, &path, leaves);
        }
        return;
    }
    let kind = schema.get("type").and_then(Value::as_str);
    let names = schema.get("enum").is_some() || schema.get("oneOf").is_some();
    leaves.push(Leaf {
        path: path.to_owned(),
        variable: format!("WEIR_{}", path.replace('.', "_").to_ascii_uppercase()),
        list: kind == Some("array"),
        text: kind == Some("string") || names,
        schema: schema.clone(),
    });
}

/// Sources of settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettingsSource<'a> {
    /// Name and text of the settings file, if there is one.
    pub file: Option<(&'a str, &'a str)>,
    /// The environment. Variables that begin with `WEIR_` are settings; the others are for `${{NAME}}` in the file.
    pub variables: &'a [(String, String)],
    /// Settings from the command line, as path and value.
    pub flags: &'a [(String, String)],
    /// Settings that count where the file says nothing: path, value, and where they come from. Of several with one path
    /// the last counts.
    pub below: &'a [(String, String, String)],
}

impl Settings {
    /// Reads the settings: defaults, file, environment and flags, each over the one before it. `Ok` comes with
    /// warnings, `Err` holds everything that is wrong.
    pub fn load(source: SettingsSource<'_>) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let mut overlay = Overlay {
            root: Node::empty_map(),
            found: Vec::new(),
            given: Vec::new(),
            origins: Vec::new(),
            unreadable: false,
        };
        if let Some((name, text)) = source.file {
            overlay.file(name, text, source.variables);
        }
        let is_set = |overlay: &Overlay, path: &str| at(&overlay.root, path).is_some();
        let unset: Vec<_> = source.below.iter().filter(|(path, ..)| !is_set(&overlay, path)).collect();
        for (path, value, from) in unset {
            if let Some(leaf) = leaves().iter().find(|leaf| leaf.path == *path) {
                overlay.set(leaf, value, from);
            }
        }
        for (name, value) in source.variables {
            if name.starts_with("WEIR_") {
                overlay.variable(name, value);
            }
        }
        for (path, value) in source.flags {
            overlay.flag(path, value);
        }
        let file = source.file.map_or("", |(name, _)| name);
        overlay.finish(file)
    }
}

struct Overlay {
    root: Node,
    found: Vec<Diagnostic>,
    /// Settings that did not come from the file, with where they came from.
    given: Vec<(String, String)>,
    /// Settings that came from a `config.yaml`, with the key they have there.
    origins: Vec<(String, String)>,
    /// True if the file is too faulty to check its settings.
    unreadable: bool,
}

impl Overlay {
    fn file(&mut self, name: &str, text: &str, variables: &[(String, String)]) {
        let lookup = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let substituted = substitute(text, &lookup);
        let mut parsed = match Node::parse(&substituted.text) {
            Ok(parsed) => parsed,
            Err(mut error) => {
                error.mark = substituted.original(error.mark);
                self.found.push(error.in_file(name));
                self.unreadable = true;
                return;
            }
        };
        let mut found = substituted.settle(&mut parsed);
        // Later findings would only repeat that the values are wrong.
        self.unreadable = found.iter().any(Diagnostic::is_error);
        for repeated in &parsed.repeated {
            let code = Code::RepeatedKey { first: repeated.first };
            found.push(Diagnostic::error(repeated.second, repeated.path.clone(), code));
        }
        if let Some(mark) = parsed.second_document {
            found.push(Diagnostic::error(mark, "", Code::SecondDocument { file: "settings" }));
        }
        let rules = ["routes", "upstreams", "services", "consumers", "global_rules", "plugin_configs", "ssls"];
        let is_config_yaml = apisix::recognise(&parsed.root).is_ok_and(|is| is);
        if is_config_yaml {
            // APISIX reads past them.
            for (key, _) in rules.iter().filter_map(|name| parsed.root.remove(name)) {
                let warning =
                    Diagnostic::warning(key.mark, &*key.text, Code::NoEffect { why: "in a config.yaml".into() });
                found.push(warning.with_hint("rules are in a file of their own: `weir run FILE`"));
            }
        } else if let Some((key, _)) = rules.iter().find_map(|name| parsed.root.entry(name)) {
            found.push(Diagnostic::error(key.mark, &*key.text, Code::RulesForSettings));
            self.unreadable = true;
        }
        match &mut parsed.root.kind {
            Kind::Null => parsed.root.kind = Kind::Map(Vec::new()),
            Kind::Map(_) => match apisix::recognise(&parsed.root) {
                Ok(true) => self.config_yaml(&mut parsed.root, &mut found),
                Ok(false) => drop_empty_groups(&mut parsed.root, "", &mut found),
                Err(mixture) => {
                    found.push(*mixture);
                    self.unreadable = true;
                }
            },
            _ => {}
        }
        self.found.extend(found.into_iter().map(|found| found.in_file(name)));
        self.root = parsed.root;
    }

    /// Replaces a `config.yaml` by the settings it stands for.
    fn config_yaml(&mut self, root: &mut Node, found: &mut Vec<Diagnostic>) {
        let mut translation = apisix::translate(root);
        found.append(&mut translation.found);
        self.origins = translation.origins;
        *root = translation.settings;
    }

    fn variable(&mut self, name: &str, value: &str) {
        match leaves().iter().find(|leaf| leaf.variable == name) {
            Some(leaf) => self.set(leaf, value, name),
            None => {
                let known = leaves().iter().map(|leaf| leaf.variable.as_str());
                let error = Diagnostic::error(Mark::NONE, "", Code::NoSettingOfVariable);
                self.found.push(with_nearest(error, nearest(name, known)).in_file(name));
            }
        }
    }

    fn flag(&mut self, path: &str, value: &str) {
        match leaves().iter().find(|leaf| leaf.path == path) {
            Some(leaf) => self.set(leaf, value, COMMAND_LINE),
            None => {
                let known = leaves().iter().map(|leaf| leaf.path.as_str());
                let error = Diagnostic::error(Mark::NONE, path, Code::NoSuchSetting);
                self.found.push(with_nearest(error, nearest(path, known)).in_file(COMMAND_LINE));
            }
        }
    }

    fn set(&mut self, leaf: &Leaf, value: &str, from: &str) {
        let scalar = |text: &str| {
            let text = text.trim();
            Node::new(if leaf.text { Kind::Str(text.to_owned()) } else { plain_scalar(text.to_owned()) })
        };
        let node = match bracketed(value) {
            Some(list) if leaf.list => list,
            _ if leaf.list => {
                Node::new(Kind::Seq(value.split(',').filter(|part| !part.trim().is_empty()).map(scalar).collect()))
            }
            _ => scalar(value),
        };
        let mut node = without_marks(node);
        // A flag that is repeated adds to its list.
        if leaf.list
            && from == COMMAND_LINE
            && self.given.iter().any(|(path, by)| *path == leaf.path && by == from)
            && let (Some(earlier), Kind::Seq(items)) = (at(&self.root, &leaf.path), &mut node.kind)
        {
            items.splice(0..0, earlier.as_seq().unwrap_or_default().iter().cloned());
        }
        put(&mut self.root, &leaf.path, node);
        self.given.retain(|(path, _)| *path != leaf.path);
        self.given.push((leaf.path.clone(), from.to_owned()));
    }

    fn finish(mut self, file: &str) -> Result<(Settings, Vec<Diagnostic>), Vec<Diagnostic>> {
        if self.unreadable {
            return Err(self.found);
        }
        let settings = match schema::read::<Settings>(&self.root) {
            Ok(settings) => Some(settings),
            Err(found) => {
                self.found.extend(found.into_iter().map(|found| {
                    let from = self.given.iter().find(|(path, _)| is_at_or_under(&found.path, path));
                    match from {
                        Some((_, from)) => found.in_file(from),
                        None => apisix::named_as_written(found, &self.origins).in_file(file),
                    }
                }));
                None
            }
        };
        // Keys of `data_encryption` also come from another section of a config.yaml.
        let etcd = at(&self.root, "deployment.etcd").and_then(Node::as_map).unwrap_or_default();
        let etcd_is_set = etcd.iter().any(|(key, _)| &*key.text != "data_encryption");
        let failed = self.found.iter().any(Diagnostic::is_error);
        let Some(mut settings) = settings.filter(|_| !failed) else {
            return Err(self.found);
        };
        settings.deployment.etcd_is_set = etcd_is_set;
        let at_odds = between(&settings);
        if !at_odds.is_empty() {
            let named = |found| apisix::named_as_written(found, &self.origins).in_file(file);
            self.found.extend(at_odds.into_iter().map(named));
            return Err(self.found);
        }
        Ok((settings, self.found))
    }
}

/// Conflicts between settings that are valid by themselves.
fn between(settings: &Settings) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut error = |path: String, rule: &'static str| {
        found.push(Diagnostic::error(Mark::NONE, path, Code::SettingsAtOdds { rule }));
    };
    if settings.dns.min_ttl.duration() > settings.dns.max_ttl.duration() {
        error("dns.min_ttl".into(), "dns.min_ttl must not be longer than dns.max_ttl");
    }
    for (path, rule) in settings.discovery.conflicts() {
        error(path, rule);
    }
    let listen = &settings.listen;
    let traffic = [("http", &listen.http), ("https", &listen.https), ("tcp", &listen.tcp), ("udp", &listen.udp)];
    for (at, listener) in listen.udp.iter().enumerate() {
        if *listener != Listener::from(listener.address.clone()) || listener.address.tcp().is_none() {
            error(format!("listen.udp[{at}]"), "a listener of listen.udp has an address and a port, and nothing else");
        }
    }
    for (name, listeners) in traffic {
        for (at, listener) in listeners.iter().enumerate() {
            if listener.tls && name != "tcp" {
                error(
                    format!("listen.{name}[{at}].tls"),
                    "tls is for listen.tcp: listen.https is the setting with TLS",
                );
            }
            if listener.http2.is_some() && name == "tcp" {
                error(format!("listen.{name}[{at}].http2"), "a listener of listen.tcp knows no HTTP/2");
            }
        }
    }
    if settings.proxy_protocol.trusted.is_empty() {
        for (name, listeners) in traffic {
            for (at, listener) in listeners.iter().enumerate() {
                if listener.proxy_protocol && listener.address.tcp().is_some() {
                    let message =
                        "every connection would be closed: proxy_protocol.trusted has to name who may send a header";
                    error(format!("listen.{name}[{at}].proxy_protocol"), message);
                }
            }
        }
    }
    found
}

/// Names the source of a setting in a message.
const COMMAND_LINE: &str = "command line";

fn with_nearest(error: Diagnostic, near: Option<&str>) -> Diagnostic {
    Diagnostic { hint: Hint::nearest(near), ..error }
}

/// A group without anything in it (`limits:`) is one whose settings are commented out.
fn drop_empty_groups(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Kind::Map(entries) = &mut node.kind else { return };
    entries.retain_mut(|(key, value)| {
        let path = if path.is_empty() { key.text.to_string() } else { format!("{path}.{}", key.text) };
        let known = leaves().iter().any(|leaf| is_at_or_under(&leaf.path, &path));
        if value.is_null() && known {
            found.push(Diagnostic::warning(key.mark, path, Code::NullTaken { meaning: "not set" }));
            return false;
        }
        drop_empty_groups(value, &path, found);
        true
    });
}

pub(super) fn is_at_or_under(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A list in brackets. `[::1]:80,[::1]:81` is none, though it begins and may end like one.
fn bracketed(value: &str) -> Option<Node> {
    let value = value.trim();
    let list = value.starts_with('[') && value.ends_with(']');
    let root = list.then(|| Node::parse(value).ok()).flatten()?.root;
    root.as_seq().is_some().then_some(root)
}

fn at<'a>(node: &'a Node, path: &str) -> Option<&'a Node> {
    path.split('.').try_fold(node, |node, name| node.get(name))
}

pub(super) fn put(node: &mut Node, path: &str, value: Node) {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Kind::Map(entries) = &mut node.kind else {
        // A value that is not a mapping is reported elsewhere, and the setting is lost in any case.
        return;
    };
    let at = match entries.iter().position(|(key, _)| &*key.text == name) {
        Some(at) => at,
        None => {
            entries.push((Key { text: name.into(), mark: Mark::NONE }, Node::empty_map()));
            entries.len() - 1
        }
    };
    match rest {
        Some(rest) => put(&mut entries[at].1, rest, value),
        None => entries[at].1 = value,
    }
}

/// Positions inside a variable would be taken for positions in the file.
fn without_marks(mut node: Node) -> Node {
    node.mark = Mark::NONE;
    match &mut node.kind {
        Kind::Seq(items) => *items = std::mem::take(items).into_iter().map(without_marks).collect(),
        Kind::Map(entries) => {
            for (key, value) in entries {
                key.mark = Mark::NONE;
                *value = without_marks(std::mem::replace(value, Node::empty_map()));
            }
        }
        _ => {}
    }
    node
}
