//! APISIX's own `config.yaml`, read as settings of this gateway.
//!
//! [`KEYS`] lists the effect of every key: it sets settings, it confirms fixed behaviour, or it has no effect, for a
//! reason. [`translate`] walks through a file and builds the tree that a `weir.yaml` would have given, with the
//! positions of the file, and a finding for each key without an effect.

mod keys;
mod listeners;
mod readers;

use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::node::{Key, Kind, Node, push_name};

use super::overlay::{is_at_or_under, leaves, put};

pub use keys::KEYS;

/// A key of `config.yaml` and its effect here.
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// Path of the key. Everything below belongs to the key.
    pub path: &'static str,
    /// Effect of the key.
    pub effect: Effect,
    /// Difference from APISIX, or the reason why the key has no effect.
    pub note: &'static str,
}

/// Effect of a key of `config.yaml`.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// The key sets these settings.
    Sets(&'static [&'static str], Reader),
    /// The key confirms fixed behaviour with this value; another value has no effect.
    Always(&'static str),
    /// The key has no effect.
    Nothing,
}

/// Puts a value into the settings.
pub type Reader = fn(&mut Translation<'_>, &Entry<'_>);

/// A key of a `config.yaml`, and the settings that it sets.
#[derive(Debug)]
pub struct Entry<'a> {
    path: &'a str,
    settings: &'static [&'static str],
    key: &'a Key,
    value: &'a Node,
}

/// A `config.yaml` on its way to settings.
#[derive(Debug)]
pub struct Translation<'a> {
    source: &'a Node,
    /// The settings, as the tree of a `weir.yaml`.
    pub(crate) settings: Node,
    /// Settings with the keys that they come from, so that a finding names what stands in the file.
    pub(crate) origins: Vec<(String, String)>,
    pub(crate) found: Vec<Diagnostic>,
}

/// Sections that only `config.yaml` has, and those that settings of this gateway have as well.
const SECTIONS: &[&str] = &["apisix", "nginx_config", "plugin_attr", "stream_plugins", "graphql", "ext-plugin", "xrpc"];
const SHARED: &[&str] = &["deployment", "discovery", "plugins", "wasm"];
/// Sections of older versions.
const OLD: &[&str] = &["etcd"];

/// True if a tree is a `config.yaml`. An error when it is half of one.
pub(crate) fn recognise(root: &Node) -> Result<bool, Box<Diagnostic>> {
    let keys = || root.as_map().unwrap_or_default().iter().map(|(key, _)| key);
    let theirs = keys().find(|key| SECTIONS.contains(&&*key.text) || OLD.contains(&&*key.text));
    let is_ours = |key: &&Key| leaves().iter().any(|leaf| leaf.path.split('.').next() == Some(&*key.text));
    let ours = keys().find(|key| is_ours(key) && !SHARED.contains(&&*key.text));
    match (theirs, ours) {
        (Some(theirs), Some(ours)) => {
            let code = Code::MixedSettings { theirs: theirs.text.to_string(), ours: ours.text.to_string() };
            let later = if theirs.mark > ours.mark { theirs } else { ours };
            let hint = "a setting beside a config.yaml is given as a flag (--set) or as a variable of the environment";
            Err(Box::new(Diagnostic::error(later.mark, &*later.text, code).with_hint(hint)))
        }
        (Some(_), None) => Ok(true),
        (None, Some(_)) => Ok(false),
        // A file with shared sections alone is taken for a config.yaml: the names in these sections are APISIX's.
        (None, None) => Ok(keys().next().is_some() && keys().all(|key| SHARED.contains(&&*key.text))),
    }
}

/// Reads a `config.yaml`.
pub(crate) fn translate(source: &Node) -> Translation<'_> {
    let mut done = Translation { source, settings: Node::empty_map(), origins: Vec::new(), found: Vec::new() };
    done.group(source, "");
    done
}

