use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::quantity::{GIB, MIB, Size};

/// The store that resources live in when there is no rules file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// The folder of the store: the database, the key of what is encrypted in it, a copy of the last good state. It is made
    /// when it is not there.
    #[schemars(length(min = 1, max = 4096))]
    pub data_dir: String,
    /// Changes that the history keeps. The oldest ones are forgotten. With etcd, which keeps its own: how many revisions
    /// `history` looks back.
    #[schemars(range(max = 100_000_000))]
    pub history: u32,
    /// Bytes that the history takes in the database; beyond them the oldest changes are forgotten as well. The file
    /// itself does not shrink: what is forgotten makes room in it. Not with etcd.
    pub history_size: Size<0, { 1024 * GIB }>,
    /// The key that secrets are encrypted with in the store: 64 hexadecimal digits. Empty: that of the file `key` in the
    /// folder, which is made with the store.
    pub key: Secret,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            data_dir: "weir-data".into(),
            history: 100_000,
            history_size: Size::constant(512 * MIB),
            key: Secret::default(),
        }
    }
}
