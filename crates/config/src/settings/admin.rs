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
    /// Logins to the dashboard by an identity provider ([how](dashboard.md#identity-provider)).
    pub oidc: AdminOidc,
    /// TLS towards clients of the API.
    pub tls: AdminTls,
}

/// An identity provider (OpenID Connect) by which people log in to the dashboard.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminOidc {
    /// URL of the provider, whose document is at `/.well-known/openid-configuration` below it. Empty: people log in with keys
    /// alone.
    #[schemars(length(max = 4096))]
    pub issuer: String,
    /// The client that the provider knows the dashboard by.
    #[schemars(length(max = 256))]
    pub client_id: String,
    /// The secret of the client. Empty: a public client, which has none.
    pub client_secret: Secret,
    /// URL by which browsers reach the dashboard, such as `https://gateway.example:9180`. The provider has to know
    /// `/weir/v1/session/oidc/callback` below it as a redirect URI.
    #[schemars(length(max = 4096))]
    pub public_url: String,
    /// Scopes that are asked for.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 256)))]
    pub scopes: Vec<String>,
    /// The claim with the name that stands in the history; `sub` where there is none.
    #[schemars(length(min = 1, max = 256))]
    pub name_claim: String,
    /// The claim with the roles or groups of a person: a text or a list, in the ID token or at the provider's endpoint for
    /// claims. A dot leads into an object.
    #[schemars(length(min = 1, max = 256))]
    pub role_claim: String,
    /// The claim with the team whose resources alone a person may change. Empty: there are no teams.
    #[schemars(length(max = 256))]
    pub team_claim: String,
    /// Values of the claim that make an administrator.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub admins: Vec<String>,
    /// Values that make an operator.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub operators: Vec<String>,
    /// Values that make a viewer. Whoever has none of all these values is not let in.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub viewers: Vec<String>,
}

impl Default for AdminOidc {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            client_id: String::new(),
            client_secret: Secret::default(),
            public_url: String::new(),
            scopes: ["openid", "profile", "email"].map(str::to_owned).into(),
            name_claim: "email".to_owned(),
            role_claim: "groups".to_owned(),
            team_claim: String::new(),
            admins: Vec::new(),
            operators: Vec::new(),
            viewers: Vec::new(),
        }
    }
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
            oidc: AdminOidc::default(),
            tls: AdminTls::default(),
        }
    }
}
