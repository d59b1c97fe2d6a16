//! Findings about a configuration, with their positions.

use std::borrow::Cow;
use std::fmt;

use crate::code::Code;
use crate::node::{Kind, Mark, Node};
use crate::secret::Revealed;

/// One finding about a configuration text.
///
/// Displayed as `FILE:LINE:COLUMN: PATH: MESSAGE; HINT`, with `warning: ` before the path of a warning. Unknown parts
/// (a position in a value that came from JSON, the path of a syntax error) are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Severity: a configuration with warnings can be used.
    pub severity: Severity,
    /// Name of the file as it was given to the loader; empty when there is none.
    pub file: String,
    /// Line and column in the text as it was written; [`Mark::NONE`] when unknown.
    pub mark: Mark,
    /// Path in the document, `routes[3].plugins.limit-count.count`; empty for the document itself.
    pub path: String,
    /// Fault, with its data: what was expected and what was found. The text is rendered from it.
    pub code: Box<Code>,
    /// Advice, or the nearest known name.
    pub hint: Option<Hint>,
}

/// Advice on a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The known name nearest to the one that was written.
    DidYouMean(String),
    /// The name of a plugin that is not supported yet, in the same form.
    DidYouMeanUnsupported(String),
    /// Anything else.
    Advice(Cow<'static, str>),
}

/// Severity of a [`Diagnostic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration works, though perhaps not as its author thinks.
    Warning,
    /// The item, or the whole file, is refused.
    Error,
}

impl Diagnostic {
    /// An error at a position and a path.
    pub fn error(mark: Mark, path: impl Into<String>, code: Code) -> Self {
        Self {
            severity: Severity::Error,
            file: String::new(),
            mark,
            path: path.into(),
            code: Box::new(code),
            hint: None,
        }
    }

    /// A warning at a position and a path.
    pub fn warning(mark: Mark, path: impl Into<String>, code: Code) -> Self {
        Self { severity: Severity::Warning, ..Self::error(mark, path, code) }
    }

    /// Adds advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Text of what is wrong, without the place and the hint.
    #[must_use]
    pub fn message(&self) -> String {
        self.code.to_string()
    }

    /// The finding without a value that it quotes.
    #[must_use]
    pub fn without(mut self, value: &Node) -> Self {
        let text = match &value.kind {
            Kind::Str(text) => text.clone(),
            Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => value.describe(),
            _ => return self,
        };
        // A number without quotes differs from other words only by its place.
        self.code.hide_found(|found| found == text);
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
        write!(f, "{}", self.code)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Diagnostic {}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DidYouMean(name) => write!(f, "did you mean {name}?"),
            Self::DidYouMeanUnsupported(name) => write!(f, "did you mean {name}? It is not supported yet"),
            Self::Advice(text) => f.write_str(text),
        }
    }
}

impl Hint {
    /// Advice to write this name, if there is one.
    pub fn nearest(name: Option<&str>) -> Option<Self> {
        name.map(|name| Self::DidYouMean(name.to_owned()))
    }

    /// The name or text in it that may have been taken from a configuration.
    pub(crate) fn text_mut(&mut self) -> &mut String {
        match self {
            Self::DidYouMean(name) | Self::DidYouMeanUnsupported(name) => name,
            Self::Advice(text) => text.to_mut(),
        }
    }
}

impl From<&'static str> for Hint {
    fn from(text: &'static str) -> Self {
        Self::Advice(Cow::Borrowed(text))
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Advice(Cow::Owned(text))
    }
}

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
