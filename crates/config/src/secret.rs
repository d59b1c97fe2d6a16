//! Values kept outside the configuration: `$env://NAME` in the environment, `$secret://MANAGER/ID/KEY` in a secret
//! manager.
//!
//! The values replace their references while a configuration is read, so that no stored configuration holds them.
//! Messages about a configuration do not show them either ([`Revealed`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::env::{self, MayRead, Variables, reference_after};
use crate::node::{Kind, Mark, Node, Path, quoted};
use crate::resource::{Manager, SecretManager};

/// Source of secrets: queries secret managers. This crate opens no sockets.
pub trait SecretSource {
    /// The value of a key. `reference` is the whole reference after `$secret://`: `vault/1/jack/key`.
    ///
    /// # Errors
    /// The reason why there is none, without a secret in it.
    fn fetch(&self, reference: &str, manager: Manager<'_>, key: &str) -> Result<String, NoSecret>;

    /// The value that a reference stood for in what serves, for the time in which it cannot be resolved.
    fn last(&self, _reference: &str) -> Option<String> {
        None
    }
}

/// The reason why there is no value for a reference, without a secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSecret {
    /// The reference is none, or the settings forbid it: a change with it is refused.
    Refused(String),
    /// The value is missing, or its manager cannot be queried now: the change is accepted, and whatever needs the value
    /// refuses requests until there is one.
    Absent(String),
}

/// A source without secret managers, for tools and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecrets;

impl SecretSource for NoSecrets {
    fn fetch(&self, _: &str, _: Manager<'_>, _: &str) -> Result<String, NoSecret> {
        Err(NoSecret::Absent("no secret manager is asked here".to_owned()))
    }
}

/// The values that references were replaced by.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Revealed(Vec<String>);

/// Sources that references are looked up in.
pub(crate) struct References<'a> {
    pub(crate) variables: Variables<'a>,
    pub(crate) may_read: MayRead<'a>,
    pub(crate) source: &'a dyn SecretSource,
    /// The managers by id; `None` where single items are checked without the items beside them.
    pub(crate) managers: Option<&'a HashMap<String, Arc<SecretManager>>>,
    pub(crate) revealed: &'a mut Revealed,
    /// Paths of references that are left as they are, because there are no managers.
    pub(crate) left: &'a mut Vec<String>,
    /// References that are left as they are, because their values are not there.
    pub(crate) unresolved: Vec<Unresolved>,
}

/// A reference whose value is not there yet.
#[derive(Debug)]
pub(crate) struct Unresolved {
    pub(crate) mark: Mark,
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// The value of a reference.
struct Value {
    text: String,
    /// The reason why it is the one of before.
    stale: Option<String>,
}

const PREFIX: &str = "$secret://";
const EXPECTED: &str = "expected $secret://MANAGER/ID/KEY, such as $secret://vault/1/jack/key";

/// The kinds of managers.
const MANAGERS: [&str; 2] = ["vault", "file"];

/// Managers that APISIX has and this gateway has not yet.
const UNSUPPORTED: &[(&str, &str)] = &[("aws", "AWS Secrets Manager"), ("gcp", "Google Cloud Secret Manager")];

impl References<'_> {
    /// Puts values in the places of references, wherever they stand in a tree.
    pub(crate) fn resolve(&mut self, node: &mut Node, path: &Path<'_>, found: &mut Vec<Diagnostic>) {
        match &mut node.kind {
            Kind::Str(text) => match self.value(text, path) {
                None => {}
                Some(Ok(value)) => {
                    if let Some(reason) = value.stale {
                        found.push(Diagnostic::warning(node.mark, path.text(), Code::StaleSecret { reason }));
                    }
                    self.revealed.0.push(value.text.clone());
                    *text = value.text;
                }
                Some(Err(NoSecret::Refused(reason))) => {
                    found.push(Diagnostic::error(node.mark, path.text(), Code::UnresolvedReference { reason }));
                }
                Some(Err(NoSecret::Absent(reason))) => {
                    self.unresolved.push(Unresolved { mark: node.mark, path: path.text(), reason });
                }
            },
            Kind::Seq(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.resolve(item, &Path::Index(path, index), found);
                }
            }
            Kind::Map(entries) => {
                for (key, value) in entries {
                    self.resolve(value, &Path::Name(path, &key.text), found);
                }
            }
            _ => {}
        }
    }

    fn value(&mut self, text: &str, path: &Path<'_>) -> Option<Result<Value, NoSecret>> {
        if let Some(reference) = reference_after(text, "$env://") {
            let value = env::resolve(reference, self.variables, self.may_read);
            return Some(value.map(|text| Value { text, stale: None }));
        }
        let reference = reference_after(text, PREFIX)?;
        if self.managers.is_none() {
            self.left.push(path.text());
            return None;
        }
        let told = |reason: String| format!("no secret for {}: {reason}", quoted(text));
        Some(match self.secret(reference) {
            Ok(text) => Ok(Value { text, stale: None }),
            Err(NoSecret::Refused(reason)) => Err(NoSecret::Refused(told(reason))),
            Err(NoSecret::Absent(reason)) => match self.source.last(reference) {
                Some(text) => Ok(Value { text, stale: Some(told(reason)) }),
                None => Err(NoSecret::Absent(told(reason))),
            },
        })
    }

    fn secret(&self, reference: &str) -> Result<String, NoSecret> {
        let refused = |reason: String| Err(NoSecret::Refused(reason));
        let mut parts = reference.splitn(3, '/');
        let (Some(kind), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return refused(EXPECTED.to_owned());
        };
        if let Some(name) = unsupported(kind) {
            return refused(format!("not supported yet: {name}"));
        }
        if !MANAGERS.contains(&kind) {
            return refused(no_such_manager(kind).to_string());
        }
        if id.is_empty() || key.is_empty() {
            return refused(EXPECTED.to_owned());
        }
        let item = format!("{kind}/{id}");
        let Some(known) = self.managers.and_then(|managers| managers.get(&item)) else {
            return Err(NoSecret::Absent(format!("there is no valid item {} in `secrets`", quoted(&item))));
        };
        let Some(manager) = known.manager() else {
            return Err(NoSecret::Absent(format!("the token of {} is not there", quoted(&item))));
        };
        self.source.fetch(reference, manager, key)
    }
}

