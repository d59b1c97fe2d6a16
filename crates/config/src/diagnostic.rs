//! What is wrong with a configuration, and where.

use std::fmt;

use crate::node::{Kind, Mark, Node};
use crate::secret::Revealed;

/// One finding about a configuration text.
///
/// Displayed as `FILE:LINE:COLUMN: PATH: MESSAGE; HINT`, with `warning: ` before the path of a warning. What is not
/// known (a position in a value that came from JSON, the path of a syntax error) is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Whether the configuration can be used in spite of it.
    pub severity: Severity,
    /// Name of the file as it was given to the loader; empty when there is none.
    pub file: String,
    /// Line and column in the text as it was written; [`Mark::NONE`] when unknown.
    pub mark: Mark,
    /// Path in the document, `routes[3].plugins.limit-count.count`; empty for the document itself.
    pub path: String,
    /// What is wrong: what was expected and what was found.
    pub message: String,
    /// How to put it right, or the nearest known name.
    pub hint: Option<String>,
    /// Which rule of a schema it breaks, when it is one: for whoever has words of its own for it.
    pub fault: Option<Box<Fault>>,
}

/// A rule of a schema that a value breaks.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It is of another type than the only possible one.
    WrongType {
        /// As in a schema: `string`, `integer`, `object`, …
        expected: &'static str,
        /// What it is: `string`, `number`, `boolean`, `null`, `array`, `object`.
        found: &'static str,
    },
    /// It is none of the values there are.
    NotInEnum,
    /// It fits none of the forms there are. The path may lead to the place inside it that is wrong with the form that
    /// was meant.
    NoAlternative {
        /// How many steps of the path lead from the value to that place.
        inside: usize,
    },
    /// A number below the least one.
    TooSmall {
        /// The number.
        found: f64,
        /// The least one.
        least: f64,
        /// Whether the least one is too small itself.
        exclusive: bool,
    },
    /// A number above the largest one.
    TooLarge {
        /// The number.
        found: f64,
        /// The largest one.
        most: f64,
        /// Whether the largest one is too large itself.
        exclusive: bool,
    },
    /// A text of fewer characters than the least, or more than the most.
    Length {
        /// How many it has.
        found: usize,
        /// The bound that it breaks.
        bound: usize,
    },
    /// A text that does not match a regular expression.
    Pattern {
        /// The expression.
        pattern: String,
        /// The text.
        found: String,
    },
    /// A list with fewer elements than the least, or more than the most.
    Count {
        /// How many it has.
        found: usize,
        /// The bound that it breaks.
        bound: usize,
    },
    /// A mapping with more fields than the most.
    Fields {
        /// How many it has.
        found: usize,
        /// The most.
        most: usize,
    },
    /// An element of a list that stands in it before. The path is that of the later one.
    Repeated {
        /// The place of the earlier one, from 0.
        first: usize,
    },
    /// A field that there is not. The path is its own.
    UnknownField,
    /// A mapping without a field that it needs.
    MissingField(String),
}

/// How bad a [`Diagnostic`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration works, though perhaps not as its author thinks.
    Warning,
    /// The item, or the whole file, is refused.
    Error,
}

impl Diagnostic {
    /// An error at a position and a path.
    pub fn error(mark: Mark, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            file: String::new(),
            mark,
            path: path.into(),
            message: message.into(),
            hint: None,
            fault: None,
        }
    }

    /// A warning at a position and a path.
    pub fn warning(mark: Mark, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(mark, path, message) }
    }

    /// Adds how to put it right.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Tells which rule of a schema is broken.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(Box::new(fault));
        self
    }

    /// The finding without a value that it quotes.
    #[must_use]
    pub fn without(mut self, value: &Node) -> Self {
        let text = match &value.kind {
            Kind::Str(text) => text.clone(),
            Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => value.describe(),
            _ => return self,
        };
        if let Some(Fault::Pattern { found, .. }) = self.fault.as_deref_mut()
            && *found == text
        {
            "***".clone_into(found);
        }
        if !matches!(value.kind, Kind::Str(_)) {
            // Without quotes, so that only its place tells it from other words.
            let hide = |said: &str| said.replace(&format!("found {text}"), "found ***");
            self.message = hide(&self.message);
            self.hint = self.hint.map(|hint| hide(&hint));
        }
        Revealed::of([text]).redact(self)
    }

    /// Names the file.
    #[must_use]
    pub fn in_file(mut self, file: &str) -> Self {
        file.clone_into(&mut self.file);
        self
    }

    /// Puts the path of an enclosing value before this one's, for a check that saw only a part of the document.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.path = if self.path.is_empty() || prefix.is_empty() || self.path.starts_with('[') {
            format!("{prefix}{}", self.path)
        } else {
            format!("{prefix}.{}", self.path)
        };
        self
    }

    /// True for an error, false for a warning.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
        }
        if self.mark.is_known() {
            write!(f, "{}:{}:", self.mark.line, self.mark.column)?;
        }
        if !self.file.is_empty() || self.mark.is_known() {
            f.write_str(" ")?;
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Diagnostic {}

/// The known name nearest to `name`, when it is near enough to be what was meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Spelling variants that edit distance alone would miss: rate_limit, RateLimit, rate-limit.
    let plain =
        |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect() };
    let wanted = plain(name);
    let allowed = (wanted.chars().count() / 3).min(4);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// What APISIX calls the type of a JSON value in its errors: Lua has one type for lists and mappings, and null is a
/// pointer.
pub fn lua_type_name(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "userdata",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}
