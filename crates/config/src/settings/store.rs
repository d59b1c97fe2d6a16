use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// The store that resources live in when there is no rules file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// The folder of the store: the database, the key of what is encrypted in it, a copy of the last good state. It is made
    /// when it is not there.
    #[schemars(length(min = 1, max = 4096))]
    pub data_dir: String,
    /// Changes that the history keeps. The oldest ones are forgotten.
    #[schemars(range(max = 100_000_000))]
    pub history: u32,
    /// The key that secrets are encrypted with in the store: 64 hexadecimal digits. Empty: that of the file `key` in the
    /// folder, which is made with the store.
    pub key: SecretText,
}

/// A text that is never shown: neither in logs nor in what is written.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretText(#[schemars(length(max = 4096))] String);

impl Default for Store {
    fn default() -> Self {
        Self { data_dir: "weir-data".into(), history: 100_000, key: SecretText::default() }
    }
}

impl SecretText {
    /// The text itself; `None` when it is empty.
    #[must_use]
    pub fn reveal(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(self.0.as_str())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "***" })
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}