/// The code of a kind of which no manager is.
pub(crate) fn no_such_manager(kind: &str) -> Code {
    Code::UnknownManager { kind: kind.to_owned(), shown: quoted(kind), known: MANAGERS.join(" and ") }
}

/// True for a text that stands for a value that is kept elsewhere.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    ["$env://", PREFIX].iter().any(|prefix| reference_after(text, prefix).is_some())
}

/// The name of a manager that is not supported yet.
pub(crate) fn unsupported(kind: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name)
}

impl Revealed {
    pub(crate) fn of(values: impl IntoIterator<Item = String>) -> Self {
        Self(values.into_iter().collect())
    }

    /// A finding without the values.
    #[must_use]
    pub fn redact(&self, mut found: Diagnostic) -> Diagnostic {
        if !self.0.is_empty() {
            found.code.texts(&mut |_, text| *text = self.hide(std::mem::take(text)));
            if let Some(hint) = &mut found.hint {
                let text = hint.text_mut();
                *text = self.hide(std::mem::take(text));
            }
        }
        found
    }

    fn hide(&self, mut text: String) -> String {
        /// Shortest value that is redacted without quotes: a shorter one may well be part of other words.
        const LONG: usize = 4;
        for value in &self.0 {
            if text == *value {
                return "***".to_owned();
            }
            let quotes = [quoted(value), format!("{value:?}"), format!("'{value}'"), format!("`{value}`")];
            let whole = (value.len() >= LONG).then(|| value.clone());
            for form in quotes.into_iter().chain(whole) {
                if text.contains(&form) {
                    text = text.replace(&form, "***");
                }
            }
        }
        text
    }
}

impl std::fmt::Debug for Revealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Revealed;
    use crate::code::Code;
    use crate::diagnostic::Diagnostic;
    use crate::node::Mark;

    #[test]
    fn values_are_not_shown() {
        let long = "x".repeat(80);
        let revealed = Revealed(vec!["s3cret".into(), "ab".into(), "with \"quote".into(), long.clone()]);
        let cases = [
            ("expected a number, found \"s3cret\"", "expected a number, found ***"),
            ("s3cret is no key", "*** is no key"),
            ("absent, found \"ab\"", "absent, found ***"),
            ("found \"with \\\"quote\"", "found ***"),
            (&format!("found {}", crate::node::quoted(&long)), "found ***"),
        ];
        for (message, shown) in cases {
            let code = Code::Unreadable { reason: message.to_owned() };
            let found = Diagnostic::error(Mark::NONE, "", code).with_hint(message.to_owned());
            let found = revealed.redact(found);
            assert_eq!((found.message(), found.hint), (shown.to_owned(), Some(shown.to_owned().into())));
        }
    }
}
