//! Faults against rules of the family.

use weir_config::Code;

/// A fault against a rule of Tyk's.
pub(crate) fn rule(text: impl Into<String>) -> Code {
    Code::FamilyRule { text: text.into().into() }
}