impl Translation<'_> {
    fn group(&mut self, node: &Node, above: &str) {
        for (key, value) in node.as_map().unwrap_or_default() {
            let mut path = above.to_owned();
            push_name(&mut path, &key.text);
            let row = KEYS.iter().find(|row| row.path == path);
            let is_group = || KEYS.iter().any(|row| is_at_or_under(row.path, &path));
            match row {
                None if !is_group() => self.unknown(key, &path, above),
                // Only this key has a meaning with an empty value: no plugin.
                _ if value.is_null() && path != "plugins" => {}
                None if value.as_map().is_some() => self.group(value, &path),
                None => {
                    let code = Code::Unlike { expected: "a mapping".into(), found: value.describe() };
                    self.found.push(Diagnostic::error(value.mark, path, code));
                }
                Some(row) => self.row(row, key, value, &path),
            }
        }
    }

    fn row(&mut self, row: &ConfigKey, key: &Key, value: &Node, path: &str) {
        match row.effect {
            Effect::Sets(settings, read) => {
                self.origins.extend(settings.iter().map(|setting| ((*setting).to_owned(), path.to_owned())));
                read(self, &Entry { path, settings, key, value });
            }
            Effect::Always(expected) if plain(value).as_deref() == Some(expected) => {}
            // Text for nginx that is all comments, as the file that people copy has it.
            Effect::Nothing if value.as_str().is_some_and(is_commentary) => {}
            Effect::Always(_) | Effect::Nothing => self.without_effect(key, path, row.note),
        }
    }

    fn without_effect(&mut self, key: &Key, path: &str, reason: &str) {
        let code = Code::NoEffect { why: format!("here: {reason}").into() };
        self.found.push(Diagnostic::warning(key.mark, path, code));
    }

    fn unknown(&mut self, key: &Key, path: &str, above: &str) {
        let mut known: Vec<String> = KEYS
            .iter()
            .filter_map(|row| match above {
                "" => row.path.split('.').next(),
                _ => row.path.strip_prefix(above)?.strip_prefix('.')?.split('.').next(),
            })
            .map(str::to_owned)
            .collect();
        known.dedup();
        if above == "plugin_attr" {
            return self.without_effect(key, path, "the gateway has no such attributes");
        }
        let warning = Diagnostic::warning(key.mark, path, Code::UnknownToApisix);
        // `nginx_config.access_log` stands in `nginx_config.http`.
        let elsewhere = KEYS.iter().find_map(|row| {
            let group = row.path.strip_suffix(&*key.text)?.strip_suffix('.')?;
            (!above.is_empty() && (group.starts_with(above) || above.starts_with(group))).then_some(group)
        });
        self.found.push(match nearest(&key.text, known.iter().map(String::as_str)) {
            _ if elsewhere.is_some() => warning.with_hint(format!("it belongs in {}", elsewhere.unwrap_or_default())),
            near => Diagnostic { hint: Hint::nearest(near), ..warning },
        });
    }

    /// Sets a setting to a value that came from the file.
    fn set(&mut self, setting: &str, value: Node) {
        put(&mut self.settings, setting, value);
    }

    /// A value elsewhere in the file.
    fn elsewhere(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self.source, |node, name| node.get(name)).filter(|node| !node.is_null())
    }

    fn error(&mut self, entry: &Entry<'_>, expected: &str) {
        let code = Code::Unlike { expected: expected.to_owned().into(), found: entry.value.describe() };
        self.found.push(Diagnostic::error(entry.value.mark, entry.path, code));
    }
}

/// Renames the path of a finding to what stands in the file.
pub(crate) fn named_as_written(mut found: Diagnostic, origins: &[(String, String)]) -> Diagnostic {
    let of = origins.iter().find(|(setting, _)| is_at_or_under(&found.path, setting));
    if let Some((_, path)) = of {
        // Below a setting its own form counts, which the file does not have.
        path.clone_into(&mut found.path);
    }
    found
}

/// A scalar as text.
fn plain(value: &Node) -> Option<String> {
    match &value.kind {
        Kind::Str(text) => Some(text.trim().to_owned()),
        Kind::Bool(value) => Some(value.to_string()),
        Kind::Int(value) => Some(value.to_string()),
        Kind::Float(value) => Some(value.to_string()),
        _ => None,
    }
}

fn is_commentary(text: &str) -> bool {
    text.lines().all(|line| matches!(line.trim().chars().next(), None | Some('#')))
}
