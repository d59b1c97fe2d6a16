//! Texts with metric labels.

use std::sync::Arc;

use weir_telemetry::metrics::LazyLabel;

/// A text and its metric label, which is interned when it is first used.
#[derive(Debug)]
pub struct Named {
    /// The text.
    pub text: Arc<str>,
    /// Its label.
    pub label: LazyLabel,
}

impl From<Arc<str>> for Named {
    fn from(text: Arc<str>) -> Self {
        Self { text, label: LazyLabel::default() }
    }
}

impl From<&str> for Named {
    fn from(text: &str) -> Self {
        Self { text: text.into(), label: LazyLabel::default() }
    }
}
