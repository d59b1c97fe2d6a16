use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::quantity::{GIB, MIB, Size};

/// The store that resources live in when there is no rules file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// The folder of the store: the database, the key of encrypted values in it, a copy of the last good state. Created
    /// if missing.
    #[schemars(length(min = 1, max = 4096))]
    pub data_dir: String,
    /// Changes that the history keeps. The oldest ones are removed. With etcd, which keeps its own history: number of
    /// revisions that `history` looks back.
    #[schemars(range(max = 100_000_000))]
    pub history: u32,
    /// Bytes that the history takes in the database; beyond them the oldest changes are removed as well. The file
    /// itself does not shrink: removed changes make room in it. Not with etcd.
    pub history_size: Size<0, { 1024 * GIB }>,
    /// The key that secrets are encrypted with in the store: 64 hexadecimal digits. Empty: the key in the file `key` of
    /// the folder, which is made with the store.
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
