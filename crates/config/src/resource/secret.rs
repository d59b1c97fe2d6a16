use std::borrow::Cow;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Origin, Secret};
use crate::secret::is_reference;

/// A place for secrets that `$secret://MANAGER/ID/KEY` refers to: HashiCorp Vault or a folder. See
/// [secrets](secrets.md).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretManager {
    /// Manager and identifier: `vault/1`, `file/1`.
    pub id: ManagerId,
    /// Time of creation, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// Time of the last change, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Address of Vault: `http://HOST:PORT` or `https://HOST:PORT`, with a path in front of Vault's own if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 4096),
        regex(pattern = r"^https?://([0-9a-zA-Z._-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[0-9a-zA-Z._~-]+)*/?$"),
        extend("x-expected" = "http://HOST:PORT or https://HOST:PORT, which a path may follow")
    )]
    pub uri: Option<String>,
    /// Prefix of paths in Vault: its engine for keys and values and a folder in it, such as `kv/apisix`; with version 2
    /// of the engine `kv/data/apisix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = r"^[0-9a-zA-Z/._-]+$"),
        extend("x-expected" = "a path such as kv/apisix")
    )]
    pub prefix: Option<String>,
    /// The token for Vault. `$env://NAME` takes it from the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The namespace in Vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^[!-~]+$"), extend("x-expected" = "printable ASCII"))]
    pub namespace: Option<String>,
    /// The folder of `file`: an absolute path. Nothing outside of it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = "^/"), extend("x-expected" = "an absolute path"))]
    pub directory: Option<String>,
    /// Position in the document.
    #[serde(skip)]
    pub origin: Origin,
}

/// Identifier of a secret manager, with its kind: `vault/1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ManagerId(String);

/// Everything needed to query a secret manager.
#[derive(Clone, Copy, Debug)]
pub enum Manager<'a> {
    /// HashiCorp Vault, its engine for keys and values.
    Vault {
        /// Scheme, host, port and what comes before Vault's own paths.
        uri: &'a str,
        /// Prefix of paths.
        prefix: &'a str,
        /// Token of the queries.
        token: &'a Secret,
        /// Namespace of Vault, if any.
        namespace: Option<&'a str>,
    },
    /// A folder with a file for each secret.
    File(&'a Path),
}

impl SecretManager {
    /// The manager to query; `None` for an item that was not checked, and while its token is a reference without a
    /// value.
    #[must_use]
    pub fn manager(&self) -> Option<Manager<'_>> {
        if let Some(directory) = &self.directory {
            return Some(Manager::File(Path::new(directory)));
        }
        Some(Manager::Vault {
            uri: self.uri.as_deref()?,
            prefix: self.prefix.as_deref()?,
            token: self.token.as_ref().filter(|token| !is_reference(token.reveal()))?,
            namespace: self.namespace.as_deref(),
        })
    }
}

const EXPECTED: &str = "the kind of the manager and an id: vault/1, file/1";

impl ManagerId {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ManagerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let good = text.split_once('/').is_some_and(|(kind, id)| !kind.is_empty() && super::Id::new(id).is_some());
        if good { Ok(Self(text)) } else { Err(D::Error::invalid_value(Unexpected::Str(&text), &EXPECTED)) }
    }
}

impl JsonSchema for ManagerId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ManagerId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z]+/[0-9a-zA-Z._-]{1,64}$", "x-expected": EXPECTED })
    }
}
