use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;
use crate::resource::AddrRange;

/// The Admin API at `listen.admin`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// The key with all rights. Empty: the one that was made at the first start, and shown then. In the data directory
    /// only its digest is kept.
    pub key: Secret,
    /// Further keys: a list of mappings with `name`, `key` and `role`, which is `admin` (or `owner`), `operator` or `viewer`, and with `team`
    /// for a key that changes resources of a team alone.
    #[schemars(length(max = 64))]
    pub keys: Vec<AdminKey>,
    /// Requests need a key if true. `false` gives everyone who reaches the API all rights.
    pub key_required: bool,
    /// Sources that requests may come from: addresses and ranges. An empty list is everywhere.
    pub allow: Vec<AddrRange>,
    /// True: pages of other origins may use the API from a browser (CORS) with a key. Without a key they may not,
    /// unless their host is in `admin.hosts`.
    pub cors: bool,
    /// Names by which the Admin API and the control API are reached. Over the loopback address, requests without a key
    /// are answered for `localhost`, addresses and these names alone; and pages of these hosts may use the APIs without
    /// a key.
    #[schemars(length(max = 64), inner(length(max = 253), regex(pattern = r"^[0-9a-zA-Z._-]+$")))]
    pub hosts: Vec<String>,
    /// True: the gateway's own dashboard is at `/` ([what it shows](dashboard.md)). Its files are public, what it shows
    /// needs a key.
    pub dashboard: bool,
    /// The path of a folder whose files are served at `/ui`, such as APISIX's dashboard ([how](dashboard.md)). The
    /// files are public: every client that reaches the API reads them without a key. Empty: nothing is served at `/ui`.
    #[schemars(length(max = 4096))]
    pub ui: String,
    /// TLS towards clients of the API.
    pub tls: AdminTls,
}

/// A key that only reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Viewer {
    /// The key of the Admin API that may only read. Empty: as with `admin.key`.
    pub key: Secret,
}

/// A key of the Admin API.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminKey {
    /// Name of the key's user in the history.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// The key itself.
    pub key: Secret,
    /// Rights of the key.
    pub role: AdminRole,
    /// The team of the key, which may change resources with the label `team` of this value alone.
    #[serde(default)]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^\S+$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
}

/// Rights of a key of the Admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminRole {
    /// Everything.
    Admin,
    /// Everything: another word for `admin`.
    Owner,
    /// Reading, and changing callers: consumers, credentials, consumer groups, plans and developers.
    Operator,
    /// Reading.
    Viewer,
    /// Nothing: the Admin API does not start with such a key. Stands for a role in APISIX's `config.yaml` that is
    /// neither `admin` nor `viewer`.
    None,
}

/// TLS towards clients of the Admin API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminTls {
    /// The path of the certificate, in PEM. Empty: the API speaks no TLS.
    #[schemars(length(max = 4096))]
    pub cert: String,
    /// The path of the private key of `cert`, in PEM.
    #[schemars(length(max = 4096))]
    pub key: String,
    /// The path of the authorities of clients, in PEM: clients have to show a certificate of one of them, beside their
    /// key. Empty: they need none.
    #[schemars(length(max = 4096))]
    pub client_ca: String,
}

impl Default for Admin {
    fn default() -> Self {
        let local = ["127.0.0.0/8", "::1"];
        Self {
            key: Secret::default(),
            keys: Vec::new(),
            key_required: true,
            allow: local.into_iter().filter_map(AddrRange::new).collect(),
            cors: true,
            hosts: Vec::new(),
            dashboard: true,
            ui: String::new(),
            tls: AdminTls::default(),
        }
    }
}
